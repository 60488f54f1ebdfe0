"""Consumers of random logs: whoever stores result and cursor together ends with exactly the fold of the log.

A seed runs alone with `CDCFLOW_CONSUMER_SEED=<seed>`.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from handlog import HandLog
from mergehistories import make_table

import cdcflow
from cdcflow.changelog.layout import Layout
from cdcflow.errors import CdcflowError
from cdcflow.merge.fold import Change, Row, fold
from cdcflow.model.table import BEFORE, LOG_COLUMNS, OFFSET, OP, UNCHANGED, Table
from cdcflow.query import batching
from cdcflow.query.consuming import Batch
from cdcflow.sinks import consumers as kept
from cdcflow.sinks.expiring import Expiring, Policy

SEED = int(os.environ.get("CDCFLOW_CONSUMER_SEED", "0"))
SEEDS = [SEED] if SEED else [random.SystemRandom().randrange(1, 10**8) for _ in range(6)]

ORDERS = make_table("orders", id="int64", a="string", b="int64")
PAIRS = make_table("pairs", key=("x", "y"), x="string", y="int64", v="string")
NOTES = make_table("notes", key=(), text="string", n="int64")
LATE = make_table("late", id="int64", v="string")
TABLES = (ORDERS, PAIRS, NOTES, LATE)
Rows = dict[str, dict[tuple[object, ...], Row]]


@dataclass
class World:
    """Tables of a database and the log of their changes; transactions have rows of several tables."""

    root: Path
    chance: random.Random
    log: HandLog = field(init=False)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
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
        """A segment of so many transactions."""
        steps: list[tuple[Table, str, dict[str, Any]]] = []
        for _ in range(count):
            self.transactions += 1
            for _ in range(self.chance.choice([1, 1, 2, 5, 12])):
                table = self.chance.choice(TABLES if self.late else TABLES[:3])
                steps += [(t, op, {**row, "_txn": self.transactions}) for t, op, row in self._change(table)]
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

    def compact(self) -> None:
        self.log.compact(self.chance.randint(2, 4))

    def expire(self) -> None:
        """As little as possible is kept."""
        Expiring(Layout(self.root), Policy(0.001, None, []), lambda event, fields: None, every_s=600).step()


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
    """A reader's own store: result and cursor, which change together."""

    rows: Rows = field(default_factory=dict)
    cursor: str | None = None

    def take(self, batch: Batch) -> None:
        changes = [_change(batch.shape, row) for row in batch.rows.to_pylist()]
        done = fold(self.rows.get(batch.table, {}), changes, batch.shape.key_columns, keyed=bool(batch.shape.key))
        self.rows[batch.table], self.cursor = done, batch.cursor


def _change(shape: Table, row: Mapping[str, Any]) -> Change:
    unchanged = frozenset(row[UNCHANGED] or ())
    own = {name: value for name, value in row.items() if name not in LOG_COLUMNS and name not in unchanged}
    if row[OP] == "t":
        own = {}
    return Change(row[OFFSET], row[OP], own, unchanged, row[BEFORE])


def told(rows: Rows) -> Any:
    """Rows for comparing: of a table without a key how often each is there."""
    return {
        table: {key: (dict(row.values), row.count) for key, row in found.items()}
        for table, found in rows.items()
        if found
    }


class Killed(Exception):
    """A reader's process ended."""


def read_some(root: Path, name: str, store: Store, chance: random.Random, *, commits: bool, tables: Any) -> None:
    """Read on from where the store is, and be killed at some batch, or reach the end."""
    killed_at = chance.choice([0, 1, 2, 5, None])
    bound = chance.choice([1, 2, 7, 1000])
    with cdcflow.open(root).consumer(name, tables, batch_rows=bound) as consumer:
        after = store.cursor
        for number, batch in enumerate(consumer.read(after)):
            assert batch.rows.num_rows <= bound
            if number == killed_at:
                raise Killed
            store.take(batch)
            if commits and chance.random() < 0.8:
                consumer.commit(batch.cursor)


@pytest.mark.parametrize("seed", SEEDS)
def test_result_that_is_stored_with_its_cursor_is_the_fold_of_the_log(seed: int, tmp_path: Path) -> None:
    """Killed anywhere, in the backfill and behind it, between compactions and expiries: every change counts once."""
    chance = random.Random(seed)
    window, batching.windows.__defaults__ = batching.windows.__defaults__, (chance.choice([3, 50, 1 << 16]),)
    try:
        world = World(tmp_path / "log", chance)
        for _ in range(chance.randint(0, 3)):
            world.write(chance.randint(1, 12))
        names = chance.choice([None, ("public.orders", "public.notes"), ("public.pairs",)])
        store = Store()
        for number in range(10):
            try:
                read_some(world.root, "c", store, chance, commits=True, tables=names)
            except Killed:
                pass
            world.late |= number == 3
            if chance.random() < 0.7:
                world.write(chance.randint(1, 12))
            if chance.random() < 0.4:
                world.compact()
            if chance.random() < 0.4:
                world.expire()
        with cdcflow.open(world.root).consumer("c") as consumer:
            for batch in consumer.read(store.cursor):
                store.take(batch)
                consumer.commit(batch.cursor)
        expected = world.fold(names or tuple(str(t.id) for t in TABLES))
        assert told(store.rows) == told(expected), f"CDCFLOW_CONSUMER_SEED={seed}"
    finally:
        batching.windows.__defaults__ = window
