"""`cdcflow upkeep`: expire old cuts with what only they needed, compact small files. `merge` does it when due."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load, seconds
from cdcflow.config.places import check_writable, warehouse_places
from cdcflow.reports.upkeep import upkeep_parts


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
        output.show(upkeep_parts(report))
