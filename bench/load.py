"""backfill under load: a large table is read while pgbench runs and a live table is written.

Three questions. How much later do live rows get durable while a backfill runs (p99, compared with the same load without
a backfill)? How much log does the server keep in that time? How many transactions a second does the source lose,
compared with a raw reader of the same table (two COPY of its halves, over and over)?
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import contents, governed
from bench.backfill import filled, forget, halves
from bench.governed import tps
from bench.harness import Budget, Child, Failed, tell
from bench.latency import Times, durable_times, insert, pairs
from bench.results import Line, alone, at_most, compared
from bench.server import SLOT, Server, fresh_log, settings
from bench.shapes import NARROW, Shape
from cdcflow.log.read.reader import newest_checkpoint

ROWS = 5_000_000
LIVE = Shape("live", NARROW.columns)
CAPTURED = ["public.*", "!public.pgbench_history"]  # the one of pgbench's tables that has no key
LIVE_RATE = 200.0
SECONDS = 10.0
CLIENTS = 2
QUIET = "the same without backfill"
RAW_READER = "two COPY of its halves"
SEGMENT_MB, SEGMENTS, WINDOW_MB = 16 * 1.048576, 3, 64 * 1.048576


def run(budget: Budget, transport: str) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
        tell(f"  load: {budget.rows:,} rows, {transport}")
        filled(server, NARROW, budget.rows)
        server.execute(LIVE.create)
        Child([*_pgbench(server), "-i", "-q", "-s", "10"]).outcome()
        most = tps(Child([*_pgbench(server), "-c", str(CLIENTS), "-T", "5"]))
        tell(f"    pgbench alone: {most:,.0f} transactions a second; half of that is the load")
        case = f"{budget.rows:,} rows, pgbench at {most / 2:,.0f}/s"
        lines = _live(server, Path(folder), case, most / 2, budget.rounds)
        lines += _loss(server, Path(folder), f"{budget.rows:,} rows, pgbench at full speed", most, budget.rounds)
    return lines + governed.run(budget, transport)


def _pgbench(server: Server) -> list[str | Path]:
    return [server.bin_directory / "pgbench", "-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "postgres"]


# ── live rows, and the log that is kept ─────────────────────────────────────────────────────────────────────


class Kept:
    """Samples how much log the slot makes the server keep, until `stop`. Sizes in MB."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.retained_mb = self.unacknowledged_mb = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        query = "SELECT pg_current_wal_lsn() - restart_lsn, pg_current_wal_lsn() - confirmed_flush_lsn "
        query += f"FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        with self.server.connect() as connection:
            while not self._ended.wait(0.2):
                row = connection.execute(query.encode()).fetchone()
                if row is not None and None not in row:
                    self.retained_mb = max(self.retained_mb, float(row[0]) / 1e6)
                    self.unacknowledged_mb = max(self.unacknowledged_mb, float(row[1]) / 1e6)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class Watched:
    """A capture under load: p99 of live rows, what the server kept, how long a backfill took (0 without a backfill)."""

    p99_ms: float
    kept: Kept
    read_s: float


def _live(server: Server, folder: Path, case: str, rate: float, rounds: int) -> list[Line]:
    """The load with and without a backfill, each round on a fresh log in which all other tables are read already."""
    log, others = folder / "log", [*CAPTURED, f"!public.{NARROW.name}"]
    quiet: list[Watched] = []
    reading: list[Watched] = []
    for number in range(rounds + 1):
        forget(server)
        with fresh_log(None, log):
            Child.of("capture", {"config": settings(server, log, tables=others), "once": True}).outcome()
            tables = others
            for reads in (False, True) if number % 2 else (True, False):
                tables = CAPTURED if reads else tables
                watched = _watched(server, folder, settings(server, log, tables=tables), rate, reading=reads)
                tell(f"    p99 {watched.p99_ms:.1f} ms {'with a' if reads else 'without'} backfill")
                if number:  # the first round warms up
                    (reading if reads else quiet).append(watched)
            contents.verify(log, LIVE, contents.source_rows(server, LIVE))
            contents.verify(log, NARROW, contents.source_rows(server, NARROW))
    bound = [SEGMENTS * SEGMENT_MB + WINDOW_MB] * rounds
    p99, their_p99 = ([w.p99_ms for w in which] for which in (reading, quiet))
    retained, their_retained = ([w.kept.retained_mb for w in which] for which in (reading, quiet))
    pending, their_pending = ([w.kept.unacknowledged_mb for w in which] for which in (reading, quiet))
    return [
        compared("load", case, "ms p99 of live rows", p99, their_p99, QUIET, at_most(2)),
        compared("load", case, "MB retained", retained, bound, "3 segments + one window", at_most(1)),
        compared("load", case, "MB retained", retained, their_retained, QUIET),
        compared("load", case, "MB unacknowledged", pending, their_pending, QUIET),
        alone("load", case, "s to read the table", [w.read_s for w in reading]),
    ]


def _watched(server: Server, folder: Path, config: dict[str, object], rate: float, *, reading: bool) -> Watched:
    committed, arrived = folder / "committed", folder / "arrived"
    log = folder / "log"
    first = int(server.value(f"SELECT coalesce(max(id), 0) + 1 FROM {LIVE.name}"))
    load = Child([*_pgbench(server), "-c", str(CLIENTS), "-R", f"{rate:.0f}", "-T", "3600"])
    asked = {"dsn": server.dsn, "statement": insert(LIVE), "connections": 1, "seconds": 0, "rate": LIVE_RATE}
    writer = Child.of("writer", {**asked, "first": first, "rows": 1 << 40, "times": str(committed)})
    try:
        child = Child.of("capture", {"config": config, "times": str(arrived)})
        server.until_read(child)
        kept, begun = Kept(server), time.monotonic()
        began_ns = time.monotonic_ns()
        took = 0.0
        while time.monotonic() - begun < SECONDS or (reading and not took):
            time.sleep(0.1)
            if reading and not took and _is_read(log):
                took = time.monotonic() - begun
            if not child.is_alive:
                child.outcome()
        kept.stop()
        writer.ask_to_end()
        writer.outcome()
    finally:
        load.kill()
    time.sleep(1)  # the last writes become durable
    child.ask_to_end()
    child.outcome()
    return Watched(_p99(log, pairs(committed), pairs(arrived), began_ns), kept, took)


def _is_read(log: Path) -> bool:
    tables = newest_checkpoint(log).progress.get("tables", {})
    assert isinstance(tables, dict)
    return bool(tables.get(f"public.{NARROW.name}", {}).get("state") == "done")


def _p99(log: Path, committed: Times, syncs: Times, began_ns: int) -> float:
    durable = durable_times(log, LIVE, syncs)
    known = dict(zip(durable[:, 0].tolist(), durable[:, 1].tolist(), strict=True))
    took = [(known[i] - ns) / 1e6 for i, ns in committed.tolist() if ns >= began_ns and i in known]
    if len(took) < 100:
        raise Failed(f"only {len(took)} live rows were written")
    return float(np.percentile(took, 99))


# ── the source's loss ──────────────────────────────────────────────────────────────────────────────────────


def _loss(server: Server, folder: Path, case: str, most: float, rounds: int) -> list[Line]:
    ours: list[float] = []
    theirs: list[float] = []
    alone_tps: list[float] = []
    for number in range(rounds):
        alone_tps.append(tps(Child([*_pgbench(server), "-c", str(CLIENTS), "-T", str(int(SECONDS))])))
        for which in (0, 1) if number % 2 else (1, 0):
            (_with_backfill if which else _with_reader)(server, folder, ours if which else theirs)
        tell(f"    pgbench alone {alone_tps[-1]:,.0f}/s, with backfill {ours[-1]:,.0f}, with COPY {theirs[-1]:,.0f}")
    lost = [1 - tps / base for tps, base in zip(ours, alone_tps, strict=True)]
    their_lost = [max(1 - tps / base, 0.001) for tps, base in zip(theirs, alone_tps, strict=True)]
    return [
        compared("load", case, "share of source TPS lost", lost, their_lost, RAW_READER, at_most(1.1)),
        compared("load", case, "source TPS", ours, alone_tps, "pgbench alone"),
    ]


def _with_backfill(server: Server, folder: Path, found: list[float]) -> None:
    log = folder / "log"
    forget(server)
    with fresh_log(None, log):
        child = Child.of("capture", {"config": settings(server, log, tables=[f"public.{NARROW.name}"]), "once": True})
        server.until_read(child)
        found.append(tps(Child([*_pgbench(server), "-c", str(CLIENTS), "-T", str(int(SECONDS))])))
        if not child.is_alive:
            tell("      the backfill ended before pgbench did: a larger table would show more")
        child.kill()
    forget(server)


def _with_reader(server: Server, folder: Path, found: list[float]) -> None:
    ended = threading.Event()

    def read(statement: str) -> None:
        psql: list[str | Path] = [server.bin_directory / "psql", "-X", "-q", "-d", server.dsn, "-c", statement]
        while not ended.is_set():
            Child(psql, to_nowhere=True).outcome()

    threads = [threading.Thread(target=read, args=(s,)) for s in halves(server, NARROW.name)]
    for thread in threads:
        thread.start()
    found.append(tps(Child([*_pgbench(server), "-c", str(CLIENTS), "-T", str(int(SECONDS))])))
    ended.set()
    for thread in threads:
        thread.join()
