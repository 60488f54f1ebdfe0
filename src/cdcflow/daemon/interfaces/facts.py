"""The surroundings of a capture: room on the log's disk, log that the source retains, cuts that merges published."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MERGES_MAX = 5


def disk(folder: Path) -> dict[str, Any]:
    """Room on the disk of the log's folder; {} if it cannot be determined."""
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return {}
    return {"folder": str(folder), "free_bytes": found.free, "total_bytes": found.total}


def headroom(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much log the source retains for cdcflow, and how much it retains at most.

    `limit_bytes`: the limit of the server or of the log's budget; `None` if the source retains without limit, or
    reports none. `kept_seconds`: the same in seconds; binary logs expire by age. `files_until_lost`: how many files are
    older than cdcflow's and are removed first. `lost`: the source has removed log that cdcflow needs.
    """
    details: Mapping[str, str] = status.get("source") or {}
    retained, safe = status.get("retained_bytes"), _count(details.get("safe_wal_bytes"))
    limit = _count(details.get("kept_bytes_max"))
    if safe is not None and isinstance(retained, int):
        limit = max(0, retained + safe)
    budget = (status.get("log_budget") or {}).get("budget_bytes")
    if budget is not None:
        limit = budget if limit is None else min(limit, budget)
    return {
        "retained_bytes": retained,
        "limit_bytes": limit,
        "kept_seconds": _count(details.get("kept_seconds")),
        "files_until_lost": _count(details.get("files_until_lost")),
        "lost": bool(status.get("log_lost")),
    }


def _count(text: str | None) -> int | None:
    with contextlib.suppress(TypeError, ValueError):
        return int(text)  # type: ignore[arg-type]  # for None, TypeError is suppressed
    return None


def merges(cuts: Path) -> list[dict[str, Any]]:
    """Return the latest published cuts of a warehouse, latest first, each with when it was published.

    `cuts`: the folder of the table of cuts. Each commit of that table names the cut that it published, so no engine is
    needed to read it. Commits that cannot be read are omitted.
    """
    found: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for clock_ms, said in _commits(cuts):
            if (cut := said.get("published")) is not None:
                found.append(merge_of(cut, clock_ms))
            if len(found) == MERGES_MAX:
                break
    return found


def merge_of(cut: Mapping[str, Any], clock_ms: int) -> dict[str, Any]:
    """Return the facts of a published cut that the page shows. `cut`: its stored JSON."""
    return {
        "cut": cut["cut"],
        "offset": cut["offset"],
        "commit_clock": cut["commit_clock"],
        "published": clock_ms * 1000,
        "tables": len(cut["tables"]),
        "incomplete": sorted(name for name, table in cut["tables"].items() if not table["complete"]),
        "left_out": dict(cut.get("left_out") or {}),
    }


def _commits(cuts: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the commit messages of the table of cuts, latest first, with their times (ms): Delta's, or Iceberg's."""
    for commit in sorted((cuts / "_delta_log").glob("*.json"), reverse=True):
        for line in commit.read_text("utf-8").splitlines():
            if '"commitInfo"' in line and "userMetadata" in (info := json.loads(line).get("commitInfo", {})):
                yield info["timestamp"], _commit_message(info["userMetadata"])
    versions = sorted((cuts / "metadata").glob("*.metadata.json"), key=lambda path: path.stat().st_mtime_ns)
    if versions:
        snapshots = json.loads(versions[-1].read_text("utf-8")).get("snapshots", [])
        for snapshot in sorted(snapshots, key=lambda one: int(one["timestamp-ms"]), reverse=True):
            texts = [text for text in snapshot["summary"].values() if '"published"' in text]
            yield snapshot["timestamp-ms"], _commit_message(texts[0]) if texts else {}


def _commit_message(text: str) -> Mapping[str, Any]:
    """Return the message of one of cdcflow's commits: at the top level, or below another name. Other commits are
    ignored."""
    found: Mapping[str, Any] = json.loads(text)
    if "published" in found:
        return found
    inner: object = next(iter(found.values()), {})
    return inner if isinstance(inner, dict) else {}
