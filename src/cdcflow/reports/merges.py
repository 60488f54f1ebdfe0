"""Merges as text: the result for each table, and the cut that was published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cdcflow.log.fold.completeness import IN_DOUBT
from cdcflow.reports.parts import Part, SideNote, TextTable
from cdcflow.reports.readable import number
from cdcflow.tables.job.several_logs import held_text

if TYPE_CHECKING:
    from cdcflow.tables.job.reports import MergeReport, SeveralReport, TableMergeReport


def merge_parts(report: MergeReport) -> Iterator[Part]:
    """What a merge did."""
    yield from merged_tables(report.tables)
    yield (
        f"cut {report.cut} {'published' if report.published else 'was published before'}, {report.seconds:.1f} s"
        if report.cut
        else "the log has no sealed segment yet: the first comes log.seal.age_max after the first row; merge after that"
    )


def merge_of_logs_parts(report: SeveralReport) -> Iterator[Part]:
    """What a merge of several logs did, and which log limits the cut."""
    yield from merged_tables(report.tables)
    if held := held_text(report):
        yield SideNote(held)
    for name in report.without:
        yield SideNote(f"log {name} was not waited for; its tables did not change")
    how = "published" if report.published else "was published before"
    yield f"cut {report.cut} {how}, {report.seconds:.1f} s" if report.cut else "no cut was published yet"


def merged_tables(tables: Sequence[TableMergeReport]) -> Iterator[Part]:
    """The result for each table."""
    rows = [
        (t.name, number(t.changes), t.version, _whole(t), t.engine or "-", f"{t.seconds:.1f} s")
        for t in tables
        if t.left_out is None
    ]
    if rows:
        columns = ("table", "changes", "version", "whole", "engine", "took")
        yield TextTable(columns, rows)
    for table in tables:
        if table.left_out is not None:
            yield SideNote(f"{table.name} is not in the cut: {table.left_out}")
        for promise, count in table.warned.items():
            yield SideNote(f"{table.name} breaks its contract: {promise} ({number(count)} rows)")
        if table.quarantined:
            yield SideNote(f"{table.name}: {number(table.quarantined)} rows are in its quarantine")
        for edit in table.edits:
            yield SideNote(f"another program changed {table.name}: {edit}")


def _whole(table: TableMergeReport) -> str:
    """Whether all rows are present, and the table's state in the log if they are not."""
    if not table.complete:
        return table.state if table.state == IN_DOUBT else "not yet"
    return "yes" if table.state in ("", "done") else f"yes ({table.state})"
