"""Random histories, written as binary logs event by event, decoded in columns: the rows must be those that happened.

The expected rows are built together with the events, change by change, in plain Python.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.mysql.binlog_bytes import Log, TestTable, image, shape_of, simple
from tests.support.mysql.binlog_decoder import Reader, TestTables, reader
from tests.support.postgres.wire import Row, advanced, marks, transactions

from cdcflow.capture.interleave.messages import Committed
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.position import BinlogPosition, binlog_position_of

EXAMPLES = settings(
    max_examples=int(os.environ.get("CDCFLOW_EXAMPLES", "30")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
ORDERS, WIDE, OTHER = simple("orders"), simple("wide", extra=["w", "x"]), simple("other", "elsewhere")


@dataclass
class History:
    """A log, and the rows of each of its transactions that have any, in commit order."""

    log: Log
    random: random.Random
    expected: list[list[Row]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    prepared: list[tuple[bytes, list[Row]]] = field(default_factory=list)
    ids: int = 0

    def go_on(self, steps: int) -> None:
        kinds = ["transaction"] * 8 + ["rotate", "mark", "ddl", "savepoint", "rollback", "xa", "truncate", "other"]
        for _ in range(steps):
            getattr(self, f"_{self.random.choice(kinds)}")()
        while self.prepared:
            self._decide()

    def _change(self, table: TestTable) -> list[Row]:
        """One row event of one to three rows."""
        rows: list[Row] = []
        images: list[bytes] = []
        kind = self.random.choice("iiudk")
        for _ in range(self.random.randint(1, 3)):
            self.ids += 1
            old = [self.ids, self._text(), *(self._text() for _ in table.columns[2:])]
            new = [self.ids + (1_000_000 if kind == "k" else 0), self._text(), *(self._text() for _ in old[2:])]
            names = [c.name for c in table.columns]
            if kind == "i":
                images.append(image(table, old))
                rows.append((table.id.name, "c", dict(zip(names, old, strict=True))))
            elif kind == "d":
                images.append(image(table, old))
                rows.append((table.id.name, "d", dict(zip(names, old, strict=True))))
            else:
                images += [image(table, old), image(table, new)]
                after = dict(zip(names, new, strict=True))
                if kind == "u":
                    rows.append((table.id.name, "u", after))
                else:
                    rows.append((table.id.name, "d", dict(zip(names, old, strict=True))))
                    rows.append((table.id.name, "c", after | {"_before": {"id": self.ids}}))
        self.log.rows("u" if kind == "k" else kind, table, *images)
        return rows if table.id.schema == "shop" else []

    def _text(self) -> str | None:
        return self.random.choice([None, "", "é" * self.random.randint(0, 20), f"text {self.ids}"])

    def _changes(self, least: int = 1) -> list[Row]:
        tables = [ORDERS, WIDE, OTHER]
        return [row for _ in range(self.random.randint(least, 5)) for row in self._change(self.random.choice(tables))]

    def _happened(self, rows: list[Row]) -> None:
        if rows:
            self.expected.append(rows)

    def _transaction(self) -> None:
        self.log.begin()
        rows = self._changes()
        self.log.commit()
        self._happened(rows)

    def _savepoint(self) -> None:
        self.log.begin()
        rows = self._changes(0)
        self.log.query("SAVEPOINT `s`")
        self._changes()
        self.log.query("ROLLBACK TO `s`")
        rows += self._changes(0)
        self.log.commit()
        self._happened(rows)

    def _rollback(self) -> None:
        if self.log.compress:
            return
        self.log.begin()
        self._changes()
        self.log.query("ROLLBACK", "")

    def _xa(self) -> None:
        if (self.prepared and self.random.random() < 0.5) or self.log.compress:
            self._decide()
            return
        name = f"x{self.ids}-{len(self.expected)}-{self.log.gno}".encode()
        self.log.gtid(flags=64 if self.log.flavor == "mariadb" else 0)
        self.log.query(f"XA START X'{name.hex()}',X'',1", "")
        rows = self._changes()
        self.log.query(f"XA END X'{name.hex()}',X'',1", "")
        self.log.xa_prepare(name)
        self.prepared.append((name, rows))

    def _decide(self) -> None:
        if not self.prepared:
            return
        name, rows = self.prepared.pop(self.random.randrange(len(self.prepared)))
        commit = self.random.random() < 0.7
        self.log.gtid(standalone=True, flags=128 if self.log.flavor == "mariadb" else 0)
        self.log.query(f"XA {'COMMIT' if commit else 'ROLLBACK'} X'{name.hex()}',X'',1", "")
        if commit:
            self._happened(rows)

    def _mark(self) -> None:
        token = self.random.choice(["heartbeat", f"e1/{len(self.tokens)}"])
        self.log.mark(token)
        self.log.mark("e1/not ours", slot="another")
        if token != "heartbeat":  # noqa: S105  # no secret
            self.tokens.append(token)

    def _ddl(self) -> None:
        self.log.standalone("CREATE TABLE shop.fresh (id int)")
        self.log.table_ids.clear()

    def _truncate(self) -> None:
        self.log.standalone("TRUNCATE TABLE orders")
        self.expected.append([("orders", "t", {})])

    def _other(self) -> None:
        self.log.standalone("GRANT SELECT ON shop.* TO somebody")

    def _rotate(self) -> None:
        self.log.rotate()


def history(flavor: Flavor, seed: int, *, checksum: bool = True, compress: bool = False, steps: int = 20) -> History:
    made = History(Log(flavor, checksum=checksum, compress=compress), random.Random(seed))
    made.go_on(steps)
    return made


def reading(
    made: History, position: str = "binlog.000001:4;", spool_bytes_max: int = 1 << 30, *, compiled: bool = True
) -> Reader:
    """A reader whose catalog knows the tables, as that of a real source does."""
    shapes = {table.id: shape_of(table) for table in (ORDERS, WIDE)}
    tables = TestTables(shapes=shapes)
    return reader(made.log, position, spool_bytes_max=spool_bytes_max, tables=tables, compiled=compiled)


def cut(data: bytes, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.choice([1, 7, 100, 1000, 5000]) for _ in range(chance.randint(0, 40))]


def rows_told(found: Reader) -> list[list[Row]]:
    return [rows for _, _, rows in transactions(found.events, found.spools)]


@EXAMPLES
@given(
    flavor=st.sampled_from(["mysql", "mariadb"]),
    seed=st.integers(0, 2**32),
    checksum=st.booleans(),
    compress=st.booleans(),
    spool_bytes_max=st.sampled_from([0, 300, 1 << 30]),
    compiled=st.booleans(),
)
def test_every_transaction_arrives_whole_once_and_in_order(
    flavor: Flavor, seed: int, checksum: bool, compress: bool, spool_bytes_max: int, compiled: bool
) -> None:
    """M01, M02, M13, M22, M45, M66, M67: whatever the pieces in which the bytes arrive, however large a transaction."""
    made = history(flavor, seed, checksum=checksum, compress=compress)
    found = reading(made, spool_bytes_max=spool_bytes_max, compiled=compiled)
    data = made.log.dump()
    found.feed(data, cut(data, seed))
    assert rows_told(found) == made.expected
    assert marks(found.events) == made.tokens
    assert found.decoder.idle
    coordinates = [xid for xid, _, _ in transactions(found.events, found.spools)]
    assert coordinates == sorted(set(coordinates))


@EXAMPLES
@given(
    flavor=st.sampled_from(["mysql", "mariadb"]),
    seed=st.integers(0, 2**32),
    compress=st.booleans(),
    spool_bytes_max=st.sampled_from([300, 1 << 30]),
)
def test_a_restart_at_any_position_repeats_nothing_and_loses_nothing(
    flavor: Flavor, seed: int, compress: bool, spool_bytes_max: int
) -> None:
    """M11, M12, M45: reading can resume at each position that was ever reported, also while XA transactions are
    open."""
    made = history(flavor, seed, compress=compress)
    data = made.log.dump()
    first = reading(made, spool_bytes_max=spool_bytes_max)
    first.feed(data, cut(data, seed))
    told = [(p, n + 1) for n, (_, p, _) in enumerate(transactions(first.events, first.spools))]
    done = 0
    places: list[tuple[str, int]] = []
    for event in first.events:
        done += event.run.transactions if isinstance(event, Committed) else 0
        places += [] if isinstance(event, Committed) else [(event.position.text, done)]
    chance = random.Random(seed)
    for position, delivered in chance.sample(told + places, min(6, len(told + places))):
        again = reading(made, position, spool_bytes_max=spool_bytes_max)
        # A truncate of unseen tables needs facts that only the catalog has.
        again.tables.shapes |= first.tables.shapes
        start = BinlogPosition.parse(position).start
        again.feed(made.log.dump(start.file, start.pos))
        assert rows_told(again) == made.expected[delivered:]
        ends = advanced(again.events) or [""]
        assert binlog_position_of(again.decoder.progress.last).coordinate >= BinlogPosition.parse(position).coordinate
        assert all(BinlogPosition.parse(p) for p in ends if p)


@EXAMPLES
@given(flavor=st.sampled_from(["mysql", "mariadb"]), seed=st.integers(0, 2**32))
def test_the_position_reaches_the_end_of_the_log(flavor: Flavor, seed: int) -> None:
    """M31: also when the last transactions have no captured rows, so that a saved position never falls behind."""
    made = history(flavor, seed)
    made.log.begin()
    made.log.insert(OTHER, (1, "x"))
    made.log.commit()
    found = reading(made)
    found.feed(made.log.dump())
    last = BinlogPosition.parse(advanced(found.events)[-1])
    assert (last.file, last.pos) == made.log.place
    gtids = f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{made.log.gno}" if flavor == "mysql" else f"0-7-{made.log.gno}"
    assert last.gtids == gtids


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_end_of_one_transaction_is_identified_by_one_gtid(flavor: Flavor) -> None:
    """The lower fence checks which of the delivered transactions a snapshot sees, by coordinate and GTID."""
    made = history(flavor, 5, steps=30)
    found = reading(made)
    found.feed(made.log.dump())
    with_rows = [xid for xid, _, _ in transactions(found.events, found.spools)]
    assert [place for place, _ in found.gtids] == with_rows
    numbers = [gtid[1] for _, gtid in found.gtids if gtid is not None]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == len(with_rows)
