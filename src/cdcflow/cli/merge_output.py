"""The output of commands that merge: their progress, and the result for each table."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from cdcflow.cli import output
from cdcflow.errors import SinkUnavailable
from cdcflow.reports.parts import Parts

if TYPE_CHECKING:
    from cdcflow.tables.job.reports import MergeProgress, MergeReport, SeveralReport

R = TypeVar("R", "MergeReport", "SeveralReport")


def say(text: str) -> None:
    """Report a long step, if stderr is a terminal."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


def say_progress(progress: MergeProgress) -> None:
    """Report a merge's progress, if stderr is a terminal."""
    step = f", step {progress.step}" if progress.step > 1 else ""
    say(f"merging {progress.table} ({progress.number} of {progress.tables} tables{step})")


def merge_and_tell(merged: Callable[[], R], parts: Callable[[R], Parts], *, json: bool) -> None:
    """Merge once, for a command that merges repeatedly: if source, log or warehouse is unavailable, print that and
    return."""
    try:
        tell(merged(), parts, json=json)
    except SinkUnavailable as error:
        typer.echo(f"merge postponed: {str(error).splitlines()[0]}", err=True)


def tell(report: R, parts: Callable[[R], Parts], *, json: bool) -> None:
    """Print what a merge did. `parts` returns a report's text."""
    if json:
        output.print_json(plain(report))
    else:
        output.show(parts(report))


def plain(report: MergeReport | SeveralReport) -> dict[str, Any]:
    """A report's fields as JSON-able values."""
    told = asdict(report)
    for table in told["tables"]:
        if not table["place"]:
            del table["place"]
    if (latest := getattr(report, "latest", None)) is not None:
        told["latest"] = latest.to_json()
    return dict(json_text.loads(json_text.dumps(told, default=str)))
