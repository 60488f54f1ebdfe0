"""A range of the log that comes into one table: what it makes of the table's shape, and its changes as SQL."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cdcflow.merge import statement
from cdcflow.merge.evolution import Evolution, evolve
from cdcflow.merge.format import Format
from cdcflow.merge.policy import UNSAID, TablePolicy
from cdcflow.merge.reduce import Layout
from cdcflow.merge.refusals import CannotFollow, rebuilt
from cdcflow.merge.seeing import seen
from cdcflow.merge.shape_policy import check_allowed
from cdcflow.merge.target import Target
from cdcflow.model.table import Table, TableId
from cdcflow.warehouse import changes
from cdcflow.warehouse.port import Snapshot, SqlSession
from cdcflow.warehouse.segments import InputFile, offsets_of, shapes_of


@dataclass(frozen=True, slots=True)
class TableRange:
    """The `files` of a table behind cut `start`, in the order of their offsets, and what they come onto.

    `before`: the table (None: there is none yet). Rows that it has from before offset `sweep`, and that the range does
    not touch, go.
    """

    table: TableId
    before: Snapshot | None
    files: Sequence[InputFile]
    start: int
    sweep: int = 0
    policy: TablePolicy = UNSAID

    @property
    def is_first(self) -> bool:
        """Whether the table holds no row from before."""
        return self.before is None or self.before.is_empty

    def evolution(self, rules: Format) -> Evolution:
        """The shapes that the table comes through.

        Raises:
            CannotFollow: it cannot.
        """
        shapes = shapes_of(self.files)
        target = None if self.before is None else _described(self.table, self.before, shapes)
        found = evolve(target, shapes, self.start, rules, new_versions=self.policy.incompatible == "new_column")
        check_allowed(found, self.policy)
        return found

    @contextmanager
    def folding(
        self, session: SqlSession, evolution: Evolution, standing: Callable[[Layout, str], str]
    ) -> Iterator[statement.Folding]:
        """Its changes, for as long as the session has the views of them. `standing`: as `CurrentTable.standing`."""
        layout = Layout.of(evolution, shapes_of(self.files))
        living = [f for f in self.files if f.shape.incarnation == evolution.target.incarnation]
        after = changes.last_truncate(session, living)
        if evolution.fresh:
            after = max(after, offsets_of(living)[0] - 1)
        emptied = after > 0 or self.is_first
        rows = None if emptied else functools.partial(standing, layout)
        with changes.view(session, layout, living, after, rows) as found:
            yield statement.Folding(
                layout,
                found.name,
                found.masks,
                empty=self.is_first,
                emptied=emptied,
                once=self.is_first and _each_key_once(session, layout, living, found),
                sweep_before=max(self.sweep, after + 1 if after else 0),
                ends=tuple((f.file.key_min, f.file.key_max) for f in living),
                count=sum(f.file.rows for f in living),
            )


def _each_key_once(session: SqlSession, layout: Layout, files: list[InputFile], found: changes.View) -> bool:
    """Whether the changes are whole rows, and no two of one key: so it is after a backfill. Manifests say whether it
    may be, and mostly that it is; where they do not, the keys in the log are looked at."""
    target = layout.target
    if not target.key or not all(f.ops and f.ops.keys() <= {"c", "r"} and not f.file.partial for f in files):
        return False
    first = target.columns[layout.key[0]].type
    if statement.each_key_once(first, [f.file.key_runs for f in files]):
        return True
    return not session.rows(statement.repeated(target, found.name))


def _described(table: TableId, before: Snapshot, shapes: Sequence[Table]) -> Target:
    """What the table looks like: its own description, with the names that its columns have by now."""
    text = before.properties.get(statement.TARGET_PROPERTY)
    if text is None:
        raise CannotFollow(
            f"merging into {table}: the table's property {statement.TARGET_PROPERTY} is gone, which says what its"
            " columns are",
            remedy=rebuilt(table),
        )
    return seen(Target.from_json(text), before.columns, table, shapes)
