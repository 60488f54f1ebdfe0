"""Random histories of changes for merges, and their fold: the result that every engine must produce.

The tables have each their own kind of trouble: partial rows and key changes, no key at all, shapes that change.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa

from cdcflow.log.fold.fold import FoldedRow, LogChange, exact, fold
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType

Step = tuple[Table, str, dict[str, Any]]
Written = tuple[Table, LogChange]
"""A change with the shape of its table then."""

State = dict[tuple[object, ...], tuple[dict[str, object], frozenset[str], int, int]]


def make_table(
    name: str = "orders",
    /,
    *,
    key: tuple[str, ...] = ("id",),
    schema: str = "public",
    incarnation: int = 1,
    numbers: Mapping[str, int] | None = None,
    missing: Mapping[str, str] | None = None,
    **columns: Any,
) -> Table:
    """make_table("orders", id="int64", doc="string", key=("id",)): columns are numbered in order, beginning with 1."""
    listed = []
    for i, (column, given) in enumerate((columns or {"id": "int64"}).items(), start=1):
        arrow = given if isinstance(given, pa.DataType) else pa.type_for_alias(given)
        number = (numbers or {}).get(column, i)
        listed.append(Column(column, number, ColumnType(str(arrow), arrow), missing=(missing or {}).get(column)))
    return Table(TableId(schema, name), incarnation, tuple(listed), key)


@dataclass
class World:
    """The tables of a log, the random source of their changes, and the fold of them so far."""

    chance: random.Random
    tables: dict[str, Table]
    histories: int
    defaults: Mapping[str, object] = field(default_factory=lambda: {"added": 7})
    rows: dict[str, dict[tuple[object, ...], FoldedRow]] = field(default_factory=dict)
    covered: Counter[str] = field(default_factory=Counter)

    def steps(self, name: str, count: int) -> Iterator[Step]:
        """`count` events of one table's histories; some are several changes that belong together."""
        table = self.tables[name]
        for _ in range(count):
            kind = self.chance.choices(
                ["insert", "update", "partial", "delete", "read", "move", "chain", "swap"],
                [4, 3, 6, 3, 3, 3, 1, 1],
            )[0]
            if not table.key:
                kind = self.chance.choices(["insert", "delete", "read"], [4, 3, 1])[0]
            self.covered[kind] += 1
            history = self.chance.randrange(self.histories)
            yield from ((table, op, values) for op, values in self._event(table, kind, history))

    def _event(self, table: Table, kind: str, history: int) -> Iterator[tuple[str, dict[str, Any]]]:
        def one() -> dict[str, Any]:
            return {"h": history, "id": self.chance.randrange(4)}

        match kind:
            case "insert":
                yield "c", one() | self._values(table)
            case "read":
                yield "r", one() | self._values(table)
            case "update":
                yield "u", one() | self._values(table)
            case "partial":
                yield "u", self._with_unchanged(table, one())
            case "delete":
                yield "d", one() if table.key else one() | self._values(table)
            case "move":
                yield from self._moves(table, one(), one())
            case "chain":
                places = [one() for _ in range(4)]
                for old, new in pairwise(places):
                    yield from self._moves(table, old, new)
            case "swap":
                first, second, spare = ({"h": history, "id": i} for i in self.chance.sample(range(6), 3))
                for old, new in ((first, spare), (second, first), (spare, second)):
                    yield from self._moves(table, old, new)

    def _moves(self, table: Table, old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "d", old
        row = self._with_unchanged(table, new) if self.chance.random() < 0.8 else new | self._values(table)
        yield "c", row | {"_before": old}

    def _values(self, table: Table) -> dict[str, Any]:
        """Few values, so that equal rows happen in the table without a key; NULLs too."""
        few = not table.key
        found: dict[str, Any] = {}
        for column in table.columns:
            if column.name not in ("h", "id"):
                number = self.chance.choice([None, 0, 1] if few else [*[None] * 10, *range(50)])
                is_text = number is not None and str(column.type.arrow) == "string"
                found[column.name] = f"{column.name}{number}" if is_text else number
        return found

    def _with_unchanged(self, table: Table, key: dict[str, Any]) -> dict[str, Any]:
        wide = [c.name for c in table.columns if c.name in ("doc", "note", "a", "added")]
        unchanged = self.chance.sample(wide, self.chance.randint(1, len(wide)))
        values = {k: v for k, v in self._values(table).items() if k not in unchanged}
        return key | values | {"_unchanged": unchanged}

    def apply(self, name: str, changes: Sequence[Written]) -> None:
        """Fold changes of one table; a column that a shape adds gives its default to the existing rows. A row without
        it was inserted later, and its value is unknown."""
        rows = self.rows.get(name, {})
        for number, (shape, stretch) in enumerate(groupby(changes, key=lambda pair: pair[0])):
            for column in shape.columns if number else ():
                if column.missing is not None:
                    rows = {
                        k: r
                        if column.name in r.missing
                        else FoldedRow(
                            {column.name: self.defaults[column.name], **r.values}, r.missing, r.offset, r.count
                        )
                        for k, r in rows.items()
                    }
            rows = fold(rows, [c for _, c in stretch], shape.key_columns, keyed=bool(shape.key))
        self.rows[name] = rows

    def expected(self, name: str) -> State:
        table = self.tables[name]
        names = [c.name for c in table.columns]
        found: State = {}
        for key, row in self.rows.get(name, {}).items():
            values = {n: row.values.get(n) for n in names if n not in row.missing}
            found[key] = (values, row.missing, row.offset, row.count)
        return found


def differences(expected: State, actual: State) -> list[str]:
    """What differs, one line per key: -0.0 is not 0.0."""
    keys = sorted(expected.keys() | actual.keys(), key=repr)
    return [
        f"{k}: fold {expected.get(k)} merge {actual.get(k)}"
        for k in keys
        if exact(expected.get(k)) != exact(actual.get(k))
    ]


def make_world(seed: int, histories: int) -> World:
    key = ("h", "id")
    plain: dict[str, Any] = {"h": "int32", "id": "int64", "a": "int32", "doc": "string", "note": "string"}
    tables = {
        "keyed": make_table("keyed", key=key, **plain),
        "bag": make_table("bag", key=(), h="int32", id="int64", a="int32", doc="string"),
        "growing": make_table("growing", key=key, **plain),
    }
    return World(random.Random(seed), tables, histories)


def segment_of(world: World, name: str, count: int, truncates: int) -> list[Step]:
    """The changes of one segment for one table, with truncates somewhere between events."""
    steps = list(world.steps(name, count))
    for _ in range(truncates):
        at = world.chance.randrange(len(steps))
        while "_before" in steps[at][2]:
            at -= 1
        steps.insert(at, (world.tables[name], "t", {}))
    return steps


def grow(world: World, round_: int) -> None:
    """The growing table gets a column with a default, then a wider type and one column less."""
    kept: dict[str, Any] = {"h": "int32", "id": "int64", "a": "int32", "doc": "string", "note": "string"}
    if round_ >= 1:
        kept["added"] = "int32"
    if round_ >= 2:
        kept["a"] = "int64"
        kept.pop("note")
    numbers = {"h": 1, "id": 2, "a": 3, "doc": 4, "note": 5, "added": 6}
    missing = {"added": "7"}
    world.tables["growing"] = make_table("growing", key=("h", "id"), numbers=numbers, missing=missing, **kept)


def write_round(world: World, log: Any, round_: int) -> None:
    """Segments of every table in a log made by hand, and the fold's result for them. In rounds 1 and 2 the growing
    table changes its shape, in round 2 the others are truncated."""
    before = len(log.written)
    for half in range(world.chance.choice([1, 2])):
        rows: list[Step] = []
        for name in world.tables:
            if name == "growing" and half == 0 and round_ < 3:
                grow(world, max(round_ - 1, 0))
                rows += segment_of(world, name, world.histories // 2, 0)
                grow(world, round_)
            rows += segment_of(world, name, world.histories, 2 if name != "growing" and round_ == 2 else 0)
        log.segment(rows)
    for name in world.tables:
        world.apply(name, [(t, c) for t, c in log.written[before:] if t.id.name == name])


def state_of(table: Table, rows: Iterable[Mapping[str, Any]]) -> State:
    """The rows of a current-state table, in the oracle's form."""
    names = [c.name for c in table.columns]
    found: State = {}
    for row in rows:
        missing = frozenset(row["_missing"] or ())
        key = tuple(row[c] for c in table.key_columns)
        count = found[key][3] + 1 if key in found else 1
        found[key] = ({n: row[n] for n in names if n not in missing}, missing, row["_offset"], count)
    return found


def assert_as_folded(world: World, actual: Callable[[Table], Iterable[Mapping[str, Any]]], told: str) -> None:
    """Check that every table's rows equal the fold's. `told` describes how to reproduce this state."""
    for name, table in world.tables.items():
        found = differences(world.expected(name), state_of(table, actual(table)))
        assert not found, "\n".join([f"{told}, {name}: {len(found)} keys differ", *found[:5]])
