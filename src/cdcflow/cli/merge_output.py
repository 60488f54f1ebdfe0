"""The output of commands that merge: their progress, and the result for each table."""

from __future__ import annotations

import json as json_text
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from cdcflow.cli import output
from cdcflow.reports.merges import merge_parts

if TYPE_CHECKING:
    from cdcflow.tables.job.reports import MergeProgress, MergeReport, SeveralReport


def say(text: str) -> None:
    """Report a long step, if stderr is a terminal."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


def say_progress(progress: MergeProgress) -> None:
    """Report a merge's progress, if stderr is a terminal."""
    step = f", step {progress.step}" if progress.step > 1 else ""
    say(f"merging {progress.table} ({progress.number} of {progress.tables} tables{step})")


def tell(report: MergeReport, *, json: bool = False) -> None:
    """Print what a merge did."""
    if json:
        output.print_json(plain(report))
    else:
        output.show(merge_parts(report))


def plain(report: MergeReport | SeveralReport) -> dict[str, Any]:
    """A report's fields as JSON-able values."""
    told = asdict(report)
    for table in told["tables"]:
        if not table["place"]:
            del table["place"]
    if (latest := getattr(report, "latest", None)) is not None:
        told["latest"] = latest.to_json()
    return dict(json_text.loads(json_text.dumps(told, default=str)))
