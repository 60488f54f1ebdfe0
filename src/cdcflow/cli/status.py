"""`cdcflow status`: the current state, from the running daemon, or from the log if none runs."""

from __future__ import annotations

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.reports.status import status_parts


def status(config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Show tables, backfill, rows a second, lag, and how much log the source keeps for cdcflow.

    Exits with 1 when the source no longer has the log that the capture continues from.
    """
    from cdcflow.daemon.current_status import current

    found = current(load(config))
    if json:
        output.print_json(found)
    else:
        output.show(status_parts(found))
    if found.get("problems"):
        raise typer.Exit(failure.FINDINGS)
