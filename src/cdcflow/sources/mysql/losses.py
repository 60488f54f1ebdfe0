"""Errors for a history that cannot be read on, each with a way on that loses nothing silently."""

from __future__ import annotations

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.model.table import TableId

READ_ANEW = "run `cdcflow run --accept-history-loss`, which takes a new place in the log and reads all tables anew"


def history_lost(message: str) -> HistoryLost:
    return HistoryLost(
        message,
        remedy="run `cdcflow run --accept-history-loss`: it takes a new place in the binary log and reads all tables "
        "anew, which also finds the rows that were deleted meanwhile",
    )


def versioned(table: TableId) -> ConfigurationError:
    """A captured table keeps the history of its rows."""
    return ConfigurationError(
        f"a statement in the binary log made table {table} system-versioned: its row events mix old and current rows",
        remedy=f"run ALTER TABLE `{table.schema}`.`{table.name}` DROP SYSTEM VERSIONING, then start again: the table "
        "is read again. Where the columns of its period were declared, SET system_versioning_alter_history = KEEP "
        "first, and add DROP PERIOD FOR SYSTEM_TIME and DROP COLUMN for both to the statement\n"
        f"  or take the table out of source.tables (write !{table})",
    )
