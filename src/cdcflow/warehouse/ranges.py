"""A range of the log that comes into one table: what it makes of the table's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcflow.errors import InvariantViolated
from cdcflow.merge import statement
from cdcflow.merge.evolution import Evolution, evolve
from cdcflow.merge.format import Format
from cdcflow.merge.modes import CURRENT, ModeRules, known
from cdcflow.merge.policy import UNSAID, TablePolicy
from cdcflow.merge.refusals import CannotFollow, rebuilt
from cdcflow.merge.seeing import seen
from cdcflow.merge.shape_policy import check_allowed
from cdcflow.merge.target import Target
from cdcflow.model.table import Table, TableId
from cdcflow.warehouse.port import Snapshot
from cdcflow.warehouse.segments import InputFile, began_as, shapes_of


@dataclass(frozen=True, slots=True)
class TableRange:
    """The `files` of a table behind cut `start`, in the order of their offsets, and what they come onto.

    `before`: the table (None: there is none yet). Rows that it has from before offset `sweep`, and that the range does
    not touch, go. `mode`: what its rows are. `is_new`: nobody reads the table yet, so whatever its source did may come
    into it. Only of a history: `since`, where the newest backfill began (0: that is
    of no more use), the `gap` (see `merge.history.Range`), and the files with the `transactions` of the range and of
    `since` and `sweep`.
    """

    table: TableId
    before: Snapshot | None
    files: Sequence[InputFile]
    start: int
    sweep: int = 0
    policy: TablePolicy = UNSAID
    mode: ModeRules = CURRENT
    is_new: bool = False
    since: int = 0
    gap: tuple[int, int] | None = None
    transactions: Sequence[InputFile] = ()

    @property
    def is_first(self) -> bool:
        """Whether the table holds no row from before."""
        return self.before is None or self.before.is_empty

    def of(self, evolution: Evolution) -> list[InputFile]:
        """The files of the incarnation of the source table that an evolution is about."""
        return [f for f in self.files if f.shape.incarnation == evolution.target.incarnation]

    def evolution(self, there: Snapshot | None, shapes: Sequence[Table], rules: Format) -> Evolution:
        """What brings the table `there` (None: there is none) into these shapes.

        Raises:
            CannotFollow: nothing can.
        """
        return self.evolution_of(
            None if there is None else _described(self.table, there, shapes, self.mode), shapes, rules
        )

    def evolution_of(self, target: Target | None, shapes: Sequence[Table], rules: Format) -> Evolution:
        """The same of a table that looks like this."""
        found = evolve(
            target,
            shapes,
            self.start,
            rules,
            self.mode,
            new_versions=self.policy.keeps_versions,
            began=began_as(self.files, shapes[-1].incarnation),
        )
        if not self.is_new:
            check_allowed(found, self.policy)
        return found

    def described(self) -> Target:
        """What the table, which is there, looks like before the range.

        Raises:
            CannotFollow: that cannot be told.
        """
        if self.before is None:
            raise InvariantViolated(f"describing {self.table}: there is no table yet")
        return _described(self.table, self.before, shapes_of(self.files), self.mode)


def order_of(there: Snapshot) -> tuple[str, ...]:
    """By which columns the rows of a table are clustered (see `ModeRules.order`); none where that cannot be told, as in
    the middle of a rename."""
    text, mode = there.properties.get(statement.TARGET_PROPERTY), known(there.properties)
    found = () if text is None or mode is None else mode.order(Target.from_json(text).key)
    return found if {column.name for column in there.columns}.issuperset(found) else ()


def grouped(shapes: Sequence[Table], mode: ModeRules) -> list[list[Table]]:
    """Shapes, oldest first, in as many groups as a table evolves one after the other: each incarnation of the source
    table is one where the rows of all of them stay."""
    if not (mode.keeps_changes or mode.in_turn):
        return [list(shapes)]
    incarnations = list(dict.fromkeys(shape.incarnation for shape in shapes))
    return [[s for s in shapes if s.incarnation == incarnation] for incarnation in incarnations]


def _described(table: TableId, before: Snapshot, shapes: Sequence[Table], mode: ModeRules) -> Target:
    """What the table looks like: its own description, with the names that its columns have by now."""
    text = before.properties.get(statement.TARGET_PROPERTY)
    if text is None:
        raise CannotFollow(
            f"merging into {table}: the table's property {statement.TARGET_PROPERTY} is gone, which describes its "
            f"columns",
            remedy=rebuilt(table),
        )
    return seen(Target.from_json(text), before.columns, table, shapes, mode)
