"""growth: how a longer log and more tables affect a restart, in time and memory. A longer table is in `backfill`.

The log is created as in production: a capture that seals after every cut, until it has as many segments. Then a new
process starts on it, and has its first new durable change; the median of five. More tables: as many with a row each,
read once; then the same restart.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.backfill import forget
from bench.harness import Budget, Child, Failed, tell
from bench.latency import insert
from bench.results import Line, alone, at_most, compared
from bench.server import Server, fresh_log, settings
from bench.shapes import NARROW
from cdcflow.log.read.check import check
from cdcflow.log.read.reader import newest_checkpoint

ROWS = 10_000
"""The most segments; a tenth as many tables."""

STARTS = 5
SEALED = 30.0
"""Transactions a second, each a segment, while a log is created: as many as sealing keeps up with."""
LOAD = 100.0
"""Transactions a second while a process starts."""


def run(budget: Budget, transport: str) -> list[Line]:
    most = budget.rows
    segments = [max(10, most // 1000), max(20, most // 10), most]
    tables = [1, max(2, most // 100), max(3, most // 10)]
    lines = _segments(segments, transport)
    lines += _tables(tables, transport)
    return lines


def _segments(wants: list[int], transport: str) -> list[Line]:
    sizes: list[int] = []
    restarts, memory = {}, {}
    with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
        server.execute(NARROW.create)
        log = Path(folder) / "log"
        config = settings(server, log)
        config["log"] = {"path": str(log), "seal": {"bytes_max": 1, "age_max": "1h"}}
        for wanted in wants:
            with _load(server, SEALED):
                size = _sealed(server, config, log, wanted)
            tell(f"  growth: {size:,} segments, {transport}")
            sizes.append(size)
            with _load(server, LOAD):
                restarts[size], memory[size] = _restarts(server, log)
            tell(f"    restart {restarts[size]:.0f} ms, {memory[size]:.0f} MB")
        report = check(log)
        if not report.is_whole:
            raise Failed(f"the log does not hold: {report.faults[:3]}")
        tell(f"    the log is whole: {report.segments:,} segments")
    return _lines("segments", sizes, restarts, memory)


def _sealed(server: Server, config: dict[str, object], log: Path, wanted: int) -> int:
    """Let a capture run until the log has this many segments; return the final count (it seals the rest at its end)."""
    child = Child.of("capture", {"config": config})
    server.until_read(child)
    folder = log / "segments"
    while len(list(folder.iterdir()) if folder.exists() else []) < wanted and child.is_alive:
        time.sleep(0.1)
    child.ask_to_end()
    child.outcome()
    return len(list(folder.iterdir()))


def _tables(sizes: list[int], transport: str) -> list[Line]:
    restarts, memory, read = {}, {}, {}
    for size in sizes:
        tell(f"  growth: {size:,} tables, {transport}")
        with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
            server.execute(NARROW.create)
            with server.connect(autocommit=False) as connection:
                for number in range(1, size):
                    connection.execute(f"CREATE TABLE t{number} (id bigint PRIMARY KEY, note text)")
                    connection.execute(f"INSERT INTO t{number} VALUES (1, 'one row')")
                connection.commit()
            log = Path(folder) / "log"
            forget(server)
            with fresh_log(None, log):
                outcome = Child.of("capture", {"config": settings(server, log), "once": True}).outcome()
                read[size] = outcome.seconds
                with _load(server, LOAD):
                    restarts[size], memory[size] = _restarts(server, log)
            tell(f"    first read {read[size]:.1f} s, restart {restarts[size]:.0f} ms, {memory[size]:.0f} MB")
    lines = _lines("tables", sizes, restarts, memory)
    lines += [alone("growth", f"{n:,} tables", "s to read a row of each", [read[n]]) for n in sizes]
    few, many = sizes[-2:]
    exponent = math.log(read[many] / read[few]) / math.log(many / few)
    case = f"{few:,} to {many:,} tables, a row of each"
    lines.append(compared("growth", case, "exponent of time", [exponent], [1.0], "linear", at_most(1.05)))
    return lines


@contextmanager
def _load(server: Server, rate: float) -> Iterator[None]:
    """Single-row transactions throughout, at a fixed rate per second."""
    asked = {"dsn": server.dsn, "statement": insert(NARROW), "connections": 1, "seconds": 0, "rate": rate}
    first = int(server.value(f"SELECT coalesce(max(id), 0) + 1 FROM {NARROW.name}"))
    writer = Child.of("writer", {**asked, "first": first, "rows": 1 << 40})
    try:
        yield
    finally:
        writer.kill()


def _restarts(server: Server, log: Path) -> tuple[float, float]:
    """Median milliseconds from a start to the first new durable change, and the peak of memory in MB until then."""
    took, peaks = [], []
    for _ in range(STARTS):
        there = newest_checkpoint(log).next_offset - 1
        child = Child.of("capture", {"config": settings(server, log), "first_above": there})
        first_ns = child.line()["first_ns"]
        assert isinstance(first_ns, int)
        took.append((first_ns - child.begun_ns) / 1e6)
        peaks.append(child.peak_rss_bytes() / 1e6)
        child.kill()
    return statistics.median(took), statistics.median(peaks)


def _lines(what: str, sizes: list[int], restarts: dict[int, float], memory: dict[int, float]) -> list[Line]:
    small = sizes[0]
    lines = []
    for size in sizes[1:]:
        case = f"{size:,} {what}"
        beside = f"{small:,} {what}"
        lines += [
            compared("growth", case, "ms to restart", [restarts[size]], [restarts[small]], beside, at_most(1.2)),
            compared("growth", case, "peak RSS MB", [memory[size]], [memory[small]], beside, at_most(1.05)),
        ]
    return lines
