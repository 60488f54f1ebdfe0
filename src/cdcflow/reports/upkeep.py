"""The maintenance of tables as text: what was done, and what was skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cdcflow.reports.parts import Part, SideNote

if TYPE_CHECKING:
    from cdcflow.tables.job.maintenance import UpkeepReport


def upkeep_parts(report: UpkeepReport) -> Iterator[Part]:
    """What was done and what was skipped."""
    if report.expired:
        yield f"{report.expired} cuts expired; the oldest is {report.oldest} now"
    if report.skipped:
        yield SideNote(f"no cuts were expired: {report.skipped}")
    for table in report.tables:
        if table.done:
            yield f"{table.name}: {', '.join(table.done)}"
        if table.skipped:
            yield SideNote(f"{table.name}: skipped: {table.skipped}")
    if report.put_off:
        yield SideNote(f"postponed to the next time, for lack of time: {', '.join(report.put_off)}")
    if not (report.expired or report.skipped or report.put_off or any(t.done or t.skipped for t in report.tables)):
        yield "nothing to do"
