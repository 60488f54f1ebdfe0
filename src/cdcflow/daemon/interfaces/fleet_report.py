"""The reports of a daemon, and of a process that merges, for the page of a fleet."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cdcflow.daemon.status import verified_of
from cdcflow.fleet.report import FINDINGS_MAX, LEVELS, MemberFinding, MemberReport, bounded_remedy, bounded_text
from cdcflow.version import __version__

EVERY_S = 15.0


def capture_report(
    overview: Mapping[str, Any],
    name: str,
    *,
    every_s: float = EVERY_S,
    page: str | None = None,
    ended: bool = False,
) -> MemberReport:
    """Return the report of a daemon. `overview`: what its page shows. `ended`: it is the last one."""
    status: Mapping[str, Any] = overview.get("status") or {}
    findings: Sequence[Mapping[str, Any]] = overview.get("findings") or ()
    levels = Counter(one["level"] for one in findings)
    kind = (overview.get("source") or {}).get("kind")
    texts = {"source": kind, "reason": status.get("reason"), **_merge_texts(status)}
    return MemberReport(
        name=name,
        kind="capture",
        place=socket.gethostname(),
        at=round(time.time(), 3),
        every_s=every_s,
        state=str(status.get("state") or "starting"),
        version=__version__,
        page=page,
        ended=ended,
        numbers=_present({**_capture_numbers(status, overview), **_table_numbers(status), **_merge_numbers(status)}),
        texts={name: bounded_text(str(text)) for name, text in texts.items() if text},
        findings=_worst(findings),
        errors=levels["error"],
        warnings=levels["warning"],
    )


def merge_report(
    merged: Mapping[str, Any],
    name: str,
    *,
    state: str,
    every_s: float,
    merge_every_s: float | None,
    ended: bool = False,
) -> MemberReport:
    """The report of a process that merges. `merged`: how the last merge went, as the log's folder has it.
    `merge_every_s`: how often this process merges; None: once."""
    findings = list(_merge_findings(merged))
    numbers = {f"merge_{field}": merged.get(field) for field in _MERGE_FIELDS}
    numbers |= {"merge_left_out": merged.get("left_out"), "merge_every_s": merge_every_s}
    return MemberReport(
        name=name,
        kind="merge",
        place=socket.gethostname(),
        at=round(time.time(), 3),
        every_s=every_s,
        state="failing" if merged.get("failed") and state != "merging" else state,
        version=__version__,
        ended=ended,
        numbers=_present(numbers),
        findings=findings,
        warnings=len(findings),
    )


def _merge_findings(merged: Mapping[str, Any]) -> Iterator[MemberFinding]:
    if merged.get("failed"):
        why = bounded_text(str(merged.get("reason") or merged.get("error")))
        yield MemberFinding("warning", f"The last merge failed: {why}.", "The capture continues: read its output.")
    if left := merged.get("left_out"):
        tables = "table" if left == 1 else "tables"
        yield MemberFinding(
            "warning", f"The latest cut lacks {left} {tables}.", "Run `cdcflow merge --once` for the reasons."
        )


_MERGE_FIELDS = ("cut", "offset", "ended_at", "seconds")


def _worst(findings: Sequence[Mapping[str, Any]]) -> list[MemberFinding]:
    ordered = sorted(findings, key=lambda one: LEVELS.index(one["level"]))[:FINDINGS_MAX]
    return [
        MemberFinding(one["level"], bounded_text(one["text"]), bounded_remedy(one.get("remedy"))) for one in ordered
    ]


def _capture_numbers(status: Mapping[str, Any], overview: Mapping[str, Any]) -> dict[str, Any]:
    room: Mapping[str, Any] = overview.get("headroom") or {}
    kept, limit = room.get("retained_bytes"), room.get("limit_bytes")
    used = (status.get("log_budget") or {}).get("used")
    if used is None and limit and isinstance(kept, int):
        used = round(kept / limit, 4)
    same = ("lag_bytes", "lag_seconds", "rows_per_second", "durable_offset")
    return {name: status.get(name) for name in same} | {
        "kept_bytes": kept,
        "kept_bytes_max": limit,
        "budget_used": used,
    }


def _table_numbers(status: Mapping[str, Any]) -> dict[str, Any]:
    tables: Mapping[str, Mapping[str, Any]] = status.get("tables") or {}
    states = Counter(str(one.get("state")) for one in tables.values())
    fresh = [one["fresh_as_of"] for one in tables.values() if one.get("fresh_as_of") is not None]
    verified = [verified_of(status, name) for name in tables]
    times = [one["verified_at"] for one in verified if one["verified_at"] is not None]
    return {
        "tables": len(tables),
        "tables_reading": states["reading"] + states["waiting"] + states["paused"],
        "tables_failed": states["failed"] + states["cancelled"],
        "tables_not_fresh": sum(one.get("freshness") == "not proven" for one in tables.values()),
        "fresh_as_of": min(fresh) if fresh and len(fresh) == len(tables) else None,
        "tables_verified": len(times),
        "verified_at": min(times) if times else None,
        "rows_different": max((one["different"] for one in verified), default=0),
    }


def _merge_numbers(status: Mapping[str, Any]) -> dict[str, Any]:
    merge: Mapping[str, Any] = status.get("merge") or {}
    numbers = {f"merge_{field}": merge.get(field) for field in _MERGE_FIELDS}
    every_s = (merge.get("process") or {}).get("every_seconds")
    return {**numbers, "merge_left_out": merge.get("left_out"), "merge_every_s": every_s}


def _merge_texts(status: Mapping[str, Any]) -> dict[str, Any]:
    merge: Mapping[str, Any] = status.get("merge") or {}
    process: Mapping[str, Any] = merge.get("process") or {}
    is_failing = process.get("failing") is not None if process else merge.get("failed")
    state = "failing" if is_failing else process.get("state")
    return {"merge_state": state, "merge_reason": merge.get("reason") if is_failing else None}


def _present(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: number
        for name, number in numbers.items()
        if isinstance(number, int | float) and not isinstance(number, bool)
    }
