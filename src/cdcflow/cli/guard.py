"""`cdcflow guard`: hold the budget of the source's log without a daemon."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, Postgres, load
from cdcflow.errors import ConfigurationError

UNIT = "cdcflow-guard@.service"
PROCEDURE = "guard.sql"
_PROGRAM = "/opt/cdcflow/bin/cdcflow"


def guard(
    config: ConfigPath = DEFAULT_CONFIG,
    slot: Annotated[
        str | None,
        typer.Option(help="The slot, if this machine does not have the log and the settings have no source.slot."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Check once, act if the budget is used up, and end.")] = False,
    json: Json = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print a procedure for PostgreSQL that does the same, for pg_cron.")
    ] = False,
    systemd: Annotated[bool, typer.Option("--systemd", help="Print a systemd unit for this command.")] = False,
) -> None:
    """Release the slot when the source keeps more log than source.log_budget, also while no daemon runs.

    It needs the settings file and the source, not the log. A daemon that starts later finds a note at the source, takes
    a new position, and repairs the tables.
    """
    if sql or systemd:
        typer.echo(procedure() if sql else unit(), nl=False)
        return
    settings = load(config)
    check_guarded(settings)
    from cdcflow.daemon import log_budget
    from cdcflow.daemon.events import event_lines, send_structlog_to

    send_structlog_to(sys.stdout, as_json=json)
    log_budget.guard(settings, event_lines(as_json=json), slot=slot, once=once)


def check_guarded(settings: Config) -> None:
    """Raises ConfigurationError if these settings leave a guard nothing to do."""
    source = settings.database
    if not isinstance(source, Postgres):
        raise ConfigurationError(
            "only PostgreSQL keeps log for a reader: there is nothing that a guard could release",
            remedy="MySQL and MariaDB purge their binary log by binlog_expire_logs_seconds and max_binlog_total_size; "
            "with source.log_budget_then: release the daemon repairs the tables after a purge",
        )
    if not source.budget:
        raise ConfigurationError(
            "the settings have no budget to guard",
            remedy="set source.log_budget or source.log_budget_age, and source.log_budget_then: release",
        )


def procedure() -> str:
    """The SQL that creates the procedure `cdcflow.guard`, with the table of its notes."""
    from cdcflow.sources.postgres.slot_release import DDL

    text = files("cdcflow").joinpath("packaging", PROCEDURE).read_text(encoding="utf-8")
    return text.replace("{ddl}", ";\n".join(DDL))


def unit() -> str:
    """Return the text of the systemd unit. It starts the `cdcflow` in the directory of this process's Python
    interpreter."""
    text = files("cdcflow").joinpath("packaging", UNIT).read_text(encoding="utf-8")
    return text.replace(_PROGRAM, str(Path(sys.executable).parent / "cdcflow"))
