"""`cdcflow fleet`: many pipelines on one page, or in one table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import Json
from cdcflow.config import load_fleet
from cdcflow.reports.fleet import fleet_parts

if TYPE_CHECKING:
    from cdcflow.fleet.members import Outage

DEFAULT_FLEET = Path("fleet.yaml")


def fleet(
    config: Annotated[
        Path, typer.Option("--config", "-c", envvar="CDCFLOW_FLEET", help="The settings file of the fleet.")
    ] = DEFAULT_FLEET,
    once: Annotated[bool, typer.Option("--once", help="Print the pipelines in a table, and end.")] = False,
    state: Annotated[str | None, typer.Option(help="With --once: only pipelines in this state.")] = None,
    name: Annotated[str | None, typer.Option(help="With --once: only names that contain this text.")] = None,
    json: Json = False,
) -> None:
    """Serve a page with all pipelines of a fleet, those that need an operator first.

    With --once it exits with 1 if a pipeline has an error, or if a register or a member cannot be read.
    """
    settings = load_fleet(config)
    if not once:
        from cdcflow.daemon import fleet_process
        from cdcflow.daemon.events import event_lines, send_structlog_to

        send_structlog_to(sys.stdout, as_json=json)
        fleet_process.serve(settings, event_lines(as_json=json))
        return
    from cdcflow.daemon.fleet_process import look_once

    found, outages = look_once(settings)
    shown = [one for one in found if (name or "").lower() in one.name.lower() and state in (None, one.state)]
    if json:
        output.print_json({"pipelines": [one.details() for one in shown], "outages": [_outage(o) for o in outages]})
    else:
        output.show(fleet_parts(shown, outages))
    if outages or any(one.level == "error" for one in found):
        raise typer.Exit(failure.FINDINGS)


def _outage(outage: Outage) -> dict[str, object]:
    return {"place": outage.place, "since": outage.since, "reason": outage.reason}
