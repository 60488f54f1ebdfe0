"""`cdcflow fleet`: many pipelines on one page, or in one table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import Json
from cdcflow.config import load_fleet
from cdcflow.reports import readable
from cdcflow.reports.parts import TextTable

if TYPE_CHECKING:
    from cdcflow.fleet.members import Outage
    from cdcflow.fleet.pipelines import Pipeline

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
        _print(shown, outages)
    if outages or any(one.level == "error" for one in found):
        raise typer.Exit(failure.FINDINGS)


def _outage(outage: Outage) -> dict[str, object]:
    return {"place": outage.place, "since": outage.since, "reason": outage.reason}


def _print(shown: Sequence[Pipeline], outages: Sequence[Outage]) -> None:
    from cdcflow.fleet.pipelines import utc

    for outage in outages:
        typer.echo(readable.plain(f"cannot be read: {outage.reason}"))
    rows = []
    for one in shown:
        numbers = one.numbers
        used, merged, verified = (numbers.get(n) for n in ("budget_used", "merge_ended_at", "verified_at"))
        rows.append(
            (
                one.name,
                one.state,
                readable.age(numbers["lag_seconds"]) if "lag_seconds" in numbers else "",
                "" if used is None else f"{100 * used:.0f} %",
                "" if "fresh_as_of" not in numbers else utc(numbers["fresh_as_of"]),
                "" if merged is None else utc(merged),
                "" if verified is None else utc(verified),
                one.findings[0].text if one.findings else "",
            )
        )
    columns = ("pipeline", "state", "lag", "source keeps", "fresh as of", "merged", "verified", "")
    output.show([TextTable(columns, rows)])
    typer.echo(f"{len(shown)} pipelines")
