"""A timeline as text: one line per event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cdcflow.reports.readable import age, plain, utc_time

if TYPE_CHECKING:
    from cdcflow.wiring.timelines import Timeline


def timeline_lines(found: Timeline) -> Iterator[str]:
    """The events of a timeline, oldest first, and how many there were."""
    events = [(one.begin, one.lane, _with_length(one.begin, one.end, one.text)) for one in found.spans]
    events += [(one.at, one.lane, one.text) for one in found.marks]
    for at, lane, text in sorted(events):
        yield plain(f"{_utc(at)}  {lane:<8}  {text}")
    rows = sum(one.rows for one in found.rates)
    yield plain(f"{_utc(found.begin)} to {_utc(found.end)}: {len(events)} events, {rows:,} rows in {found.name}")


def _with_length(begin: float, end: float, text: str) -> str:
    return text if end - begin < 1 else f"{text} (for {age(end - begin)}, until {_utc(end)})"


def _utc(at: float) -> str:
    return f"{utc_time(int(at * 1e6))[:19]}Z"
