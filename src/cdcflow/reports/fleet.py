"""The pipelines of a fleet as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cdcflow.fleet.pipelines import utc
from cdcflow.reports.parts import Part, TextTable
from cdcflow.reports.readable import age, plain

if TYPE_CHECKING:
    from cdcflow.fleet.members import Outage
    from cdcflow.fleet.pipelines import Pipeline


def fleet_parts(shown: Sequence[Pipeline], outages: Sequence[Outage]) -> Iterator[Part]:
    """The pipelines, and what of the fleet cannot be read."""
    for outage in outages:
        yield plain(f"cannot be read: {outage.reason}")
    rows = []
    for one in shown:
        numbers = one.numbers
        used, merged, verified = (numbers.get(n) for n in ("budget_used", "merge_ended_at", "verified_at"))
        rows.append(
            (
                one.name,
                one.state,
                age(numbers["lag_seconds"]) if "lag_seconds" in numbers else "",
                "" if used is None else f"{100 * used:.0f} %",
                "" if "fresh_as_of" not in numbers else utc(numbers["fresh_as_of"]),
                "" if merged is None else utc(merged),
                "" if verified is None else utc(verified),
                one.findings[0].text if one.findings else "",
            )
        )
    columns = ("pipeline", "state", "lag", "source keeps", "fresh as of", "merged", "verified", "")
    yield TextTable(columns, rows)
    yield f"{len(shown)} pipelines"
