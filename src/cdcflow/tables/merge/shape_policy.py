"""Refuse changes of a source's shape that a table must not follow under its policy (see `policy.Evolve`).

An evolution is computed as usual, and refused here before its first commit if it does what the policy does not allow. A
new table has no readers yet, so changes that its source made before the table was created are not refused.

| the source           | `evolve` | `add_only` | `freeze` |
| -------------------- | -------- | ---------- | -------- |
| adds a column        | follows  | follows    | refused  |
| widens, renames      | follows  | refused    | refused  |
| drops a column       | keeps it | refused    | refused  |
| narrows a type       | keeps the wider one: a table does not show it   |
"""

from __future__ import annotations

from collections.abc import Iterator

from cdcflow.model.table import TableId
from cdcflow.tables.merge.acts import Rename, Widen
from cdcflow.tables.merge.column_versions import of_source, source_number
from cdcflow.tables.merge.evolution import Evolution
from cdcflow.tables.merge.policy import TablePolicy
from cdcflow.tables.merge.refusals import CannotFollow, against_policy
from cdcflow.tables.merge.target import Target


def check_allowed(evolution: Evolution, policy: TablePolicy) -> None:
    """Check that the policy of a table allows it to follow its source.

    Raises:
        CannotFollow: the policy does not allow it; the message names the columns.
    """
    before, current = evolution.before, evolution.current
    if before is None or current is None or policy.evolve == "evolve":
        return
    found = [*_dropped_columns(before, current, evolution), *_changed_columns(before, current, evolution)]
    if policy.evolve == "freeze":
        found += _come(before, evolution)
    if found:
        raise against_policy(evolution.numbered[-1].id, ", ".join(found), policy.evolve)


def check_member(evolution: Evolution, table: TableId) -> None:
    """Check that a table that shares a table of the warehouse with others may follow its source. Columns are identified
    by their names, so one of the tables cannot change a name for all.

    Raises:
        CannotFollow: it renames a column, or it dropped one and now has a new one of the same name.
    """
    if renamed := next((step for step in evolution.steps if isinstance(step, Rename)), None):
        why = f"its column {renamed.old} was renamed to {renamed.new}"
        if renamed.new.startswith(f"{renamed.old}__dropped_"):
            why = f"its column {renamed.old} was dropped, and it has a different one of that name now"
        raise CannotFollow(
            f"table {table} cannot be merged further: {why}, and other tables are merged into the same one",
            remedy="move the folder of the table that has their rows away in the warehouse, then run `cdcflow backfill`"
            " for each table that is merged into it, and `cdcflow merge`",
        )


def _dropped_columns(before: Target, current: Target, evolution: Evolution) -> Iterator[str]:
    there = of_source(c.number for c in evolution.numbered[-1].columns)
    for column, now in zip(before.columns, current.columns, strict=True):
        was_there = column.number > 0 and column.number not in before.dropped and not column.added
        if was_there and source_number(now.number) not in there:
            yield f"column {column.was or column.name} was dropped"


def _changed_columns(before: Target, current: Target, evolution: Evolution) -> Iterator[str]:
    numbers = {c.number for c in evolution.numbered[-1].columns}
    sources = of_source(numbers)
    names = {c.number: c.name for c in evolution.target.columns if source_number(c.number) in sources}
    for column, now in zip(before.columns, current.columns, strict=True):
        first = column.was or column.name
        # Of versions those that take values now, or did until now.
        is_read = now.number in numbers or column.number not in before.dropped
        if is_read and not column.added and (name := names.get(now.number, first)) != first:
            yield f"column {first} was renamed to {name}"
    for step in evolution.steps:
        if isinstance(step, Widen):
            yield f"column {step.name} was widened to {step.type}"


def _come(before: Target, evolution: Evolution) -> Iterator[str]:
    announced = [c for c in before.columns if c.added]
    for column in (*announced, *evolution.added):
        yield f"column {column.name} was added"
    newest = {c.number for c in evolution.numbered[-1].columns}
    for column in before.columns:
        if column.number in before.dropped and column.number in newest:
            yield f"column {column.name} exists again"
