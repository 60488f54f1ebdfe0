"""Find which of cdcflow's columns a current-state table has, even if an interrupted schema change renamed
some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdcflow.model.table import Table, TableId
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.refusals import column_gone
from cdcflow.tables.merge.target import TARGET_VERSION, FormatColumn, Target, TargetColumn


def with_existing_columns(
    described: Target,
    columns: Sequence[FormatColumn],
    table: TableId,
    shapes: Sequence[Table],
    mode: ModeRules = CURRENT,
) -> Target:
    """Return the description with the names and types that the table's columns have now.

    `shapes` are those of the next rows: an interrupted evolution may have used any of their names. `mode` determines
    which columns are not the source's.

    Raises:
        CannotFollow: a column of the description no longer exists.
    """
    ours = [c for c in columns if c.name not in mode.own]
    known = {c.id for c in described.columns}
    unknown = sorted((c for c in ours if c.id not in known), key=lambda c: c.id)
    if described.version < TARGET_VERSION:
        ids = _by_age(described, unknown, table, shapes)
    else:
        by_name = {c.name: c.id for c in unknown}
        ids = [by_name.get(c.name) if c.id is None else c.id for c in described.columns]
    there = {c.id: c for c in ours}
    found: list[TargetColumn] = []
    for column, id_ in zip(described.columns, ids, strict=True):
        own = None if id_ is None else there.get(id_)
        if own is not None:
            found.append(replace(column, name=own.name, id=id_, type=own.type or column.type, was=column.name))
        elif not column.added:
            raise column_gone(table, column)
    bound = {c.id for c in found}
    new = {c.name: there[i].name for c, i in zip(described.columns, ids, strict=True) if i is not None and not c.added}
    return replace(
        described,
        key=tuple(new[name] for name in described.key),
        columns=tuple(found),
        others=tuple(c.name for c in ours if c.id not in bound),
    )


def _by_age(
    described: Target, columns: Sequence[FormatColumn], table: TableId, shapes: Sequence[Table]
) -> list[int | None]:
    """Return ids for the columns of a description by an older cdcflow, which has none. Ids grow, and cdcflow's columns
    are listed in the order in which they were created; an interrupted evolution may have renamed them since."""
    names = {column.name for shape in shapes for column in shape.columns} | {c.name for c in described.columns}

    def may_be(column: TargetColumn, found: FormatColumn) -> bool:
        ours = found.name.startswith("__cdcflow_") or "__dropped_" in found.name
        return found.name == column.name or found.name in names or ours

    if len(columns) >= len(described.columns) and all(map(may_be, described.columns, columns)):
        return [c.id for c, _ in zip(columns, described.columns, strict=False)]
    by_name = {c.name: c.id for c in columns}
    for column in described.columns:
        if column.name not in by_name:
            raise column_gone(table, column)
    return [by_name[c.name] for c in described.columns]
