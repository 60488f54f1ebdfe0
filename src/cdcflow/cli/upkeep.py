"""`cdcflow upkeep`: expire old cuts with what only they needed, compact small files. `merge` does it when due."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load, seconds
from cdcflow.config.places import check_writable, warehouse_places

if TYPE_CHECKING:
    from cdcflow.tables.job.maintenance import UpkeepReport


def upkeep(
    budget: Annotated[
        str | None, typer.Option(help="At most this much time (60s); without it merge.upkeep.budget.")
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Maintain all tables now: expire old cuts (merge.keep), compact small files.

    Safe while a merge runs, and may be ended at any time.
    """
    from cdcflow import wiring
    from cdcflow.daemon.events import send_structlog_to
    from cdcflow.tables.job.maintenance import upkeep as look_after

    settings = load(config)
    check_writable(warehouse_places(settings))
    policy = wiring.upkeep_policy(settings, None if budget is None else seconds(budget))
    send_structlog_to(sys.stderr)  # stdout is for the report
    report = look_after(wiring.engines(settings), policy)
    if json:
        output.print_json(asdict(report))
    else:
        tell(report)


def tell(report: UpkeepReport) -> None:
    """Print what was done and what was skipped."""
    if report.expired:
        typer.echo(f"{report.expired} cuts expired; the oldest is {report.oldest} now")
    if report.skipped:
        typer.echo(f"no cuts were expired: {report.skipped}", err=True)
    for table in report.tables:
        if table.done:
            typer.echo(f"{table.name}: {', '.join(table.done)}")
        if table.skipped:
            typer.echo(f"{table.name}: skipped: {table.skipped}", err=True)
    if report.put_off:
        typer.echo(f"postponed to the next time, for lack of time: {', '.join(report.put_off)}", err=True)
    if not (report.expired or report.skipped or report.put_off or any(t.done or t.skipped for t in report.tables)):
        typer.echo("nothing to do")
