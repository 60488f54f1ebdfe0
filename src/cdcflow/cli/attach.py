"""`cdcflow attach`: adopt a table that was loaded another way, without reading it again."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath
from cdcflow.config import Config, load
from cdcflow.config.places import check_writable, warehouse_places
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import word
from cdcflow.reports import readable

ANSWER_WITHIN_S = 75


def attach(
    table: Annotated[str, typer.Argument(help="As schema.table.")],
    from_: Annotated[str, typer.Option("--from", help="A Delta table, a Parquet file, or a folder of Parquet files.")],
    as_of: Annotated[
        str | None, typer.Option(help="Of a Delta table: the version to take, or the time, as 2026-01-31T12:00:00Z.")
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Adopt a table that was loaded another way, such as a dump or a copy by Spark.

    Its rows become the table in the warehouse, and the daemon does not read them. The table is unverified until
    `cdcflow repair` has compared it with the source and repaired the rows that differ.
    """
    from cdcflow import wiring
    from cdcflow.daemon.events import send_structlog_to

    settings = load(config)
    check_writable(warehouse_places(settings))
    send_structlog_to(sys.stderr)
    if ask(settings.log.folder, {"op": "status"}) is None:
        raise _no_daemon(table)  # before anything is read
    report = wiring.attach_table(settings, table, from_, as_of, lambda base: _order(settings, table, base))
    if report.rows is None:
        typer.echo(f"{table} has its base already")
    else:
        typer.echo(f"{table}: {readable.number(report.rows)} rows of {report.said} are its base")
        if report.left_out:
            typer.echo(f"excluded, because the table has no such columns: {', '.join(report.left_out)}")
    typer.echo(f"next: run `cdcflow merge`, then `cdcflow repair {word(table)}`")


def _order(settings: Config, table: str, base: str) -> None:
    answer = ask(settings.log.folder, {"op": "attach", "tables": [table], "base": base}, timeout_s=ANSWER_WITHIN_S)
    if answer is None:
        raise _no_daemon(table)
    outcome = answer["tables"][table]
    if outcome["outcome"] != "attached":
        raise _refusal(table, outcome.get("reason") or outcome["outcome"])


def _refusal(table: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"attaching {table}: {why}",
        remedy=f"run `cdcflow merge`, and `cdcflow repair {word(table)}` if you doubt its rows",
        runbook="attach",
    )


def _no_daemon(table: str) -> ConfigurationError:
    return ConfigurationError(
        f"attaching {table}: no daemon runs on this log, and the command that skips reading the table needs one",
        remedy="start `cdcflow run`, then attach again",
        runbook="no-daemon",
    )
