"""`cdcflow rebuild`: build tables from the log alone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdcflow.cli import failure
from cdcflow.cli.merge_output import say_progress, tell
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.reports.merges import merge_parts


def rebuild(
    into: Annotated[
        str | None,
        typer.Option("--into", help="The new warehouse: a folder, or a URL that merge.warehouse may be."),
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Build every table from the log alone, in a warehouse that is still empty.

    The database is not queried, and no daemon need run. Exits with 1 when a table was excluded.
    """
    from cdcflow import wiring
    from cdcflow.daemon.events import leave_interrupts_out, send_structlog_to

    send_structlog_to(sys.stderr)  # stdout is for the report
    leave_interrupts_out()
    report = wiring.rebuild_tables(load(config), into, say_progress)
    tell(report, merge_parts, json=json)
    if into is not None and not json:
        typer.echo(f"set merge.warehouse to {into}, and `cdcflow merge` continues with these tables")
    if any(table.left_out is not None for table in report.tables):
        raise typer.Exit(failure.FINDINGS)
