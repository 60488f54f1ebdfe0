"""The part of moving a log to another address that all dialects share: its refusals, in the same words."""

from __future__ import annotations

from collections.abc import Callable, Collection

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.model.table import TableId

COMPARISON = "a comparison was requested"
"""The reason given for a gap at a server that may have every change, if an operator requested a comparison."""


def lagging(error: HistoryLost) -> ConfigurationError:
    """Return the error for a server that lacks changes which the log has."""
    return ConfigurationError(
        f"the log cannot continue there: {first_line(error)}",
        remedy="move to the server that has everything; or, if that one is lost, run `cdcflow move` with --compare: "
        "rows of changes that the new server never had are corrected in the log",
        runbook="move",
    )


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def check_tables(
    captured: Collection[TableId], selected: Collection[TableId], selects: Callable[[TableId], bool]
) -> None:
    """Check that a server has the tables that the log captures, as far as the settings still select them.

    Raises:
        ConfigurationError: the server lacks some or all of these tables.
    """
    required = {table for table in captured if selects(table)}
    missing = sorted(required - set(selected))
    if required and len(missing) == len(required):
        raise ConfigurationError(
            "this is another database: it has none of the tables that the log captures",
            remedy="correct the address of --to",
            runbook="move",
        )
    if missing:
        names = ", ".join(map(str, missing))
        raise ConfigurationError(
            f"the server lacks captured tables: {names}",
            remedy="create them there; or exclude them from source.tables: "
            + ", ".join(f'"!{table}"' for table in missing),
            runbook="move",
        )


def log_is_empty() -> ConfigurationError:
    return ConfigurationError(
        "the log has not begun yet: it belongs to no server",
        remedy="set source.url, and start `cdcflow run`",
        runbook="move",
    )
