"""The move of a log as text: where it goes, what is missing there, and what happens to each table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdcflow.reports.parts import Part, TextTable
from cdcflow.reports.readable import number, plain, size

if TYPE_CHECKING:
    from cdcflow.log.read.log_reader import LogReader
    from cdcflow.model.position import Checkpoint
    from cdcflow.wiring.moves import Outcome, PlannedMove

_TARGETS = {
    "same": "the log's own server",
    "upgraded": "the log's server after an upgrade",
    "other": "another server with the same tables",
}
_OUTCOMES: Mapping[Outcome, str] = {
    "continues": "continues, nothing is missing",
    "compared": "is compared; rows that differ are corrected",
    "read": "is read again",
    "added": "is new",
}


def move_parts(planned: PlannedMove, log: LogReader, address: str) -> Iterator[Part]:
    """What a move of a log would do. `address`: that of the new source."""
    plan = planned.plan
    for name, text in (
        ("log", log.name),
        ("from", plan.came_from),
        ("to", f"{plan.server} ({address})"),
        ("that is", f"{_TARGETS[plan.kind]}: {plan.text}"),
        ("missing", "nothing" if plan.is_whole else "what was committed after the log's end: there will be a gap"),
        ("log's end", _end(log.newest_checkpoint())),
    ):
        yield plain(f"{name + ':':<10} {text}")
    rows = [(t.id, _OUTCOMES[what], number(t.rows), size(t.bytes)) for t, what in planned.tables]
    yield TextTable(("table", "", "rows", "bytes"), rows, 2)
    for step in plan.steps:
        yield plain(f"then: {step}")
    for found in plan.findings:
        yield plain(f"{found.level}: {found.subject}: {found.text}")
        if found.remedy is not None:
            yield plain(f"    {found.remedy}")


def _end(checkpoint: Checkpoint) -> str:
    at = datetime.fromtimestamp(checkpoint.commit_clock / 1e6, UTC).isoformat(timespec="seconds")
    return f"{checkpoint.position}; it has everything that was committed up to {at}"


def move_as_json(planned: PlannedMove) -> dict[str, object]:
    """What a move of a log would do, as JSON."""
    plan = planned.plan
    return {
        "target": plan.kind,
        "is_whole": plan.is_whole,
        "from": plan.came_from,
        "to": plan.server,
        "text": plan.text,
        "tables": [
            {"table": str(t.id), "outcome": what, "rows": t.rows, "bytes": t.bytes} for t, what in planned.tables
        ],
        "steps": list(plan.steps),
        "findings": [found.to_json() for found in plan.findings],
    }
