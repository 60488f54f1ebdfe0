"""A range of the log for one table, and how it changes the table's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdcflow.errors import InvariantViolated
from cdcflow.model.change import DELETE
from cdcflow.model.file_layout import SortColumn
from cdcflow.model.table import Table, TableId
from cdcflow.tables.merge import statement
from cdcflow.tables.merge.describe_existing import with_existing_columns
from cdcflow.tables.merge.evolution import Evolution, evolve
from cdcflow.tables.merge.file_layouts import existing_order
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules, mode_of_properties
from cdcflow.tables.merge.policy import UNSAID, TablePolicy
from cdcflow.tables.merge.refusals import CannotFollow, rebuilt
from cdcflow.tables.merge.shape_policy import check_allowed, check_member
from cdcflow.tables.merge.target import Target
from cdcflow.tables.port import TableSnapshot
from cdcflow.tables.segments import InputFile, shapes_of


@dataclass(frozen=True, slots=True)
class TableRange:
    """The `files` of a table after cut `start`, in the order of their offsets, and the table that they are applied to.

    `before`: that table (`None` if it does not exist yet). Rows from before offset `sweep` that the range does not
    touch are removed. `mode`: the table's mode. `is_new`: the table has no readers yet, so any change of its source's
    shape may be applied. `member`: if the table has rows of several captured tables, the values of the columns that
    tell the rows of this one.

    The mode `history` alone needs three more: `since`, the offset where the latest backfill began (0 if that no longer
    matters), the `gap` (see `tables.merge.history.RangeFacts`), and `transactions`, the files with the transactions of
    the range and of the offsets `since` and `sweep`.
    """

    table: TableId
    before: TableSnapshot | None
    files: Sequence[InputFile]
    start: int
    sweep: int = 0
    policy: TablePolicy = UNSAID
    mode: ModeRules = CURRENT
    is_new: bool = False
    since: int = 0
    gap: tuple[int, int] | None = None
    transactions: Sequence[InputFile] = ()
    member: Mapping[str, str] = field(default_factory=dict)

    @property
    def purges(self) -> bool:
        """Whether a delete in the range may remove a row, or leave it unmarked, although the table keeps deleted rows.
        Only then, and in the mode `history`, are its `transactions` needed."""
        names = self.policy.purge_origins or self.policy.kept_purges
        is_asked = self.mode.ended is not None and self.mode.ends is None and bool(names)
        return is_asked and any(not f.ops or f.ops.get(DELETE) for f in self.files)

    @property
    def is_first(self) -> bool:
        """Whether the table has no rows from before the range."""
        return self.before is None or self.before.is_empty

    def of(self, evolution: Evolution) -> list[InputFile]:
        """Return the files of one incarnation of the source table: the one that an evolution is about."""
        return [f for f in self.files if f.shape.incarnation == evolution.target.incarnation]

    def evolution(self, there: TableSnapshot | None, shapes: Sequence[Table], rules: Format) -> Evolution:
        """Return the evolution that brings the table `there` (`None` if it does not exist) into these shapes.

        Raises:
            CannotFollow: there is no such evolution.
        """
        return self.evolution_of(
            None if there is None else _describe_existing(self.table, there, shapes, self.mode), shapes, rules
        )

    def evolution_of(self, target: Target | None, shapes: Sequence[Table], rules: Format) -> Evolution:
        """Return the evolution that brings a table with this description (`None`: it does not exist) into
        these shapes."""
        found = evolve(
            target,
            shapes,
            self.start,
            rules,
            self.mode,
            new_versions=self.policy.keeps_versions,
        )
        if not self.is_new:
            check_allowed(found, self.policy)
        if self.member:
            check_member(found, self.table)
        return found

    def existing_target(self) -> Target:
        """Return the description that the existing table has before the range.

        Raises:
            CannotFollow: it cannot be determined.
        """
        if self.before is None:
            raise InvariantViolated(f"describing {self.table}: there is no table yet")
        return _describe_existing(self.table, self.before, shapes_of(self.files), self.mode)


def order_of(there: TableSnapshot, *, by_key: bool) -> tuple[SortColumn, ...]:
    """Return the columns by which maintenance sorts the rows of a table: those of `sort_by`, and with `by_key` those of
    its key (see `ModeRules.order`). Empty if they cannot be determined, as in the middle of a rename."""
    text, mode = there.properties.get(statement.TARGET_PROPERTY), mode_of_properties(there.properties)
    own = existing_order(there.properties, there.columns)
    key = () if text is None or mode is None or not by_key else mode.order(Target.from_json(text).key)
    if not {column.name for column in there.columns}.issuperset(key):
        return own
    named = {one.column for one in own}
    return (*own, *(SortColumn(name) for name in key if name not in named))


def group_shapes(shapes: Sequence[Table], mode: ModeRules) -> list[list[Table]]:
    """Group shapes, oldest first, into the steps in which a table evolves. In a mode that keeps the rows of all
    incarnations of the source table, each incarnation is a group; otherwise all shapes are one group."""
    if not (mode.keeps_changes or mode.in_turn):
        return [list(shapes)]
    incarnations = list(dict.fromkeys(shape.incarnation for shape in shapes))
    return [[s for s in shapes if s.incarnation == incarnation] for incarnation in incarnations]


def _describe_existing(table: TableId, before: TableSnapshot, shapes: Sequence[Table], mode: ModeRules) -> Target:
    """Return the table's own description, with the current names of its columns."""
    text = before.properties.get(statement.TARGET_PROPERTY)
    if text is None:
        raise CannotFollow(
            f"merging into {table}: the table's property {statement.TARGET_PROPERTY} is gone, which describes its "
            f"columns",
            remedy=rebuilt(table),
        )
    return with_existing_columns(Target.from_json(text), before.columns, table, shapes, mode)
