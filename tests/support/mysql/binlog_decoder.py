"""A decoder of the binary log with what it requires, fed with packets: for tests without a server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from tests.support.mysql.binlog_bytes import MARKS, Log, TestTable, Values, simple
from tests.support.postgres.wire import Row, Spools, transactions

from cdcflow.capture.interleave.messages import ChangesRefused, Committed, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError
from cdcflow.model.change import Uint64s
from cdcflow.model.position import Token
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.engine.buffers import PAD
from cdcflow.sources.mysql import decoders, wire
from cdcflow.sources.mysql.binlog import BinlogDecoder
from cdcflow.sources.mysql.compressed import EXPANDED_BYTES_MAX
from cdcflow.sources.mysql.dump import Packets
from cdcflow.sources.mysql.event_samples import EventSamples
from cdcflow.sources.mysql.gtids import Flavor, Gtids
from cdcflow.sources.mysql.position import BinlogPosition, Coordinate
from cdcflow.sources.mysql.row_events import Marks
from cdcflow.sources.mysql.tables import DescribedTable, TableMap, describe
from cdcflow.sources.mysql.types.columns import Policy, ServerColumn


@dataclass
class TestTables:
    """What the decoder requires: every table of schema `shop` is captured, except shadow tables."""

    __test__ = False

    captured: str = "shop"
    myisam: frozenset[str] = frozenset()
    versioned: frozenset[TableId] = frozenset()
    computed: frozenset[TableId] = frozenset()
    without_primary_key: frozenset[TableId] = frozenset()
    columns_now: dict[TableId, Sequence[ServerColumn]] = field(default_factory=dict)
    maps: dict[TableId, DescribedTable] = field(default_factory=dict)
    shapes: dict[TableId, DescribedTable] = field(default_factory=dict)
    asked: list[TableId] = field(default_factory=list)
    told: list[TableId | None] = field(default_factory=list)
    later: dict[TableId, Coordinate] = field(default_factory=dict)

    def catalog_name(self, table: TableId) -> TableId:
        return table

    def is_captured(self, table: TableId) -> bool:
        return table.schema == self.captured and not table.name.startswith("_")

    def is_new(self, table: TableId) -> bool:
        return table in self.later

    def describe(self, found: TableMap) -> DescribedTable | None:
        self.asked.append(found.id)
        if self.is_new(found.id) and not found.has_names:
            return None
        shape = describe(found.id, found.columns, found.key_names, Identity.KEY, Policy())
        self.shapes[found.id] = self.maps[found.id] = shape
        return shape

    def last_shape(self, table: TableId) -> DescribedTable | None:
        return self.shapes.get(table)

    def captured_in(self, schema: str | None) -> Sequence[TableId]:
        return sorted(t for t in self.shapes if schema in (None, t.schema))

    def mapped_shape(self, table: TableId) -> DescribedTable | None:
        return self.maps.get(table)

    def now(self, table: TableId) -> Sequence[ServerColumn] | None:
        return self.columns_now.get(table, self.shapes[table].columns if table in self.shapes else None)

    def is_versioned(self, table: TableId) -> bool:
        return table in self.versioned

    def is_computed(self, table: TableId) -> bool:
        return table in self.computed

    def lacks_primary_key(self, table: TableId) -> bool:
        return table in self.without_primary_key

    def engine_that_keeps_changes(self, table: TableId) -> str:
        return "MyISAM" if table.name in self.myisam else ""

    @property
    def next_begin(self) -> Coordinate | None:
        return min(self.later.values(), default=None)

    def begin(self, upto: Coordinate | None) -> None:
        self.later = {} if upto is None else {t: place for t, place in self.later.items() if place > upto}

    def invalidate(self, table: TableId | None) -> None:
        self.told.append(table)
        if table is not None:
            self.maps.pop(table, None)


@dataclass
class Reader:
    """A decoder with its input and its output."""

    decoder: BinlogDecoder
    packets: Packets
    spools: Spools
    tables: TestTables
    events: list[StreamEvent] = field(default_factory=list)
    gtids: list[tuple[int, tuple[str, int] | None]] = field(default_factory=list)
    left: bytes = b""

    def feed(self, data: bytes, sizes: Iterable[int] = ()) -> list[StreamEvent]:
        """Take packets, in pieces of these sizes and then the rest."""
        begin = len(self.events)
        at = 0
        for size in [*sizes, len(data)]:
            piece, at = data[at : at + size], at + size
            self.left += piece
            events, taken = self.packets.take(self.left + bytes(PAD), len(self.left))
            self.events += events
            self.left = self.left[taken:]
        return self.events[begin:]

    def expect(self, token: str, coordinate: Coordinate) -> None:
        self.decoder.progress.expect(Token(token), coordinate)


def reader(
    log: Log | Flavor = "mysql",
    position: str = "binlog.000001:4;",
    *,
    spool_bytes_max: int = 1 << 30,
    by_gtid: bool = False,
    tables: TestTables | None = None,
    expanded_bytes_max: int = EXPANDED_BYTES_MAX,
    compiled: bool = True,
    samples: EventSamples | None = None,
) -> Reader:
    flavor: Flavor = log.flavor if isinstance(log, Log) else log
    start = BinlogPosition.parse(position)
    spools, told = Spools(), tables or TestTables()
    seen: list[tuple[int, tuple[str, int] | None]] = []

    def on_gtids(coordinates: Uint64s, gtids: Gtids) -> None:
        seen.extend((coordinate, gtids.gtid_at(i)) for i, coordinate in enumerate(coordinates.tolist()))

    decoder = BinlogDecoder(
        flavor=flavor,
        position=start,
        tables=told,
        marks=Marks("me", MARKS),
        open_spool=spools,
        spool_bytes_max=spool_bytes_max,
        by_gtid=by_gtid,
        on_gtids=on_gtids,
        expanded_bytes_max=expanded_bytes_max,
        compiled=decoders.COMPILED if compiled else None,
        samples=samples,
    )
    begin = 4 if by_gtid else start.start.pos
    split = decoders.split if compiled else wire.split
    return Reader(decoder, Packets(decoder, flavor=flavor, pos=begin, split=split), spools, told, gtids=seen)


def decoded(log: Log, position: str = "binlog.000001:4;", **options: int) -> Reader:
    """A reader that was fed everything since a position."""
    made = reader(log, position, spool_bytes_max=options.get("spool_bytes_max", 1 << 30))
    start = BinlogPosition.parse(position).start
    made.feed(log.dump(start.file, start.pos))
    return made


FLAVORS: list[Flavor] = ["mysql", "mariadb"]
T, U, WIDE = simple("t"), simple("u"), simple("wide", extra=["w"])


def rows_of(found: Reader) -> list[Row]:
    return [row for _, _, rows in transactions(found.events, found.spools) for row in rows]


def ids_of(found: Reader) -> list[int]:
    return [row[2]["id"] for row in rows_of(found)]


def one(log: Log, *ids: int, table: TestTable = T) -> None:
    log.begin()
    rows: list[Values] = [(i, "x", "y")[: len(table.columns)] for i in ids]
    log.insert(table, *rows)
    log.commit()


def refused(log: Log, kind: type[CdcflowError], said: str) -> Reader:
    found = reader(log)
    with pytest.raises(kind, match=said):
        found.feed(log.dump())
    return found


def failed(log: Log, said: str) -> Reader:
    """Check that a table of the log fails alone, for this reason."""
    found = reader(log)
    (reason,) = (e.reason for e in found.feed(log.dump()) if isinstance(e, ChangesRefused))
    assert re.search(said, reason), reason
    return found


def told(found: Reader) -> list[int | str]:
    """How many rows came in one piece, and the marks between them."""
    return [
        e.run.rows if isinstance(e, Committed) else e.token.text
        for e in found.events
        if isinstance(e, (Committed, MarkSeen))
    ]
