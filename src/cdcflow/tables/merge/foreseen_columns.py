"""Foresee what a table in the warehouse will look like after a statement at its source that was not executed
yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcflow.model.table import Table
from cdcflow.tables.merge.evolution import Evolution, evolve
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import ModeRules
from cdcflow.tables.merge.policy import TablePolicy
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.merge.shape_policy import check_allowed, check_member
from cdcflow.tables.merge.target import Target


@dataclass(frozen=True, slots=True)
class ForeseenColumn:
    """A column that changes. `before` and `after`: its name and type, `None` if it does not exist at that time.
    `is_left`: the source no longer has it, and the table keeps its values."""

    before: tuple[str, str] | None
    after: tuple[str, str] | None
    is_left: bool = False

    def __str__(self) -> str:
        if self.before is None and self.after is not None:
            return f"new: {self.after[0]} {self.after[1]}"
        if self.before is None or self.after is None:
            return ""
        name, type_ = self.before
        if self.is_left:
            under = "" if self.after[0] == name else f", under the name {self.after[0]}"
            return f"kept: {name}{under}; new rows have NULL in it"
        renamed = "" if self.after[0] == name else f"renamed: {name} → {self.after[0]}"
        retyped = "" if self.after[1] == type_ else f"retyped: {self.after[0]} {type_} → {self.after[1]}"
        return ", ".join(filter(None, (renamed, retyped)))


@dataclass(frozen=True, slots=True)
class ForeseenTable:
    """A table before and after a change at its source. `before` and `after`: the table as a merge would describe it.
    `refusal`: why it does not follow its source."""

    before: Target
    after: Target
    columns: tuple[ForeseenColumn, ...] = ()
    refusal: CannotFollow | None = None


def foresee(
    shapes: Sequence[Table], after: Table, policy: TablePolicy, format_: Format, mode: ModeRules, *, is_member: bool
) -> ForeseenTable:
    """Return what a table that has had these shapes becomes with the further shape `after`. `is_member`: its rows share
    a table of the warehouse with those of other captured tables.

    Raises:
        CannotFollow: the table cannot have the shapes that it has had so far.
    """
    before = evolve(None, shapes, None, format_, mode, new_versions=policy.keeps_versions).target
    try:
        found = evolve(before, [shapes[-1], after], None, format_, mode, new_versions=policy.keeps_versions)
        check_allowed(found, policy)
        if is_member:
            check_member(found, after.id)
    except CannotFollow as error:
        return ForeseenTable(before, before, refusal=error)
    return ForeseenTable(before, found.target, _changes(before, found))


def _changes(before: Target, evolution: Evolution) -> tuple[ForeseenColumn, ...]:
    after = evolution.target
    was = {c.number: c for c in before.columns}
    found = []
    for column in after.columns:
        old = was.get(column.number)
        now = (column.name, column.type)
        if old is None:
            found.append(ForeseenColumn(None, now))
            continue
        is_left = column.number in after.dropped and column.number not in before.dropped
        if is_left or (old.name, old.type) != now:
            found.append(ForeseenColumn((old.name, old.type), now, is_left))
    return tuple(found)
