"""Notifications of gaps, for readers of the topics: which table lacks changes, from where to where, and until when.

    log      ──c──c──┃──c──c── repair ──c──▶        ┃: a gap: positions `before` it, and `after` it
    topics   ──c──c──S──c──c── r, d ────C──c──▶     S: STARTED for each table, before any change that follows the gap
                                                    C: COMPLETED, after the rows that repair the table

They are in the shape of Debezium's notifications, in a topic of one partition that is compacted by table. Each is
committed with the published position, so it is published once. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cdcflow.capture.interleave.progress import GapRecord, gaps_of
from cdcflow.publish.position import Published

How = Literal["compared", "read"]


@dataclass(frozen=True, slots=True)
class GapNotice:
    """One notification about a table. `how`: how its gap ended, `None` if it begins. With "compared", deletions that
    were not captured were published since; with "read", every row that exists was, but no deletion."""

    table: str
    number: int
    at_ms: int
    before: str = ""
    after: str = ""
    how: How | None = None

    def to_json(self, log_id: str, prefix: str) -> bytes:
        state = "STARTED" if self.how is None else "COMPLETED"
        about = {"connector_name": prefix, "data_collection": self.table, "gap": str(self.number)}
        about |= {"before": self.before, "after": self.after} if self.how is None else {"how": self.how}
        found = {
            "id": f"{log_id}/{self.number}/{self.table}",
            "aggregate_type": "Gap",
            "type": state,
            "additional_data": about,
            "timestamp": self.at_ms,
        }
        return json.dumps(found).encode()


def next_gap(progress: Mapping[str, object], published: Published) -> int | None:
    """Return the offset of the next gap that was not published yet; `None` if there is no such gap."""
    return next((int(gap.offset) for gap in _later(progress, published)), None)


def notices(
    progress: Mapping[str, object], at: int, published: Published, now_ms: int
) -> tuple[list[GapNotice], Published]:
    """Return the notifications that are due, and the published position after them.

    `progress`: the log's progress at a cut, and `at` the offset after that cut. That a gap has ended is reported only
    once everything up to the cut is published.
    """
    found: list[GapNotice] = []
    for gap in _later(progress, published):
        if gap.offset > published.next_offset:
            break
        tables = sorted(_tables_in(progress, gap))
        found += [GapNotice(name, gap.number, gap.at_us // 1000, gap.before, gap.after) for name in tables]
        unverified = {**published.unverified, **dict.fromkeys(tables, (gap.number, int(gap.offset)))}
        published = replace(published, gap=gap.number, unverified=unverified)
    if published.next_offset < at:
        return found, published
    left = dict(published.unverified)
    for name, (number, offset) in published.unverified.items():
        if (how := _how_it_ended(_entries(progress).get(name), offset)) is not None:
            found.append(GapNotice(name, number, now_ms, how=how))
            del left[name]
    return found, replace(published, unverified=left)


def _later(progress: Mapping[str, object], published: Published) -> Iterator[GapRecord]:
    if progress.get("gaps"):
        yield from (gap for gap in gaps_of(progress) if gap.number > published.gap)


def _entries(progress: Mapping[str, object]) -> Mapping[str, Mapping[str, Any]]:
    found = progress.get("tables")
    return found if isinstance(found, Mapping) else {}


def _tables_in(progress: Mapping[str, object], gap: GapRecord) -> Iterator[str]:
    """Yield the tables that were captured before a gap."""
    for name, entry in _entries(progress).items():
        is_new = entry["generation"] <= 1 and entry["since"] >= gap.offset and entry.get("gap") is None
        if entry["state"] != "forgotten" and not is_new:
            yield name


def _how_it_ended(entry: Mapping[str, Any] | None, offset: int) -> How | None:
    """Return how a table came to be right again after the gap at this offset; `None` if it is not right yet."""
    if entry is None or entry["state"] != "done":
        return None
    gap = entry.get("gap")
    if gap is None:
        return "read" if entry["since"] >= offset else None
    return "compared" if gap["offset"] >= offset and gap.get("proven") is not None else None
