"""How a current-state table follows the shapes of its source table.

A column is its number, not its name (PostgreSQL's attnum): a rename keeps the number, a column that is dropped and
added again under the same name gets another one and must not come back with the old one's values.

    shape 1   id#1  qty#2  note#3
    shape 2   id#1  amount#2        note#4       qty renamed, note dropped and added again
    table     id    amount          note__dropped_3   note

| the source did       | the table does                                                         |
| -------------------- | ---------------------------------------------------------------------- |
| added a column       | adds it; old rows get the constant default that the source gave them   |
| widened a type       | widens it                                                              |
| renamed a column     | renames it                                                             |
| dropped a column     | keeps it; new rows have NULL there                                     |
| dropped, added again | keeps the old one as `<name>__dropped_<number>`, adds the new one      |
| anything else        | stops, and names column, types and remedy                              |

Steps are values; `cdcflow.spark` carries them out, each only where the table does not show it yet, so that a crash
between two of them is mended by the next run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdcflow.errors import ConfigurationError
from cdcflow.merge.types import literal, stored, widens
from cdcflow.model.table import LOG_COLUMNS, MISSING, OFFSET, Column, Table

TARGET_VERSION = 1


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of a current-state table. `type` is Spark's text for it."""

    name: str
    number: int
    type: str


@dataclass(frozen=True, slots=True)
class Target:
    """What a current-state table looks like, without `_offset` and `_missing`. Kept in a property of the table."""

    incarnation: int
    key: tuple[str, ...]
    columns: tuple[TargetColumn, ...]

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": TARGET_VERSION,
                "incarnation": self.incarnation,
                "key": self.key,
                "columns": [[c.name, c.number, c.type] for c in self.columns],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Target:
        """Read what `to_json` wrote. ConfigurationError when a newer cdcflow wrote it."""
        value = json.loads(text)
        if value["version"] > TARGET_VERSION:
            raise ConfigurationError(
                f"the table was written by a newer cdcflow (version {value['version']} of its description)",
                remedy="merge with that cdcflow or a newer one",
            )
        columns = tuple(TargetColumn(name, number, type_) for name, number, type_ in value["columns"])
        return cls(value["incarnation"], tuple(value["key"]), columns)

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Where the key's columns are; all columns in a table without a key."""
        names = self.key or tuple(c.name for c in self.columns)
        at = {c.name: i for i, c in enumerate(self.columns)}
        return tuple(at[n] for n in names)


@dataclass(frozen=True, slots=True)
class Add:
    """Add a column. `default` (SQL) is what rows have that are there already; None means NULL."""

    column: TargetColumn
    default: str | None


@dataclass(frozen=True, slots=True)
class Rename:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Widen:
    name: str
    type: str


Step = Add | Rename | Widen


@dataclass(frozen=True, slots=True)
class Evolution:
    """`target` is what the table looks like after `steps`. `defaults` (SQL) by column number: what a row of a shape
    without that column has there. `fresh`: the table was dropped and made again at the source, so nothing of what
    stood in it before the newest incarnation's first row lives on."""

    target: Target
    steps: tuple[Step, ...]
    defaults: dict[int, str]
    fresh: bool = False


def evolve(target: Target | None, shapes: Sequence[Table]) -> Evolution:
    """What must happen to a table (None: it does not exist) before rows of these shapes, oldest first, can come.

    Shapes of an incarnation before the last one's are passed over: their rows died with their table.

    Raises:
        ConfigurationError: the table cannot follow; the message names column, types and remedy.
    """
    incarnation = shapes[-1].incarnation
    living = [s for s in shapes if s.incarnation == incarnation]
    for shape in living:
        _check_names(shape)
    fresh = (target is not None and target.incarnation != incarnation) or len(living) < len(shapes)
    if target is None:
        first = living[0]
        columns = tuple(TargetColumn(c.name, c.number, _type(first, c)) for c in first.columns)
        current = Target(incarnation, first.key, columns)
    else:
        current = target if target.incarnation == incarnation else _reborn(target, living[0])
    steps: list[Step] = []
    for shape in living:
        current, more = _follow(current, shape)
        steps.extend(more)
    return Evolution(current, tuple(steps if target is not None else ()), _defaults(living), fresh)


def _follow(target: Target, shape: Table) -> tuple[Target, list[Step]]:
    steps: list[Step] = []
    columns = list(target.columns)
    wanted = {c.number: c for c in shape.columns}
    # A name that the shape needs for another number is freed first: by its new name where the column lives on under
    # one (through a name of ours, because two columns may swap theirs), else by a name that says it was dropped.
    taken = {c.name.lower(): c.number for c in shape.columns}
    for i, column in enumerate(columns):
        if taken.get(column.name.lower(), column.number) == column.number:
            continue
        gone = column.number not in wanted
        free = f"{column.name}__dropped_{column.number}" if gone else f"__cdcflow_{column.number}"
        steps.append(Rename(column.name, free))
        columns[i] = replace(column, name=free)
    for i, column in enumerate(columns):
        new = wanted.get(column.number)
        if new is None:
            continue
        if new.name != column.name:
            steps.append(Rename(column.name, new.name))
        type_ = _widened(shape, column, _type(shape, new))
        if type_ != column.type:
            steps.append(Widen(new.name, type_))
        columns[i] = TargetColumn(new.name, column.number, type_)
    known = {c.number for c in columns}
    for new in shape.columns:
        if new.number not in known:
            added = TargetColumn(new.name, new.number, _type(shape, new))
            steps.append(Add(added, _default(shape, new)))
            columns.append(added)
    after = Target(shape.incarnation, shape.key, tuple(columns))
    _check_key(target, after, shape)
    return after, steps


def _reborn(target: Target, shape: Table) -> Target:
    """The same columns with the numbers that the new table of this name gives them."""
    numbers = {c.name.lower(): c.number for c in shape.columns}
    free = max([*numbers.values(), *(c.number for c in target.columns)]) + 1
    columns = []
    for column in target.columns:
        number = numbers.get(column.name.lower())
        if number is None:
            number, free = free, free + 1
        columns.append(replace(column, number=number))
    if target.key != shape.key:
        raise _cannot(shape, f"its key was ({', '.join(target.key)}) and is ({', '.join(shape.key)}) now")
    return Target(shape.incarnation, target.key, tuple(columns))


def _check_names(shape: Table) -> None:
    seen: set[str] = {OFFSET, MISSING, *LOG_COLUMNS}
    for column in shape.columns:
        if column.name.lower() in seen:
            raise ConfigurationError(
                f"table {shape.id}: column {column.name} has a name that the current-state table cannot hold,"
                " because Spark does not tell names apart by case and cdcflow's own begin with an underscore",
                remedy=f'rename it: ALTER TABLE {shape.id} RENAME COLUMN "{column.name}" TO …',
            )
        seen.add(column.name.lower())


def _check_key(before: Target, after: Target, shape: Table) -> None:
    def numbers(t: Target) -> list[int]:
        at = {c.name: c.number for c in t.columns}
        return [at[n] for n in t.key]

    if numbers(before) != numbers(after):
        raise _cannot(shape, f"its key was ({', '.join(before.key)}) and is ({', '.join(after.key)}) now")


def _widened(shape: Table, old: TargetColumn, new: str) -> str:
    if old.type == new or widens(new, old.type):
        return old.type
    if widens(old.type, new):
        return new
    raise _cannot(shape, f"column {old.name} was {old.type} and is {new} now, which does not hold the old values")


def _cannot(shape: Table, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"table {shape.id} cannot be merged further: {why}",
        remedy="move the table's folder away in the warehouse,"
        f" then run `cdcflow backfill {shape.id}` and `cdcflow merge`",
    )


def _type(shape: Table, column: Column) -> str:
    try:
        return stored(column.type.arrow).table
    except ConfigurationError as error:
        raise ConfigurationError(f"table {shape.id}, column {column.name}: {error}") from error


def _default(shape: Table, column: Column) -> str | None:
    if column.missing is None:
        return None
    found = literal(column.missing, _type(shape, column))
    if found is None:
        raise _cannot(
            shape,
            f"column {column.name} ({column.type.source}) was added with a default for the rows that were there,"
            " and cdcflow cannot write a constant of that type",
        )
    return found


def _defaults(shapes: Sequence[Table]) -> dict[int, str]:
    first = {c.number for c in shapes[0].columns}
    found: dict[int, str] = {}
    for shape in shapes[1:]:
        for column in shape.columns:
            if column.number not in first and column.number not in found:
                default = _default(shape, column)
                if default is not None:
                    found[column.number] = default
    return found
