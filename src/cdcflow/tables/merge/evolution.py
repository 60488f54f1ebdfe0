"""How a current-state table follows the shapes of its source table (docs/tables.md; the reasons: docs/decisions/0010).

A column is its number, not its name (PostgreSQL's attnum): a rename keeps the number, a column that is dropped and
added again under the same name gets a new number and must not return with the old one's values.

    shape 1   id#1  qty#2  note#3
    shape 2   id#1  amount#2        note#4       qty renamed, note dropped and added again
    table     id    amount          note__dropped_3   note

An evolution is several commits, and a run may die between any two:

    describe   which ids the columns have, and which columns will be added         "open"
    steps      rename, widen, add, fill
    describe   the table's new names and numbers                                   closed

The next run finds an open description, reads names and types by the ids that the format gives its columns, and evolves
from that state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdcflow.errors import ConfigurationError
from cdcflow.model.sqltypes import literal, stored_type, widens
from cdcflow.model.table import LOG_COLUMNS, MISSING, OFFSET, Column, Table
from cdcflow.tables.merge.acts import Act, Add, Describe, Empty, Fill, MissAlso, MissOnly, Rename, Step, Widen
from cdcflow.tables.merge.column_versions import (
    base_name,
    number_columns,
    numbered_as,
    source_number,
    version_name,
    version_of,
    widened_type,
)
from cdcflow.tables.merge.format import ANY, Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.refusals import CannotFollow, cannot, in_the_way
from cdcflow.tables.merge.target import TARGET_VERSION, Target, TargetColumn


@dataclass(frozen=True, slots=True)
class Evolution:
    """The change of a table's shape: `before` is the table now (`None` if it does not exist), `target` the table after
    `steps`.

    `defaults` (SQL) by column number: the value in a row of a shape without that column. `fresh`: the table was dropped
    and recreated at the source, so no row from before the first row of the latest incarnation remains. `added`: columns
    that `before` does not describe yet. `mode`: the mode of the table. `numbered`: the shapes of the latest
    incarnation, with the numbers that their columns have in the table (`tables.merge.column_versions`), and `current`
    the table's columns with the numbers that these give them.
    """

    target: Target
    steps: tuple[Step, ...]
    defaults: dict[int, str]
    fresh: bool
    numbered: tuple[Table, ...]
    before: Target | None = None
    added: tuple[TargetColumn, ...] = ()
    current: Target | None = None
    mode: ModeRules = CURRENT

    def acts(self) -> Iterator[Act]:
        """Yield the acts that bring the table from `before` to `target`, one for each commit."""
        before = self.before
        if before is None:
            return
        names = [c.name for c in before.columns]
        if self.steps:
            announced = tuple(replace(column, added=True) for column in self.added)
            described = before.as_described()
            yield Describe(replace(described, columns=(*described.columns, *announced), is_open=True))
        if before.is_open:  # a job died on the way; perhaps all that it left to do is this
            yield MissOnly(tuple(names), self.mode.names)
        for step in self.steps:
            match step:
                case Rename(old, new):
                    names = [new if name == old else name for name in names]
                    yield MissAlso(old, new, self.mode.names)
                    yield step
                    yield MissOnly(tuple(names), self.mode.names)
                case Add(column, default):
                    names.append(column.name)
                    yield step
                    if default is not None and not self.fresh:
                        yield Fill(column, default, self.mode.open_only)
                case Fill():
                    yield replace(step, only=self.mode.open_only)
                case Widen() | Empty():
                    yield step
        if self.steps or self.target != replace(before.as_described(), others=()):
            yield Describe(self.target)


def evolve(
    target: Target | None,
    shapes: Sequence[Table],
    at: int | None = None,
    format_: Format = ANY,
    mode: ModeRules = CURRENT,
    *,
    new_versions: bool = False,
) -> Evolution:
    """Return what must happen to a table (`None` if it does not exist) before rows of these shapes, oldest first, can
    be merged. A shape that returned after a different one is listed twice.

    Shapes of an incarnation before the last one's are skipped: their rows were dropped with their table. `at`: the cut
    at which the table is. `format_`: the table's format. `mode`: the table's mode. Tables whose rows are changes have
    no key, and keep their values of a column that was dropped. `new_versions`: if a column cannot hold its new type, a
    version of it is added.

    Raises:
        CannotFollow: the message names column, types and remedy.
    """
    mode.check(shapes[-1])
    if mode.keeps_changes:
        shapes = [_of_changes(shape) for shape in shapes]
    incarnation = shapes[-1].incarnation
    living = [s for s in shapes if s.incarnation == incarnation]
    for shape in living:
        _check_names(shape, mode)
    fresh = len(living) < len(shapes)
    if target is None:
        first = living[0]
        current = Target(
            incarnation,
            first.key,
            tuple(TargetColumn(c.name, c.number, format_.holds(_type(first, c))) for c in first.columns),
        )
    else:
        if target.version < TARGET_VERSION and target.incarnation == incarnation:
            target = _detach_columns(target, living[0])
        fresh = fresh or target.incarnation != incarnation or (at is not None and target.emptied_at == at)
        current = _announced_apart(target) if target.incarnation == incarnation else _reborn(target, living)
    goal = current
    living = list(number_columns(current, living, format_, new=new_versions, finds_rows=not mode.keeps_changes))
    for shape in living:
        goal = _follow(goal, shape, format_, mode)
    there = {c.number for c in current.columns} if target is not None else set()
    gone = frozenset[int]()
    if not living[-1].key and not mode.keeps_changes:
        gone = frozenset(c.number for c in goal.columns if c.number > 0) - {c.number for c in living[-1].columns}
        goal = replace(goal, columns=tuple(c for c in goal.columns if c.number in there or c.number not in gone))
    # What a merge of changes announced for a later incarnation, before it died, is announced still.
    now = {c.number for c in living[-1].columns}
    columns = tuple(
        replace(c, added=c.added and mode.keeps_changes and c.number not in now, was="") for c in goal.columns
    )
    after = replace(
        goal,
        columns=_numbered_apart(columns, [replace(c, number=0) if c.number in gone else c for c in columns]),
        is_open=False,
        emptied_at=at if fresh else None,
        others=(),
        version=TARGET_VERSION,
        dropped=tuple(sorted({c.number for c in columns if c.number > 0} - {c.number for c in living[-1].columns})),
    )
    shapes = tuple(living)
    if target is None:
        return Evolution(after, (), _defaults(living), fresh, shapes, mode=mode)
    steps = list(_steps(current, goal, living, fresh))
    if not fresh:
        steps += [Empty(c.name) for c in columns if c.number in gone]
    added = tuple(replace(c, id=None) for c in columns if c.number not in there)
    return Evolution(after, tuple(steps), _defaults(living), fresh, shapes, target, added, current, mode)


def _of_changes(shape: Table) -> Table:
    """Return the shape without its key and without defaults for existing rows, for a table whose rows are changes: no
    key tells them apart, and no statement adds a value to an older change."""
    return replace(shape, key=(), columns=tuple(replace(column, missing=None) for column in shape.columns))


def _follow(target: Target, shape: Table, format_: Format, mode: ModeRules) -> Target:
    """Return the description of the table once it has rows of this shape."""
    wanted = {c.number: c for c in shape.columns}
    names = _names(target, shape)
    taken = {name.lower() for name in (*names.values(), *target.others)}
    # If a name is needed for another number, the column that has it is renamed to show that it was dropped.
    kept = {c.name.lower() for c in target.columns if c.number not in wanted} - taken
    columns: list[TargetColumn] = []
    for column in target.columns:
        new = wanted.get(column.number)
        if new is not None:
            type_ = _widened_type(shape, column, format_.holds(_type(shape, new)), format_, mode)
            columns.append(replace(column, name=names[new.number], type=type_))
        elif column.name.lower() in kept:
            columns.append(column)
        else:
            name = _free(f"{column.name}__dropped_{source_number(abs(column.number))}", taken | kept)
            columns.append(replace(column, name=name))
    known = {c.number for c in columns}
    columns += [
        TargetColumn(names[c.number], c.number, format_.holds(_type(shape, c)))
        for c in shape.columns
        if c.number not in known
    ]
    after = replace(target, incarnation=shape.incarnation, key=shape.key, columns=tuple(columns))
    _check_key(target, after, shape)
    return after


def _names(target: Target, shape: Table) -> dict[int, str]:
    """Return the table's names for the columns of a shape, by number: the source's names, except for versions of
    columns."""
    names = {c.number: c.name for c in shape.columns if version_of(c.number) == 1}
    now = {c.number: c.name for c in target.columns}
    numbers = {c.number for c in shape.columns}
    kept = {name.lower() for number, name in now.items() if number not in numbers}
    others = {name.lower() for name in target.others}
    for column in shape.columns:
        if column.number not in names:
            taken = {name.lower() for name in names.values()} | kept | others
            names[column.number] = version_name(column, now.get(column.number), taken)
    return names


def _steps(current: Target, goal: Target, living: Sequence[Table], fresh: bool) -> Iterator[Step]:
    """Yield the steps from `current` to `goal`, such that two columns never have the same name."""
    was = {c.number: c for c in current.columns}
    names = {c.number: c.name for c in current.columns}
    held = {c.name.lower() for c in current.columns}
    waiting = [c for c in goal.columns if c.number in was]
    for column in waiting:
        if column.name != names[column.number] and column.name.lower() in {name.lower() for name in current.others}:
            raise in_the_way(living[-1], column)
    while waiting:
        ready = [c for c in waiting if c.name == names[c.number] or c.name.lower() not in held]
        # A circle of names, or other letters only: one of them steps aside.
        column = ready[0] if ready else waiting[0]
        old, new = names[column.number], column.name if ready else _free(f"__cdcflow_{column.number}", held)
        if new != old:
            yield Rename(old, new)
            held = held - {old.lower()} | {new.lower()}
            names[column.number] = new
        if ready:
            waiting.remove(column)
            if column.type != was[column.number].type:
                yield Widen(column.name, column.type)
    for column in goal.columns:
        before = was.get(column.number)
        if before is not None and not before.added:
            continue
        default = _first_default(column.number, living)
        if before is None and not _is_taken_over(column, current, living[-1]):
            yield Add(replace(column, id=None), default)
        elif default is not None and not fresh:
            yield Fill(replace(column, id=None, added=False, was=""), default)


def _is_taken_over(column: TargetColumn, current: Target, shape: Table) -> bool:
    """Return whether the column exists already, because an older cdcflow added it and died before it recorded it."""
    if column.name.lower() not in {name.lower() for name in current.others}:
        return False
    if current.version < TARGET_VERSION:
        return True
    raise in_the_way(shape, column)


def _free(name: str, taken: set[str]) -> str:
    free, count = name, 1
    while free.lower() in taken:
        count += 1
        free = f"{name}_{count}"
    return free


def _reborn(target: Target, living: Sequence[Table]) -> Target:
    """Return the description with the numbers that the first shape of the recreated table gives columns of these names.

    A column that the recreated table lacks gets a number below zero, which no column of the source ever has.
    """
    shape, key = living[0], target.as_described().key
    if key != shape.key:
        raise cannot(shape, f"its key was ({', '.join(key)}) and is ({', '.join(shape.key)}) now")
    first = {c.name.lower(): c.number for c in shape.columns}
    # An announced column may be the new table's already, and one that it did not have from the beginning.
    any_ = {c.name.lower(): c.number for s in living for c in s.columns}
    given: set[int] = set()
    columns = []
    for column in target.columns:
        name, version = column.was or column.name, version_of(column.number)
        number = (any_ if column.added else first).get((base_name(name) if version > 1 else name).lower(), 0)
        number = numbered_as(number, version) if number else 0
        columns.append(replace(column, number=0 if number in given else number))
        given.add(number)
    return replace(target, incarnation=shape.incarnation, columns=_numbered_apart(target.columns, columns))


def _announced_apart(target: Target) -> Target:
    """Return the description with new numbers for announced columns whose number an existing column has.

    Such a column belongs to a later incarnation. In a mode that keeps the rows of each incarnation, a merge that
    follows one that died begins again with the oldest incarnation.
    """
    numbers = {c.number for c in target.columns if not c.added}
    columns = [replace(c, number=0) if c.added and c.number in numbers else c for c in target.columns]
    return replace(target, columns=_numbered_apart(target.columns, columns))


def _detach_columns(target: Target, shape: Table) -> Target:
    """Return the description with numbers below zero for columns that an older cdcflow numbered above all of the
    source's.

    It did so for columns that a recreated table lacks. A later column of the source could get the same number.
    """
    greatest = max((c.number for c in shape.columns), default=0)
    named = {c.number for c in shape.columns}
    columns = [replace(c, number=0) if c.number > greatest and c.number not in named else c for c in target.columns]
    return replace(target, columns=_numbered_apart(target.columns, columns))


def _numbered_apart(before: Sequence[TargetColumn], columns: Sequence[TargetColumn]) -> tuple[TargetColumn, ...]:
    """Return the columns with a number below zero in place of each 0: the negative of the number that the column had in
    `before`, unless another column has that one."""
    taken = {c.number for c in columns}
    found: list[TargetColumn] = []
    for old, column in zip(before, columns, strict=True):
        number = column.number
        if number == 0:
            number = -abs(old.number)
            if number in taken:
                number = min(taken) - 1
            taken.add(number)
        found.append(replace(column, number=number))
    return tuple(found)


def _check_names(shape: Table, mode: ModeRules) -> None:
    seen: set[str] = {OFFSET, MISSING, *LOG_COLUMNS, *(name.lower() for name in mode.own)}
    for column in shape.columns:
        if column.name.lower() in seen:
            raise CannotFollow(
                f"table {shape.id}: column {column.name} has a name that the current-state table cannot hold, "
                f"because Spark ignores case in names and cdcflow's own begin with an underscore",
                remedy=f'rename it: ALTER TABLE {shape.id} RENAME COLUMN "{column.name}" TO …; or, if `tables` in the '
                "settings gives it this name, choose another name there",
            )
        seen.add(column.name.lower())


def _check_key(before: Target, after: Target, shape: Table) -> None:
    def numbers(t: Target) -> list[int]:
        at = {c.name: c.number for c in t.columns}
        return [at[n] for n in t.key]

    if numbers(before) != numbers(after):
        raise cannot(shape, f"its key was ({', '.join(before.key)}) and is ({', '.join(after.key)}) now")


def _widened_type(shape: Table, old: TargetColumn, new: str, format_: Format, mode: ModeRules) -> str:
    found = widened_type(old.type, new, format_)
    if found is not None:
        return found
    why = "which does not hold the old values"
    if widens(old.type, new):
        why = f"and {format_.name} cannot widen that"
    is_key = any(c.name in shape.key_columns for c in shape.columns if c.number == old.number)
    may_be_versioned = mode.keeps_changes or not is_key
    raise cannot(shape, f"column {old.name} was {old.type} and is {new} now, {why}", may_be_versioned=may_be_versioned)


def _type(shape: Table, column: Column) -> str:
    try:
        return stored_type(column.type.arrow).table
    except ConfigurationError as error:
        raise CannotFollow(f"table {shape.id}, column {column.name}: {error}") from error


def _default(shape: Table, column: Column) -> str | None:
    if column.missing is None:
        return None
    found = literal(column.missing, _type(shape, column))
    if found is None:
        raise cannot(
            shape,
            f"column {column.name} ({column.type.source}) was added with a default for the existing rows,"
            " and cdcflow cannot write a constant of that type",
        )
    return found


def _first_default(number: int, shapes: Sequence[Table]) -> str | None:
    for shape in shapes:
        for column in shape.columns:
            if column.number == number:
                return _default(shape, column)
    return None


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
