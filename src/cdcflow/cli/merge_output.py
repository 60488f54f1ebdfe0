"""The output of commands that merge: their progress, and the result for each table."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from cdcflow.cli import output
from cdcflow.log.fold.completeness import IN_DOUBT
from cdcflow.reports import readable
from cdcflow.reports.parts import TextTable

if TYPE_CHECKING:
    from cdcflow.tables.job.reports import MergeProgress, MergeReport, SeveralReport, TableMergeReport


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
        return
    tell_tables(report.tables)
    typer.echo(
        f"cut {report.cut} {'published' if report.published else 'was published before'}, {report.seconds:.1f} s"
        if report.cut
        else "the log has no sealed segment yet: the first comes log.seal.age_max after the first row; merge after that"
    )


def tell_tables(tables: Sequence[TableMergeReport]) -> None:
    """Print the result for each table."""
    rows = [
        (t.name, readable.number(t.changes), t.version, _whole(t), t.engine or "-", f"{t.seconds:.1f} s")
        for t in tables
        if t.left_out is None
    ]
    if rows:
        columns = ("table", "changes", "version", "whole", "engine", "took")
        output.show([TextTable(columns, rows)])
    for table in tables:
        if table.left_out is not None:
            typer.echo(f"{table.name} is not in the cut: {table.left_out}", err=True)
        for promise, count in table.warned.items():
            typer.echo(f"{table.name} breaks its contract: {promise} ({readable.number(count)} rows)", err=True)
        if table.quarantined:
            typer.echo(f"{table.name}: {readable.number(table.quarantined)} rows are in its quarantine", err=True)
        for edit in table.edits:
            typer.echo(f"another program changed {table.name}: {edit}", err=True)


def _whole(table: TableMergeReport) -> str:
    """Whether all rows are present, and the table's state in the log if they are not."""
    if not table.complete:
        return table.state if table.state == IN_DOUBT else "not yet"
    return "yes" if table.state in ("", "done") else f"yes ({table.state})"


def plain(report: MergeReport | SeveralReport) -> dict[str, Any]:
    """A report's fields as JSON-able values."""
    told = asdict(report)
    for table in told["tables"]:
        if not table["place"]:
            del table["place"]
    if (latest := getattr(report, "latest", None)) is not None:
        told["latest"] = latest.to_json()
    return dict(json_text.loads(json_text.dumps(told, default=str)))
