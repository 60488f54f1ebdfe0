"""tables, freshness: from a commit's answer at the writer to a call of `read_live` that has the row.

One connection commits single-row transactions at a modest pace, a daemon seals what it captured every two seconds, and
a reader calls `read_live` again and again and looks for the latest id. Rows are visible when the first call that has
them has ended, so a call's duration counts, and the rest of the one before it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tests.servers.objects import ObjectServer

from bench.backfill import forget
from bench.harness import Budget, Child, Failed, tell
from bench.latency import Times, insert, pairs
from bench.results import Line, at_most, compared
from bench.server import Server, settings
from bench.shapes import NARROW
from bench.tablesscan import ENGINES

Seconds = npt.NDArray[np.float64]

SEAL_AGE_S = 2.0
BEHIND_S = 2.0
"""What may pass beyond the age at which a segment is sealed."""

RATE = 50.0
SECONDS, SECONDS_MIN = 60.0, 20.0
"""Of a run with two million rows in the budget, and at least."""

FULL_ROWS = 2_000_000
WARM = 0.1
"""This part of each run does not count."""

THERE = 1000
"""Rows that are merged before."""


def freshness(table_format: str, budget: Budget) -> list[Line]:
    seconds = max(SECONDS_MIN, SECONDS * min(1.0, budget.rows / FULL_ROWS))
    lines = []
    with tempfile.TemporaryDirectory() as folder, Server() as server, ObjectServer() as store:
        server.execute(NARROW.create)
        for place in ("disk", "S3"):
            for engine, said in ENGINES.items():
                case = f"freshness, {RATE:g} commits/s, sealed every {SEAL_AGE_S:g} s, log {_in(place)}, {said}"
                tell(f"  tables: {case}")
                room = Path(folder) / f"{place} {engine}"
                room.mkdir()
                objects = store.objects("logs", f"{table_format}-{engine}") if place == "S3" else None
                log: dict[str, object] = {"path": str(room / "log"), "seal": {"age_max": f"{SEAL_AGE_S:g}s"}}
                if objects is not None:
                    log["objects"] = objects.model_dump(mode="json", exclude_none=True)
                took = _took(server, room, log, {"format": table_format, "engine": engine}, seconds)
                tell(f"    p50 {np.percentile(took, 50):.2f} s, p99 {np.percentile(took, 99):.2f} s")
                aim = SEAL_AGE_S + BEHIND_S
                for part, target in ((99, at_most(1)), (50, None)):
                    value = float(np.percentile(took, part))
                    lines.append(compared("tables", case, f"s p{part}", [value], [aim], "seal age + 2 s", target))
    return lines


def _in(place: str) -> str:
    return f"{'on' if place == 'disk' else 'in'} {place}"


def _took(server: Server, room: Path, log: dict[str, object], reading: dict[str, str], seconds: float) -> Seconds:
    """Seconds from each commit to its row's first sight."""
    rows = round(RATE * seconds)
    forget(server)
    server.execute(f"TRUNCATE {NARROW.name}")
    server.execute(NARROW.insert(str(1 - THERE), "0"))
    seen, committed = room / "seen", room / "committed"
    with _daemon(server, room, log):
        asked = {**reading, "log": {**log, "path": str(room / "log read")} if "objects" in log else log}
        given = {"warehouse": str(room / "warehouse"), "scratch": str(room / "scratch"), "times": str(seen)}
        reader = Child.of("livereader", {**asked, **given, "table": f"public.{NARROW.name}", "there": 0, "last": rows})
        try:
            reader.line()
            paced = {"dsn": server.dsn, "statement": insert(NARROW), "connections": 1, "first": 1, "rows": rows}
            Child.of("writer", {**paced, "rate": RATE, "seconds": 0, "times": str(committed)}).outcome()
            calls = reader.outcome().found["calls"]
        except BaseException:
            reader.kill()
            raise
    tell(f"    {calls} calls of read_live")
    return waits(pairs(committed), pairs(seen))[int(rows * WARM) :]


def waits(commits: Times, sights: Times) -> Seconds:
    """From each commit (id, ns) to the end of the first call (latest id, ns) that had its row.

    Raises:
        Failed: the last row was never seen.
    """
    newest = np.maximum.accumulate(sights[:, 0])
    if newest[-1] < commits[-1, 0]:
        raise Failed(f"row {commits[-1, 0]} was committed, and {newest[-1]} is the latest that was seen")
    found: Seconds = (sights[np.searchsorted(newest, commits[:, 0]), 1] - commits[:, 1]) / 1e9
    return found


@contextmanager
def _daemon(server: Server, room: Path, log: dict[str, object]) -> Iterator[None]:
    config = {**settings(server, room / "log"), "log": log}
    daemon = Child.of("capture", {"config": config})
    try:
        server.until_read(daemon)
        yield
        daemon.ask_to_end()
        daemon.outcome()
    except BaseException:
        daemon.kill()
        raise
