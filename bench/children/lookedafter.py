"""One maintenance run of a warehouse, by either engine."""

from __future__ import annotations

from typing import Any


def looked_after(engines: Any, policy: dict[str, Any]) -> dict[str, Any]:
    """What it did, what it skipped and why, and whether its time was too short."""
    from cdcflow.tables.job.maintenance import OUT_OF_TIME, UpkeepPolicy, upkeep

    report = upkeep(engines, UpkeepPolicy(**policy))
    skipped = {one.name: one.skipped for one in report.tables if one.skipped}
    return {
        "done": [what for one in report.tables for what in one.done],
        "skipped": skipped,
        "is_late": bool(report.put_off) or OUT_OF_TIME in skipped.values(),
    }
