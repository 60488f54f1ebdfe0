"""Why a current-state table cannot follow its source, and what to do about it."""

from __future__ import annotations

from cdcflow.errors import ConfigurationError
from cdcflow.merge.target import TargetColumn
from cdcflow.model.table import Table, TableId


class CannotFollow(ConfigurationError):
    """A table cannot take the rows that come next. The others can go on without it."""

    section = "table-not-followed"


def cannot(shape: Table, why: str) -> CannotFollow:
    return CannotFollow(
        f"table {shape.id} cannot be merged further: {why}",
        remedy=rebuilt(shape.id),
    )


def in_the_way(shape: Table, column: TargetColumn) -> CannotFollow:
    return CannotFollow(
        f"table {shape.id} cannot be merged further: the source now has a column {column.name}, and somebody "
        f"added a column of that name to the current-state table",
        remedy="rename or drop that column in the current-state table, then run `cdcflow merge`",
    )


def gone(table: TableId, column: TargetColumn) -> CannotFollow:
    return CannotFollow(
        f"table {table} cannot be merged further: somebody removed column {column.name} from the current-state table",
        remedy=rebuilt(table),
    )


def rebuilt(table: TableId) -> str:
    """What to do with a current-state table that is of no more use."""
    return f"move the table's folder away in the warehouse, then run `cdcflow backfill {table}` and `cdcflow merge`"
