"""governed backfill: how much slower an application's commits are while a table is read, without and with a limit.

pgbench commits single updates at a sixth of its highest rate, in an open loop: a commit that waits delays the next
ones, and their waits count. With more the two cores are full already without a backfill, because they also run the
capture of these updates. Each round has three parts in a random-like order: no backfill, a free one, and one with
`source.backfill.limits.commit_latency_ratio`. The 99th percentile of each part is over all of its commits, from its
beginning until the table is read; for a governed backfill that includes what it measures before it begins.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import contents
from bench.backfill import filled, forget
from bench.harness import Budget, Child, Failed, tell
from bench.results import Line, at_most, compared
from bench.server import Server, fresh_log, settings
from bench.shapes import NARROW
from cdcflow.log.read.reader import newest_checkpoint

ROWS = 5_000_000
CAPTURED = ["public.*", "!public.pgbench_history"]  # the one of pgbench's tables that has no key
CLIENTS = 2
QUIET_S = 20.0
GIVE_UP_S = 1800.0
RATIO = 1.1
QUIET, FREE = "the same without backfill", "the same without a limit"
UPDATE = "\\set aid random(1, 1000000)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
PARTS = ("quiet", "free", "governed")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a round: p99 of the application's commits in ms, and how long a backfill took (0 without one)."""

    p99_ms: float
    read_s: float


def run(budget: Budget, transport: str) -> list[Line]:
    # Unlike the other benches' servers this one flushes: what a commit waits for is what is measured.
    with tempfile.TemporaryDirectory() as folder, Server(transport, fsync="on", full_page_writes="on") as server:
        tell(f"  governed: {budget.rows:,} rows, {transport}, limit {RATIO}")
        filled(server, NARROW, budget.rows)
        script = Path(folder) / "update.sql"
        script.write_text(UPDATE)
        Child([*_pgbench(server), "-i", "-q", "-s", "10"]).outcome()
        bench = _Bench(server, Path(folder), script)
        rate = bench.highest_rate() / 6
        tell(f"    the load: {rate:,.0f} commits a second")
        found = [bench.round(number, rate) for number in range(budget.rounds + 1)][1:]  # the first one warms up
    return _lines(f"{budget.rows:,} rows, {rate:,.0f} commits/s", found)


def _lines(case: str, found: list[dict[str, Part]]) -> list[Line]:
    p99 = {part: [one[part].p99_ms for one in found] for part in PARTS}
    took = {part: [one[part].read_s for one in found] for part in PARTS}
    name = f"{case}, limit {RATIO}"
    return [
        compared("governed", name, "ms p99 of commits", p99["governed"], p99["quiet"], QUIET, at_most(RATIO)),
        compared("governed", name, "s to read the table", took["governed"], took["free"], FREE, at_most(3)),
        compared("governed", f"{case}, no limit", "ms p99 of commits", p99["free"], p99["quiet"], QUIET),
    ]


def _pgbench(server: Server) -> list[str | Path]:
    return [server.bin_directory / "pgbench", "-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "postgres"]


def tps(pgbench: Child) -> float:
    """Transactions a second, as pgbench prints at its end."""
    found = re.search(r"tps = ([0-9.]+)", pgbench.said())
    if found is None:
        raise Failed("pgbench said no rate")
    return float(found[1])


class _Bench:
    def __init__(self, server: Server, folder: Path, script: Path) -> None:
        self._server = server
        self._folder = folder
        self._load = [*_pgbench(server), "-n", "-f", script, "-c", str(CLIENTS)]

    def highest_rate(self) -> float:
        """Commits a second in a closed loop."""
        return tps(Child([*self._load, "-T", "5"]))

    def round(self, number: int, rate: float) -> dict[str, Part]:
        order = PARTS[number % 3 :] + PARTS[: number % 3]
        found = {part: self._part(part, rate) for part in order}
        texts = [f"{part} {found[part].p99_ms:.2f} ms {found[part].read_s:.1f} s" for part in PARTS]
        tell("    p99 of commits: " + ", ".join(texts))
        return found

    def _part(self, part: str, rate: float) -> Part:
        """One part, on a fresh log in which all other tables are read already."""
        forget(self._server)
        os.sync()  # or the operating system writes what earlier parts left, and commits wait for that
        log, others = self._folder / "log", [*CAPTURED, f"!public.{NARROW.name}"]
        limits = {"limits": {"commit_latency_ratio": RATIO}} if part == "governed" else {}
        with fresh_log(None, log):
            Child.of("capture", {"config": settings(self._server, log, tables=others), "once": True}).outcome()
            tables = others if part == "quiet" else CAPTURED
            took = self._under_load(settings(self._server, log, tables=tables, backfill=limits), rate, part != "quiet")
            contents.verify(log, NARROW, contents.source_rows(self._server, NARROW)) if part != "quiet" else None
        return took

    def _under_load(self, config: dict[str, object], rate: float, reads: bool) -> Part:
        prefix = self._folder / f"pgbench.{time.monotonic_ns()}"
        load = Child([*self._load, "-R", f"{rate:.0f}", "-T", "7200", "-l", "--log-prefix", prefix])
        try:
            time.sleep(2)  # connections, caches
            child = Child.of("capture", {"config": config})
            self._server.until_read(child)
            began, begun = time.time(), time.monotonic()
            while time.monotonic() - begun < QUIET_S or (reads and not _is_read(self._folder / "log")):
                time.sleep(0.1)
                if not child.is_alive:
                    child.outcome()
                if time.monotonic() - begun > GIVE_UP_S:
                    raise Failed(f"the table was not read within {GIVE_UP_S:.0f} s")
                if reads and _is_read(self._folder / "log"):
                    break
            ended, took = time.time(), time.monotonic() - begun
        finally:
            load.kill()
        child.ask_to_end()
        child.outcome()
        return Part(_p99_ms(prefix, began, ended), took if reads else 0.0)


def _is_read(log: Path) -> bool:
    tables = newest_checkpoint(log).progress.get("tables", {})
    assert isinstance(tables, dict)
    return bool(tables.get(f"public.{NARROW.name}", {}).get("state") == "done")


def _p99_ms(prefix: Path, began: float, ended: float) -> float:
    """Of commits that ended between two times: pgbench logs client, number, µs since its due time, script, seconds and
    µs of its end, and how late it began."""
    (path,) = prefix.parent.glob(f"{prefix.name}.*")
    lines = [line.split() for line in path.read_text().splitlines()]
    log = np.array([(int(w[2]), int(w[4]), int(w[5])) for w in lines if len(w) >= 7], dtype=np.int64)
    path.unlink()
    at = log[:, 1] + log[:, 2] / 1e6
    took = log[(at >= began) & (at <= ended), 0] / 1e3
    if len(took) < 500:
        raise Failed(f"only {len(took)} commits were measured")
    return float(np.percentile(took, 99))
