"""Why a current-state table cannot follow its source, and what to do about it."""

from __future__ import annotations

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Table, TableId, word
from cdcflow.tables.merge.target import TargetColumn


class CannotFollow(ConfigurationError):
    """The error for a table that cannot take the next rows. The other tables can be merged without it."""

    section = "table-not-followed"


def cannot(shape: Table, why: str, *, may_be_versioned: bool = False) -> CannotFollow:
    """Return the error for a shape that a table cannot follow. `may_be_versioned`: the reason is a column that may get
    a version of a different type."""
    other = f"; or set {setting(shape.id, 'incompatible')} to new_column and run `cdcflow merge`"
    return CannotFollow(
        f"table {shape.id} cannot be merged further: {why}",
        remedy=rebuilt(shape.id) + (other if may_be_versioned else ""),
    )


def against_policy(table: TableId, changes: str, policy: str) -> CannotFollow:
    """Return the error for a table whose source changed it in a way that its policy forbids. `changes`: a text that
    names the changes by column."""
    return CannotFollow(
        f"table {table} does not follow its source: {changes}, and its merge.tables.evolve is {policy}",
        remedy=f"set {setting(table, 'evolve')} to evolve and run `cdcflow merge`; then it may be {policy} again",
    )


def setting(table: TableId, name: str) -> str:
    """Return the path of a setting of one table."""
    return f"merge.tables.each.'{table}'.{name}"


def in_the_way(shape: Table, column: TargetColumn) -> CannotFollow:
    return CannotFollow(
        f"table {shape.id} cannot be merged further: the source now has a column {column.name}, but the "
        f"current-state table already has a column of that name, which cdcflow did not add",
        remedy="rename or drop that column in the current-state table, then run `cdcflow merge`",
    )


def kept_name(table: TableId, column: str, kept_by: str) -> CannotFollow:
    """Return the error for a column whose name is reserved. `kept_by`: the component that reserves the name."""
    return CannotFollow(
        f"table {table} cannot be merged: its column {column} has a name that {kept_by} keeps for itself",
        remedy=f"rename the column at the source, then run `cdcflow backfill {word(table)}` and `cdcflow merge`",
    )


def column_gone(table: TableId, column: TargetColumn) -> CannotFollow:
    return CannotFollow(
        f"table {table} cannot be merged further: column {column.name} was removed from the current-state table, not "
        "by cdcflow",
        remedy=rebuilt(table),
    )


def member_refused(table: TableId, target: TableId, why: str, remedy: str) -> CannotFollow:
    """Return the error for a table whose rows cannot, or can no longer, be merged into a table that several share."""
    return CannotFollow(f"table {table} cannot be merged into {target}: {why}", remedy=remedy)


def rebuilt(table: TableId | str) -> str:
    """Return the remedy for a current-state table that can no longer be used."""
    return (
        f"move the table's folder away in the warehouse, then run `cdcflow backfill {word(table)}` and `cdcflow merge`"
    )
