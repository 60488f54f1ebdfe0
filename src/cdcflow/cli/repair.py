"""`cdcflow repair`: find the rows that differ, and have the daemon repair exactly these through the log."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Now
from cdcflow.cli.verify import Against, kinds_of
from cdcflow.config import load, without_reading_limits
from cdcflow.reports.comparison import comparison_parts


def repair(
    tables: Annotated[list[str] | None, typer.Argument(help="As schema.table; none means all captured tables.")] = None,
    against: Annotated[
        Against | None,
        typer.Option(
            help="Repair what differs in the log, in the tables, or in both: by default in the tables, and of"
            " unverified ones in the log."
        ),
    ] = None,
    now: Now = False,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Find the rows that differ, read them again through the log, and compare again.

    Rows that the source does not have are deleted. Nothing else is read or written. A table that is unverified, because
    changes of it were lost, becomes verified when it is found equal. Exits with 1 when a row still differs, or a table
    could not be compared.
    """
    from cdcflow.daemon.events import send_structlog_to
    from cdcflow.daemon.requests.repairs import Repairs

    settings = without_reading_limits(load(config)) if now else load(config)
    send_structlog_to(sys.stderr)
    kinds = None if against is None else kinds_of(against)
    if not Repairs(settings, lambda report: output.show(comparison_parts(report)), _tell).repair(tables or (), kinds):
        raise typer.Exit(failure.FINDINGS)


def _tell(text: str, *, is_problem: bool) -> None:
    typer.echo(text, err=is_problem)
