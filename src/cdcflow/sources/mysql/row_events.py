"""Row events of one part of the log, grouped by table shape: offsets of rows, never rows.

    TABLE_MAP   id(6) flags(2) …                                          defines the id for the events that follow
    ROWS        id(6) flags(2) [extra(2+)] width │ bitmap [bitmap] │ row images …

Table ids are valid in one file and one connection only (hard case M13). A server repeats the TABLE_MAP before each
statement; nearly always it is byte for byte the known one, which is checked for a whole batch at once. Row events of
one shape, kind and pair of bitmaps are decoded together, whatever is between them.

Rows of cdcflow's small table of marks (`slot`, `token`, `at`; `marks.py` writes them) are read straight from the bytes:
nothing of that table goes into the log, so its rows need no columns in Arrow. Rows of other slots belong to another
cdcflow at the same server.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import DELETE, Int64s
from cdcflow.model.table import OP, Table, TableId
from cdcflow.sources.engine.buffers import Bools
from cdcflow.sources.engine.changes import ShapedRows
from cdcflow.sources.engine.numbered_tables import NumberedTables
from cdcflow.sources.engine.selection import CapturedTableRefused, refusal_of
from cdcflow.sources.mysql.decoders import COMPILED, Compiled, changes
from cdcflow.sources.mysql.errors import READ_ANEW, failure_text
from cdcflow.sources.mysql.event_samples import EventGroup, EventSamples
from cdcflow.sources.mysql.events import IS_ROWS, EventType, length_at
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.images import present as sent_columns
from cdcflow.sources.mysql.position import BinlogFile
from cdcflow.sources.mysql.rows import DecodedRows, RowKind
from cdcflow.sources.mysql.tables import DescribedTable, TableMap, Tables, table_map, table_name
from cdcflow.sources.mysql.wire import HEADER, Events, Types, protocol_error

_V1_BODY = HEADER + 8
_EXTRA = HEADER + 8
_NO_TABLE = 0xFFFFFF
"""The id of no table: a row event with this id has no rows and only ends a statement."""

_KINDS = {
    EventType.WRITE_ROWS_V1: RowKind.INSERT,
    EventType.UPDATE_ROWS_V1: RowKind.UPDATE,
    EventType.DELETE_ROWS_V1: RowKind.DELETE,
    EventType.WRITE_ROWS: RowKind.INSERT,
    EventType.UPDATE_ROWS: RowKind.UPDATE,
    EventType.DELETE_ROWS: RowKind.DELETE,
    EventType.PARTIAL_UPDATE_ROWS: RowKind.UPDATE,
}
_V1 = frozenset((EventType.WRITE_ROWS_V1, EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1))

HEARTBEAT = "heartbeat"
"""How the token of a heartbeat begins: such a mark only shows that the log moves."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The place of this capture's marks: its `slot` in `table`. If `table` is None, marks are not written
    (read-only)."""

    slot: str
    table: TableId | None


@dataclass(frozen=True, slots=True)
class Mapped:
    """The meaning of a table id: `raw` is the TABLE_MAP event without its header. `found` is set only for the table of
    marks. `failure`: why rows of a captured table cannot be captured; None if they can."""

    raw: bytes
    table: TableId
    described: DescribedTable | None = None
    found: TableMap | None = None
    failure: CapturedTableRefused | None = None


@dataclass(frozen=True, slots=True)
class Incomplete:
    """The keys of rows that lack some of their columns; `event` has the number of the event of each."""

    table: TableId
    event: Int64s
    keys: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class EventContents:
    """The content of row events: changes by shape (a message of `ShapedRows` is an event here), the rows that must be
    read by key, the tokens of this slot's marks by event, and the names in purge marks by event."""

    changes: list[ShapedRows] = field(default_factory=list)
    incomplete: list[Incomplete] = field(default_factory=list)
    tokens: list[tuple[int, str]] = field(default_factory=list)
    purges: list[tuple[int, str]] = field(default_factory=list)


class RowEvents:
    """The table maps of one connection, and the content of row events according to them. `compiled` None: the plain
    decoders. `samples` get row events for a second opinion; None if there is none."""

    def __init__(
        self,
        tables: Tables,
        marks: Marks,
        compiled: Compiled | None = COMPILED,
        samples: EventSamples | None = None,
        *,
        flavor: Flavor = "mysql",
    ) -> None:
        self._flavor: Flavor = flavor
        self._compiled = compiled
        self._samples = samples
        self._file = BinlogFile("")
        self._tables = tables
        self._marks = marks
        self._maps: NumberedTables[Mapped] = NumberedTables({})
        self._known: dict[bytes, Mapped] = {}
        self._failures: dict[TableId, tuple[str, bool]] = {}
        self._computed: dict[TableId, bool] = {}  # whether tables have generated columns

    def begin_file(self, file: BinlogFile) -> None:
        """Begin a new file, or a new connection: table ids start over."""
        self._file = file
        self._maps.known.clear()

    def forget_shapes(self, table: TableId | None) -> None:
        """Forget what the known table maps mean, because the definition of this table (None: of any table) may have
        changed."""
        self._tables.invalidate(table)
        self._maps.forget()
        self._known.clear()
        self._computed.clear()

    # ── table maps ──────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Begin a new part of the log: its events are numbered from 0."""
        self._maps = NumberedTables(self._maps.known)

    def learn(self, events: Events, first: int, last: int) -> None:
        """Process the table maps among the events `first` to `last` (exclusive), in order."""
        at = first + np.flatnonzero(events.type[first:last] == EventType.TABLE_MAP)
        if not len(at):
            return
        start, end = events.start[at], events.end[at]
        if (end - start < HEADER + 8).any():
            raise protocol_error("a TABLE_MAP event that ends early")
        ids = events.buffer.le48(start + HEADER)
        for table_id in _distinct(ids):
            mine = at if len(ids) == 1 else at[ids == table_id]
            self._learn(events, table_id, mine)

    def _learn(self, events: Events, table_id: int, at: Int64s) -> None:
        known = self._maps.known.get(table_id)
        for number in at[_differing(events, at, known)].tolist():
            raw = events.event_at(number)[HEADER:]
            if known is None or known.raw != raw:
                known = self._mapped_table(events.event_at(number))
                self._maps.define(table_id, number, known)

    def _mapped_table(self, event: bytes) -> Mapped:
        raw = event[HEADER:]
        shape = raw[6:]
        known = self._known.get(shape)
        if known is None:
            table = self._tables.catalog_name(table_name(event))
            if table == self._marks.table:
                found = table_map(event)
                check_columns(found)
                known = Mapped(raw, table, found=found)
            elif self._tables.is_captured(table):
                known = self._describe_captured(table, event, raw)
            else:
                known = Mapped(raw, table)
            self._known[shape] = known
        return replace(known, raw=raw)

    def _describe_captured(self, table: TableId, event: bytes, raw: bytes) -> Mapped:
        """Return the meaning of a captured table's map. A table whose rows cannot be decoded fails alone.

        Raises:
            ConfigurationError: the server's log does not name the columns of any table.
        """
        has_names = True
        try:
            found = table_map(event)
            has_names = found.has_names
            return Mapped(raw, table, self._tables.describe(replace(found, id=table)))
        except CapturedTableRefused as refused:
            return Mapped(raw, table, failure=refused)
        except ConfigurationError as error:
            if not has_names:
                raise
            why, remedy = refusal_of(error)
            return Mapped(raw, table, failure=CapturedTableRefused(table, [(why, remedy.partition("; then run")[0])]))

    def take_failures(self) -> dict[TableId, tuple[str, bool]]:
        """Return the tables whose rows could not be decoded since the last call, each with the reason, and whether the
        checks of the tables show it, too."""
        found, self._failures = self._failures, {}
        return found

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────

    def tables_of(self, events: Events, use: Bools) -> set[TableId]:
        """Return the captured tables that these events contain rows of."""
        return {mapped.table for mapped, _ in self._by_map(events, use) if mapped.described is not None}

    def decode(self, events: Events, use: Bools) -> EventContents:
        """Decode the rows of the events for which `use` is true. All table maps before them must have been learned."""
        out = EventContents()
        for mapped, at in self._by_map(events, use):
            if mapped.found is not None:
                self._take_marks(events, at, mapped.found, out)
            elif mapped.failure is not None:
                self._failures[mapped.table] = mapped.failure.reason, True
            elif mapped.described is not None:
                try:
                    self._decode(events, at, mapped, mapped.described, out)
                except ConfigurationError as error:
                    self._failures[mapped.table] = failure_text(error, mapped.table), False
        return out

    def _by_map(self, events: Events, use: Bools) -> list[tuple[Mapped, Int64s]]:
        at = np.flatnonzero(IS_ROWS[events.type] & use)
        if not len(at):
            return []
        if (events.end[at] - events.start[at] < HEADER + 8).any():
            raise protocol_error("a row event that ends early")
        ids = events.buffer.le48(events.start[at] + HEADER)
        out: list[tuple[Mapped, Int64s]] = []
        for table_id in _distinct(ids):
            if table_id == _NO_TABLE and not self._maps.meanings(table_id):
                continue
            out += self._maps.split(table_id, at[ids == table_id])
        return out

    def _decode(
        self, events: Events, at: Int64s, mapped: Mapped, described: DescribedTable, out: EventContents
    ) -> None:
        for kind in _distinct(events.type[at]):
            left = at[events.type[at] == kind]
            body = events.start[left] + _V1_BODY
            if kind not in _V1:
                body = body + np.maximum(events.buffer.le16(events.start[left] + _EXTRA), 2)
            if (body >= events.end[left]).any():
                raise protocol_error("a row event that ends before its columns")
            while len(left):
                alike, size = _alike(events, left, body, kind, len(described.columns), described.table)
                same = left[alike]
                decoded = self._together(events, same, body[alike], size, kind, described, out)
                if self._samples is not None and self._samples.wants(described):
                    rows, counts = decoded.rows, decoded.counts
                    self._samples.keep(EventGroup(events, same, described, mapped.raw, rows, counts, self._file))
                left, body = left[~alike], body[~alike]

    def _together(
        self,
        events: Events,
        at: Int64s,
        body: Int64s,
        size: int,
        kind: int,
        described: DescribedTable,
        out: EventContents,
    ) -> DecodedRows:
        """Decode row events that have the same columns and bitmaps in the `size` bytes after `body`."""
        row_kind = _KINDS[EventType(kind)]
        images, _ = bitmaps(events.event_at(int(at[0])), int(body[0] - events.start[at[0]]), _images(kind))
        before = images[0] if row_kind is not RowKind.INSERT else b""
        after = images[-1] if row_kind is not RowKind.DELETE else b""
        extents = Extents(body + size, events.end[at])
        partial = kind == EventType.PARTIAL_UPDATE_ROWS
        raw, compiled = events.buffer.raw, self._compiled
        decoded = changes(described, raw, extents, row_kind, before, after, partial, compiled=compiled)
        event, rows = np.repeat(at, decoded.counts), decoded.rows
        out.changes.append(ShapedRows(described.table, event, rows))
        incomplete = decoded.incomplete
        if row_kind is RowKind.UPDATE and self._flavor == "mariadb" and self._may_lack_values(described.table, after):
            incomplete = pc.not_equal(rows.column(OP), DELETE).to_numpy(zero_copy_only=False)
        if incomplete is not None and incomplete.any():
            keys = rows.select(list(described.table.key_columns)).filter(pa.array(incomplete))
            out.incomplete.append(Incomplete(described.table.id, event[incomplete], keys))
        return decoded

    def _may_lack_values(self, table: Table, after: bytes) -> bool:
        """Whether MariaDB's updates with this bitmap of after images may lack columns that got other values.

        With `binlog_row_image` MINIMAL or NOBLOB it omits virtual columns, and in the update as which it logs a REPLACE
        (or LOAD DATA … REPLACE) columns that the statement did not name, and that got their defaults. Other updates
        with MINIMAL have no columns of the key, unless they set them.
        """
        sent = sent_columns(after, len(table.columns))
        if all(sent):
            return False
        key = frozenset(table.key_columns)
        if any(here and c.name in key for c, here in zip(table.columns, sent, strict=True)):
            return True
        if table.id not in self._computed:
            self._computed[table.id] = self._tables.is_computed(table.id)
        return self._computed[table.id]

    def _take_marks(self, events: Events, at: Int64s, found: TableMap, out: EventContents) -> None:
        for number in at.tolist():
            event = events.event_at(number)
            if _KINDS[EventType(event[4])] is RowKind.DELETE:
                continue
            begin = _V1_BODY
            if event[4] not in _V1:
                begin += max(int.from_bytes(event[_EXTRA : _EXTRA + 2], "little"), 2)
            images, rows = bitmaps(event, begin, _images(event[4]))
            is_partial = event[4] == EventType.PARTIAL_UPDATE_ROWS
            for slot, token in marks_of(found, event[rows:], images, is_partial=is_partial):
                if slot.startswith(PURGE_SLOT):
                    out.purges.append((number, purge_name(slot)))
                elif slot == self._marks.slot and token is not None:
                    out.tokens.append((number, token))


def kind_of(event: bytes) -> RowKind:
    """Return what a row event does."""
    return _KINDS[EventType(event[4])]


def _images(kind: int) -> int:
    """Return the number of images, and so of bitmaps, that a row event's rows have."""
    return 2 if _KINDS[EventType(kind)] is RowKind.UPDATE else 1


def _distinct(ids: Int64s | Types) -> list[int]:
    return [int(ids[0])] if (ids == ids[0]).all() else [int(i) for i in np.unique(ids)]


def _differing(events: Events, at: Int64s, known: Mapped | None) -> Bools:
    """Return which of these TABLE_MAP events differ from the known one."""
    if known is None:
        return np.ones(len(at), np.bool_)
    start, size = events.start[at] + HEADER, len(known.raw)
    other: Bools = events.end[at] - start != size
    if not other.any():
        raw = np.frombuffer(known.raw, np.uint8)
        other = (events.buffer.bytes[start[:, None] + np.arange(size)] != raw).any(axis=1)
    # From the first that differs, all are processed, even those equal to the known one, because another map may be in
    # force there.
    return np.logical_or.accumulate(other)


def _alike(events: Events, at: Int64s, body: Int64s, kind: int, columns: int, table: Table) -> tuple[Bools, int]:
    """Return which of these row events have the same number of columns and the same bitmaps as the first, and the size
    of count and bitmaps in bytes.

    Raises:
        ConfigurationError: the events' number of columns differs from the table's description (hard case M09).
    """
    event, offset = events.event_at(int(at[0])), int(body[0] - events.start[at[0]])
    width, _ = length_at(event, offset)
    if width != columns:
        raise ConfigurationError(
            f"table {table.id} has {columns} columns, but a row event of it in the log has {width}: the table was "
            f"changed without being logged",
            remedy=f"run SET GLOBAL binlog_row_metadata = 'FULL' (in the server's settings, too), then {READ_ANEW}",
            runbook="binlog-not-complete",
        )
    _, rows = bitmaps(event, offset, _images(kind))
    size = rows - offset
    same: Bools = body + size <= events.end[at]
    offsets = body[:, None] + np.arange(size)
    np.minimum(offsets, events.buffer.size, out=offsets)
    same &= (events.buffer.bytes[offsets] == np.frombuffer(event[offset:rows], np.uint8)).all(axis=1)
    return same, size


# ── marks among the rows ───────────────────────────────────────────────────────────────────────────────────────


_VARCHAR, _TIMESTAMP = 15, 17


def check_columns(found: TableMap) -> None:
    """Raise ConfigurationError if the table of marks is not the one that cdcflow creates."""
    if [c.type_code for c in found.columns] != [_VARCHAR, _VARCHAR, _TIMESTAMP]:
        raise ConfigurationError(
            f"table {found.id} is not one of cdcflow's: its columns are not slot, token and at",
            remedy=f"DROP TABLE `{found.id.schema}`.`{found.id.name}`; cdcflow creates it again",
            runbook="settings",
        )


PURGE_SLOT = "cdcflow.purge"
"""How the slot of a purge mark begins: a session writes such a row into the table of marks, in the transaction that
purges."""
NO_NAME = "purge"
"""The origin of a transaction whose purge mark has no name."""


def purge_name(slot: str) -> str:
    """Return the origin that a purge mark gives its transaction: `cdcflow.purge NAME`, or `cdcflow.purge NAME/…`, where
    the rest distinguishes the marks of several sessions.

    The name is in the key, which every image of a row has, whatever `binlog_row_image` is.
    """
    return slot.removeprefix(PURGE_SLOT).split("/", 1)[0].strip() or NO_NAME


def marks_of(
    found: TableMap, rows: bytes, images: list[bytes], *, is_partial: bool = False
) -> list[tuple[str, str | None]]:
    """Return slot and token of each mark in one row event; the token is None if the event does not contain it.

    `images` are the column bitmaps of each row's images: one for an insert, two for an update. `is_partial`: a byte of
    options precedes the second image; no bits for documents follow the byte, because the table of marks has no JSON
    column.
    """
    out: list[tuple[str, str | None]] = []
    at = 0
    while at < len(rows):
        row: dict[int, str] = {}
        before = at
        for nth, present in enumerate(images):
            at += is_partial and nth == 1
            try:
                image, at = _image(found, rows, at, present)
            except IndexError:
                raise protocol_error("a row of the table of marks that ends early") from None
            row |= image
        if at == before:
            raise protocol_error("a row of the table of marks without columns")
        if 0 in row:
            out.append((row[0], row.get(1)))
    return out


def _image(found: TableMap, rows: bytes, at: int, present: bytes) -> tuple[dict[int, str], int]:
    there = [i for i in range(len(found.columns)) if present[i >> 3] >> (i & 7) & 1]
    nulls = rows[at : at + (len(there) + 7) // 8]
    at += len(nulls)
    row: dict[int, str] = {}
    for nth, number in enumerate(there):
        if nulls[nth >> 3] >> (nth & 7) & 1:
            continue
        column = found.columns[number]
        if column.type_code == _TIMESTAMP:
            at += 4 + (column.metadata + 1) // 2
            continue
        if column.metadata < 256:
            size, at = rows[at], at + 1
        else:
            size, at = int.from_bytes(rows[at : at + 2], "little"), at + 2
        row[number] = rows[at : at + size].decode(errors="replace")
        at += size
    if at > len(rows):
        raise protocol_error("a row of the table of marks that ends early")
    return row, at


def bitmaps(event: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """Return the column bitmaps of a row event whose column count is at `at`, and where its rows begin."""
    width, at = length_at(event, at)
    size = (width + 7) // 8
    if at + size * count > len(event):
        raise protocol_error("a row event that ends before its rows")
    return [event[at + i * size : at + (i + 1) * size] for i in range(count)], at + size * count
