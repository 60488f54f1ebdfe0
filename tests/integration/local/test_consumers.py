"""Consumers of random logs: storing result and cursor together yields exactly the fold of the log.

A seed runs alone with `CDCFLOW_CONSUMER_SEED=<seed>`.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.histories import Histories

import cdcflow
from cdcflow.errors import CdcflowError
from cdcflow.log.files.layout import Layout
from cdcflow.log.fold.fold import FoldedRow, LogChange, fold
from cdcflow.log.maintenance import consumer_files as kept
from cdcflow.log.maintenance.expiry import Expiring, ExpiryPolicy
from cdcflow.log.query import batches, cursors
from cdcflow.log.query import consumer as consuming
from cdcflow.log.query.consumer import Batch
from cdcflow.model.table import BEFORE, LOG_COLUMNS, OFFSET, OP, UNCHANGED, Table

SEED = int(os.environ.get("CDCFLOW_CONSUMER_SEED", "0"))
SEEDS = [SEED] if SEED else [random.SystemRandom().randrange(1, 10**8) for _ in range(3)]
NUMBERS = range(len(SEEDS))
"""Tests are called by these: two processes must know them by the same names."""

ORDERS = make_table("orders", id="int64", a="string", b="int64")
PAIRS = make_table("pairs", key=("x", "y"), x="string", y="int64", v="string")
NOTES = make_table("notes", key=(), text="string", n="int64")
LATE = make_table("late", id="int64", v="string")
TABLES = (ORDERS, PAIRS, NOTES, LATE)
Rows = dict[str, dict[tuple[object, ...], FoldedRow]]


@dataclass
class World:
    """Tables of a database and the log of their changes; transactions have rows of several tables."""

    root: Path
    chance: random.Random
    log: HandLog = field(init=False)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    """By offset, the transaction."""
    transactions: int = 0
    late: bool = False

    def __post_init__(self) -> None:
        self.log = HandLog(self.root, has_transactions=True)
        for table in (ORDERS, PAIRS, NOTES):
            self.log.state(table, since=1)
            self.rows[str(table.id)] = [_row(table, n, self.chance) for n in range(self.chance.randint(0, 30))]
        read = [(t, "r", row) for t in (ORDERS, PAIRS, NOTES) for row in self.rows[str(t.id)]]
        self.log.segment([(t, op, {**row, "_txn": 1}) for t, op, row in read])
        self.transactions = 1

    def write(self, count: int) -> None:
        """A segment of this many transactions."""
        steps: list[tuple[Table, str, dict[str, Any]]] = []
        for _ in range(count):
            self.transactions += 1
            for _ in range(self.chance.choice([1, 1, 2, 5, 12])):
                table = self.chance.choice(TABLES if self.late else TABLES[:3])
                steps += [(t, op, {**row, "_txn": self.transactions}) for t, op, row in self._change(table)]
        self.numbers |= {self.log.next_offset + n: row["_txn"] for n, (_, _, row) in enumerate(steps)}
        self.log.segment(steps)

    def _change(self, table: Table) -> Iterator[tuple[Table, str, dict[str, Any]]]:
        there = self.rows.setdefault(str(table.id), [])
        what = self.chance.random()
        if what < 0.01:
            there.clear()
            yield table, "t", {}
        elif what < 0.4 or not there:
            there.append(_row(table, self.transactions * 100 + len(there), self.chance))
            yield table, "c", dict(there[-1])
        elif what < 0.55:
            gone = there.pop(self.chance.randrange(len(there)))
            yield table, "d", {k: gone[k] for k in table.key_columns}
        elif table.key and what < 0.65:  # its key changes
            row = self.chance.choice(there)
            old = {k: row[k] for k in table.key}
            row[table.key[-1]] = self.transactions * 1000 + self.chance.randrange(900)
            yield table, "d", dict(old)
            yield table, "c", {**row, "_before": {k: old.get(k) for k in table.key}}
        elif table.key:
            row = self.chance.choice(there)
            name = table.columns[-1].name
            row[name] = _value(table, name, self.chance)
            left = [c.name for c in table.columns if c.name not in (*table.key, name)]
            kept = left if self.chance.random() < 0.5 else []
            yield table, "u", {**{k: v for k, v in row.items() if k not in kept}, "_unchanged": kept or None}

    def fold(self, names: tuple[str, ...], up_to: int | None = None) -> Rows:
        """What the log has of each table, by the oracle."""
        return {
            str(t.id): fold({}, self.log.changes(t.id, up_to), t.key_columns, keyed=bool(t.key))
            for t in TABLES
            if str(t.id) in names
        }

    def check_end(self, batch: Batch, names: Any) -> None:
        """Check that a batch claims to end a transaction if no more of it follows, and only then (if a window
        has it).
        """
        if batch.is_backfill:
            return
        last = batch.rows.column(OFFSET)[-1].as_py()
        number = self.numbers[last]
        following = [t for (t, c) in self.log.written if c.offset > last and self.numbers[c.offset] == number]
        goes_on = any(names is None or str(t.id) in names for t in following)
        if batch.ends_transaction or batches.WINDOW_ROWS > 100:
            assert batch.ends_transaction is not goes_on

    def expire(self) -> None:
        """Expire all but the minimum that must be kept."""
        Expiring(Layout(self.root), ExpiryPolicy(0.001, None, []), lambda event, fields: None, every_s=600).step()


def _row(table: Table, number: int, chance: random.Random) -> dict[str, Any]:
    row = {c.name: _value(table, c.name, chance) for c in table.columns}
    if table.key:
        row[table.key[-1]] = number
    return row


def _value(table: Table, name: str, chance: random.Random) -> Any:
    number = chance.randrange(4)
    is_text = pa.types.is_string(table.row_schema.field(name).type)
    return (f"v{number}" if is_text else number) if chance.random() < 0.9 or name in table.key else None


@dataclass
class Store:
    """A reader's own store: result and cursor, which change together. `offsets`: of the changes that it got, in order;
    `read`: of the backfill's rows, by table."""

    rows: Rows = field(default_factory=dict)
    cursor: str | None = None
    offsets: list[int] = field(default_factory=list)
    read: list[tuple[str, int]] = field(default_factory=list)

    def take(self, batch: Batch) -> None:
        changes = [_change(batch.shape, row) for row in batch.rows.to_pylist()]
        done = fold(self.rows.get(batch.table, {}), changes, batch.shape.key_columns, keyed=bool(batch.shape.key))
        offsets = batch.rows.column(OFFSET).to_pylist()
        if batch.is_backfill:
            self.read += [(batch.table, offset) for offset in offsets]
        else:
            self.offsets += offsets
        self.rows[batch.table], self.cursor = done, batch.cursor


def _change(shape: Table, row: Mapping[str, Any]) -> LogChange:
    unchanged = frozenset(row[UNCHANGED] or ())
    own = {name: value for name, value in row.items() if name not in LOG_COLUMNS and name not in unchanged}
    if row[OP] == "t":
        own = {}
    return LogChange(row[OFFSET], row[OP], own, unchanged, row[BEFORE])


def told(rows: Rows) -> Any:
    """Rows for comparing: for a table without a key, how often each occurs."""
    return {
        table: {key: (dict(row.values), row.count) for key, row in found.items()}
        for table, found in rows.items()
        if found
    }


class Killed(Exception):
    """A reader's process ended."""


def read_some(world: World, store: Store, chance: random.Random, tables: Any, *, stores: bool) -> None:
    """Continue reading at the store's cursor (or, if it keeps none, after the last commit), and be killed at some
    batch, or reach the end.
    """
    killed_at = chance.choice([0, 1, 2, 5, None])
    bound = chance.choice([1, 2, 7, 1000])
    with cdcflow.open(world.root).consumer("c", tables, batch_rows=bound) as consumer:
        for number, batch in enumerate(consumer.read(store.cursor if stores else None)):
            assert batch.rows.num_rows <= bound
            if number == killed_at:
                raise Killed
            store.take(batch)
            world.check_end(batch, tables)
            if chance.random() < 0.8:
                consumer.commit(batch.cursor)


def run(seed: int, folder: Path, *, stores: bool = True) -> None:
    """One history of a log and its consumer, and whether the store has exactly the log's fold. `stores`: it stores the
    cursor, too."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "WINDOW_ROWS", chance.choice([3, 50, 1 << 16]))
        world = World(folder / "log", chance)
        for _ in range(chance.randint(0, 3)):
            world.write(chance.randint(1, 12))
        names = chance.choice([None, ("public.orders", "public.notes"), ("public.pairs",)])
        store = Store()
        begins = world.log.next_offset
        for number in range(10):
            with suppress(Killed):
                read_some(world, store, chance, names, stores=stores)
            world.late |= number == 3
            if chance.random() < 0.7:
                world.write(chance.randint(1, 12))
            if chance.random() < 0.4:
                world.log.compact(chance.randint(2, 4))
            if chance.random() < 0.4:
                world.expire()
        with cdcflow.open(world.root).consumer("c") as consumer:
            for batch in consumer.read(store.cursor if stores else None):
                store.take(batch)
    seen = names or tuple(str(t.id) for t in TABLES)
    if not stores:  # at least once: of a table with a key that is as good
        seen = tuple(name for name in seen if name != str(NOTES.id))
        store.rows.pop(str(NOTES.id), None)
        assert told(store.rows) == told(world.fold(seen))
        return
    assert told(store.rows) == told(world.fold(seen))
    assert store.offsets == [c.offset for t, c in world.log.written if c.offset >= begins and str(t.id) in seen]
    read = Counter(one for one in store.read if one[0] != str(NOTES.id))  # equal rows without a key have one offset
    assert all(count == 1 for count in read.values())


@pytest.mark.parametrize("number", NUMBERS[:3])
def test_result_that_is_stored_with_its_cursor_is_the_fold_of_the_log(number: int, tmp_path: Path) -> None:
    """Killed anywhere, in the backfill and after it, between compactions and expiries: every change counts once."""
    seed = SEEDS[number]
    print(f"CDCFLOW_CONSUMER_SEED={seed}")
    run(seed, tmp_path)


@pytest.mark.parametrize("number", NUMBERS[:2])
def test_reader_that_commits_what_it_has_processed_misses_nothing(number: int, tmp_path: Path) -> None:
    """The same for one that keeps no cursor: each change at least once."""
    seed = SEEDS[number]
    print(f"CDCFLOW_CONSUMER_SEED={seed}")
    run(seed, tmp_path, stores=False)


@pytest.mark.parametrize("number", NUMBERS[:1])
def test_changes_of_tables_whose_shapes_change_are_returned_in_the_logs_order(number: int, tmp_path: Path) -> None:
    """Renamed and retyped columns, removed keys, recreated tables: a batch has one shape, and nothing is missing."""
    seed = SEEDS[number]
    print(f"CDCFLOW_CONSUMER_SEED={seed}")
    made = Histories(
        range(seed, seed + 12), HandLog(tmp_path / "log", has_transactions=True), modes=("history", "current")
    )
    chance, seen, bound = random.Random(seed), [], 1
    with cdcflow.open(made.log.root).consumer("c", start="now", state=tmp_path / "kept"):
        pass
    for _ in range(3):
        made.write_round()
        bound = chance.choice([3, 40, 1000])
        with cdcflow.open(made.log.root).consumer("c", batch_rows=bound, state=tmp_path / "kept") as consumer:
            for batch in consumer:
                assert batch.rows.schema.equals(batch.shape.log_schema)
                seen += [(batch.shape, offset) for offset in batch.rows.column(OFFSET).to_pylist()]
                consumer.commit(batch.cursor)
    assert seen == [(shape, change.offset) for shape, change in made.log.written]


def _cursor_too_far(patch: pytest.MonkeyPatch) -> None:
    right = batches.pieces
    patch.setattr(consuming, "pieces", lambda *given: (replace(p, last=p.last + 1) for p in right(*given)))


def _cursor_too_early(patch: pytest.MonkeyPatch) -> None:
    right = batches.pieces
    patch.setattr(consuming, "pieces", lambda *given: (replace(p, last=p.last - 1) for p in right(*given)))


def _any_order(patch: pytest.MonkeyPatch) -> None:
    right, chance = consuming._rows_of, random.Random(1)

    def shuffled(*given: Any) -> Any:
        shape, rows = right(*given)
        return shape, rows.take(chance.sample(range(rows.num_rows), rows.num_rows))

    patch.setattr(consuming, "_rows_of", shuffled)


def _rows_of_now(patch: pytest.MonkeyPatch) -> None:
    right = consuming._rows_of

    def newest(log: Any, table: Any, known: Any, standing: Any) -> Any:
        return right(log, table, replace(known, offset=log.now().offset), standing)

    patch.setattr(consuming, "_rows_of", newest)


def _expiry_without_consumers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept, "notes", lambda layout: [])


def _expiry_behind_the_backfill(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cursors.ConsumerState, "needed_from", property(lambda state: state.committed.offset + 1))


def _transactions_cut(patch: pytest.MonkeyPatch) -> None:
    right = batches.pieces
    patch.setattr(consuming, "pieces", lambda *given: (replace(p, ends_transaction=True) for p in right(*given)))


PLANTED = (
    _cursor_too_far,
    _cursor_too_early,
    _any_order,
    _rows_of_now,
    _expiry_without_consumers,
    _expiry_behind_the_backfill,
    _transactions_cut,
)


@pytest.mark.spread(2)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail, for each of its reasons."""
    plant(monkeypatch)
    for seed in range(1, 25):
        try:
            run(seed, tmp_path / str(seed))
        except (AssertionError, CdcflowError):
            return
    pytest.fail("no history showed it")
