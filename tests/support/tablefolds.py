"""What the fold makes of a table whose shape changes, merge by merge: what its current-state table is to be.

Columns are called by their numbers, so that a rename changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby
from typing import Any

import pyarrow as pa
from mergehistories import State, Written

from cdcflow.merge.fold import Change, Row, fold, swept
from cdcflow.merge.policy import TablePolicy
from cdcflow.model.table import Column, Table


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of columns. `family`: what a table can hold in one column; `default`: text and value of a constant that a
    new column may give the rows that are there."""

    arrow: pa.DataType
    family: str
    wider: str | None = None
    narrower: str | None = None
    default: tuple[str, object] | None = None


KINDS = {
    "int": Kind(pa.int32(), "whole", wider="long", default=("7", 7)),
    "long": Kind(pa.int64(), "whole", narrower="int", default=("-7", -7)),
    "text": Kind(pa.string(), "text", default=("it's \\ `7`", "it's \\ `7`")),
    "price": Kind(pa.decimal128(8, 2), "money", wider="sum", default=("7.25", Decimal("7.25"))),
    "sum": Kind(pa.decimal128(12, 2), "money", narrower="price", default=("7.00", Decimal(7))),
    "flag": Kind(pa.bool_(), "flag", default=("true", True)),
    "real": Kind(pa.float32(), "ratio", wider="ratio"),
    "ratio": Kind(pa.float64(), "ratio"),
    "day": Kind(pa.date32(), "day"),
}
DEFAULTS = dict(kind.default for kind in KINDS.values() if kind.default is not None)
FAMILY = {kind.arrow: kind.family for kind in KINDS.values()}


class Folded:
    """The fold of one table's changes. Columns are called by their numbers, as text."""

    def __init__(self) -> None:
        self.rows: dict[tuple[object, ...], Row] = {}
        self.shape: Table | None = None
        self.known: set[str] = set()

    def add(self, changes: Iterable[Written]) -> None:
        """What is merged at one time. Rows without a key are told apart by the columns of the newest shape."""
        listed = list(changes)
        if listed and not listed[-1][0].key:
            listed = list(_in_shape(listed[-1][0], listed))
        for shape, stretch in groupby(listed, key=lambda pair: pair[0]):
            self.reshape(shape)
            keys = tuple(str(c.number) for n in shape.key_columns for c in shape.columns if c.name == n)
            numbered = [_by_number(shape, c) for _, c in stretch]
            self.rows = fold(self.rows, numbered, keys, keyed=bool(shape.key))

    def reshape(self, shape: Table) -> None:
        """Rows of a table that was dropped are gone; a new column gives its default to those that are there. One that
        has it already, or misses it, came later."""
        before, self.shape = self.shape, shape
        if before is None or before.incarnation != shape.incarnation:
            self.rows, self.known = {}, set()
        for column in shape.columns:
            number = str(column.number)
            if before is not None and number not in self.known:
                default = _default(column)
                self.rows = {
                    k: r if number in r.missing else Row({number: default, **r.values}, r.missing, r.offset, r.count)
                    for k, r in self.rows.items()
                }
            self.known.add(number)
        if not shape.key:
            self._count_again(shape)

    def _count_again(self, shape: Table) -> None:
        """Rows without a key are told apart by the columns that there are."""
        numbers = [str(c.number) for c in shape.columns]
        found: dict[tuple[object, ...], Row] = {}
        for row in self.rows.values():
            values = {n: row.values.get(n) for n in numbers}
            key = tuple(values.values())
            same = found.get(key)
            offset, count = (0, 0) if same is None else (same.offset, same.count)
            found[key] = Row(values, row.missing, max(offset, row.offset), count + row.count)
        self.rows = found


def _in_shape(newest: Table, changes: Iterable[Written]) -> Iterator[Written]:
    """Changes in the columns of another shape; those of a table that was dropped are gone."""
    for shape, change in changes:
        if shape.incarnation == newest.incarnation:
            names = {c.number: c.name for c in shape.columns}
            values = {
                c.name: change.values.get(names[c.number]) if c.number in names else _default(c) for c in newest.columns
            }
            yield newest, replace(change, values=values, before=None)


def _by_number(shape: Table, change: Change) -> Change:
    numbers = {c.name: str(c.number) for c in shape.columns}
    return replace(
        change,
        values={numbers[n]: v for n, v in change.values.items()},
        unchanged=frozenset(numbers[n] for n in change.unchanged),
        before=None if change.before is None else {numbers[n]: v for n, v in change.before.items()},
    )


def _default(column: Column) -> object:
    return None if column.missing is None else DEFAULTS[column.missing]


VERSION = 1000
"""What is added to a column's number where its type is another one than the table's column has."""


class Merged:
    """What merges make of one table: which changes are in it, since when, and whether it can follow at all, or may."""

    def __init__(self) -> None:
        self.policy = TablePolicy()
        self.types: dict[int, pa.DataType] = {}
        self.is_refused = False
        self.log: list[Written] = []
        self.done = 0
        self.folded: Folded | None = None
        self.columns: dict[int, tuple[str, str]] = {}
        self.begun = 0
        self.is_left_out = False

    @property
    def is_there(self) -> bool:
        return self.folded is not None

    def move_away(self) -> None:
        self.folded, self.done = None, 0

    def merge(self, entry: Mapping[str, Any]) -> None:
        self.is_left_out = self.is_refused = False
        floor, since = _floor(entry), entry.get("since", 0)
        if self.folded is not None:
            new = self.log[self.done :]
            shapes = [shape for shape, _ in new]
            self.is_refused = not self._may_follow(shapes)
            if self.is_refused or not self._follows(shapes):
                self.is_left_out = True
                return
            self.folded.add(self._versioned(new))
        elif self.log:
            begins = [floor or 0]
            if entry.get("state") in ("waiting", "reading") and since > begins[0]:
                begins.append(since)
            for begin in begins:
                # At least one row, of which the table learns its columns.
                new = [w for w in self.log if w[1].offset >= min(begin, self.log[-1][1].offset)]
                self.columns, self.types = {}, {}
                if self._follows([shape for shape, _ in new]):
                    break
            else:
                self.is_left_out = True
                return
            self.begun, self.folded = begin, Folded()
            self.folded.add(self._versioned(new))
        else:
            return
        self.done = len(self.log)
        self.folded.rows = swept(self.folded.rows, floor or 0)

    def is_whole(self, entry: Mapping[str, Any]) -> bool:
        floor = _floor(entry)
        return floor is not None and self.begun <= floor

    def _follows(self, shapes: Sequence[Table]) -> bool:
        """Whether the table takes rows of these shapes, of which it learns its columns (name and family by number)."""
        living = [s for s in shapes if s.incarnation == shapes[-1].incarnation]  # none, where there is no shape
        columns, last = dict(self.columns), None if self.folded is None else self.folded.shape
        for shape in living:
            if last is not None and last.incarnation != shape.incarnation:
                if last.key != shape.key:
                    return False
                # By name; what the new table lacks is no column of its.
                by_name = {name.lower(): family for name, family in columns.values()}
                columns = {
                    c.number: (c.name, by_name[c.name.lower()]) for c in shape.columns if c.name.lower() in by_name
                }
            elif last is not None and _key_numbers(last) != _key_numbers(shape):
                return False
            for column in shape.columns:
                family = FAMILY[column.type.arrow]
                held = columns.setdefault(column.number, (column.name, family))[1]
                fixed = self.policy.incompatible == "stop" or column.name in shape.key_columns
                if held != family and fixed:
                    return False
                columns[column.number] = column.name, held
            # A column that is dropped keeps its name until another needs it.
            names = {c.name.lower() for c in shape.columns}
            numbers = {c.number for c in shape.columns}
            columns = {
                n: (name if n in numbers or name.lower() not in names else f"?{n}", family)
                for n, (name, family) in columns.items()
            }
            last = shape
        self.columns = columns
        before = None if self.folded is None else self.folded.shape
        if living and before is not None and before.incarnation != living[-1].incarnation:
            self.types = self._types_by_name(living)
        for shape in living:
            for column in shape.columns:
                held_type = self.types.setdefault(column.number, column.type.arrow)
                if _is_wider(column.type.arrow, held_type):
                    self.types[column.number] = column.type.arrow
        return True

    def _types_by_name(self, living: Sequence[Table]) -> dict[int, pa.DataType]:
        """The types that a table made again finds in the columns of the old one."""
        assert self.folded is not None
        assert self.folded.shape is not None
        old = {c.name.lower(): self.types[c.number % VERSION] for c in self.folded.shape.columns}
        return {c.number: old[c.name.lower()] for c in living[0].columns if c.name.lower() in old}

    def _may_follow(self, shapes: Sequence[Table]) -> bool:
        """Whether its policy allows what the source did to the table's shape."""
        last = None if self.folded is None else self.folded.shape
        living = [s for s in shapes if s.incarnation == shapes[-1].incarnation]
        if self.policy.evolve == "evolve" or last is None or not living:
            return True
        was, types = {c.number % VERSION: c.name for c in last.columns}, self.types
        if last.incarnation != living[0].incarnation:
            by_name = {c.name.lower(): c.number for c in living[0].columns}
            if any(name.lower() not in by_name for name in was.values()):
                return False
            types = self._types_by_name(living)
            was = {by_name[name.lower()]: name for name in was.values()}
        now = {c.number: c.name for c in living[-1].columns}
        if any(now.get(number) != name for number, name in was.items()):
            return False
        if any(_is_wider(c.type.arrow, types.get(c.number)) for s in living for c in s.columns):
            return False
        come = {c.number for s in (living if last.key else living[-1:]) for c in s.columns} - was.keys()
        held = {c.number: types.get(c.number, c.type.arrow) for s in living for c in s.columns}
        retyped = {c.number for s in living for c in s.columns if FAMILY[c.type.arrow] != FAMILY[held[c.number]]}
        return self.policy.evolve == "add_only" or not come | (retyped - self.retyped)

    @property
    def retyped(self) -> set[int]:
        """Columns that have a version already."""
        columns = () if self.folded is None or self.folded.shape is None else self.folded.shape.columns
        return {c.number % VERSION for c in columns if c.number > VERSION}

    def _versioned(self, written: Sequence[Written]) -> list[Written]:
        """The same with other numbers for columns of another type than the table's column has."""

        def numbered(shape: Table) -> Table:
            if shape.incarnation != written[-1][0].incarnation:
                return shape
            columns = (
                replace(c, number=c.number + VERSION * (self.columns[c.number][1] != FAMILY[c.type.arrow]))
                for c in shape.columns
            )
            return replace(shape, columns=tuple(columns))

        return [(numbered(shape), change) for shape, change in written]

    def table_names(self) -> dict[str, str]:
        """What the table calls the columns of its newest shape."""
        columns = () if self.folded is None or self.folded.shape is None else self.folded.shape.columns
        return {c.name: f"{c.name}__2" if c.number > VERSION else c.name for c in columns}

    def expected(self) -> State:
        """What the table has in the columns of its newest shape."""
        if self.folded is None or self.folded.shape is None:
            return {}
        names = {str(c.number): c.name for c in self.folded.shape.columns}
        found: State = {}
        for key, row in self.folded.rows.items():
            missing = frozenset(names[n] for n in row.missing if n in names)
            values = {name: row.values.get(n) for n, name in names.items() if name not in missing}
            found[key] = values, missing, row.offset, row.count
        return found


def _is_wider(new: pa.DataType, old: pa.DataType | None) -> bool:
    wider = {KINDS[k.wider].arrow: k.arrow for k in KINDS.values() if k.wider is not None}
    return old is not None and wider.get(new) == old


def _floor(entry: Mapping[str, Any]) -> int | None:
    """From where on the log has every row."""
    found: int | None = entry["since"] if entry.get("state") == "done" else entry.get("whole_since")
    return found


def _key_numbers(shape: Table) -> list[int]:
    return [c.number for n in shape.key for c in shape.columns if c.name == n]
