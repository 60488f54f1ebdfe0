"""`cdcflow plan --ddl`: what a statement will do before it is executed at the source. Changes nothing."""

from __future__ import annotations

from pathlib import Path

import typer

from cdcflow.cli import failure, output
from cdcflow.config import load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.reports.readable import plain
from cdcflow.reports.rehearsed_statements import rehearsal_lines


def rehearse_statement(config: Path, ddl: str, *, json: bool) -> None:
    """Print what the statements of a text will do. Exits with 1 if something stops or breaks."""
    from cdcflow import wiring

    settings = load(config)
    status = ask(settings.log.folder, {"op": "status"}) or {}
    rate = status.get("rows_read_per_second")
    found = wiring.rehearse_ddl(settings, ddl, float(rate) if rate else None)
    if json:
        output.print_json(found.to_json())
    else:
        output.show(map(plain, rehearsal_lines(found)))
    if found.breaks:
        raise typer.Exit(failure.FINDINGS)
