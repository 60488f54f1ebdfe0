"""fresh, one run: a writer changes five tables at a fixed rate, and a plain reader measures when it sees each change.

A party (cdcflow, or a peer) runs already, and brings the changes of a server into tables. Several runs can follow each
other: the numbers of their transactions continue.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.children.freshwriter import CREATE, FIRST
from bench.harness import CHILD_SECONDS_MAX, Child, Failed, tell
from bench.server import Server
from cdcflow.daemon.child_process import memory_bytes

TABLES = 5
WARM_S = 15.0
"""The beginning of a run does not count."""
HELD_S = 3.0
"""A rate is held if p99 of each minute is at most this."""
SEEN_WITHIN_S = 300.0
"""How long the last transaction may take to be seen, before the party counts as failed."""
_TICKS = os.sysconf("SC_CLK_TCK")

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tables are: settings of the merge, and how a plain reader finds them."""

    merge: Mapping[str, object]
    tables: tuple[str, ...]
    options: Mapping[str, str]


@dataclass(slots=True)
class Party:
    """Who brings changes into tables. `processes`: the ids of its processes. `cycle_s`: how long its latest merge took,
    if known. `check` raises Failed if it has ended. `next`: the number of the next transaction."""

    server: Server
    room: Path
    rows: int
    table_format: str
    place: Place
    processes: Callable[[], Iterable[int]]
    cycle_s: Callable[[], float | None]
    check: Callable[[], None]
    next: int = FIRST


@dataclass(slots=True)
class Run:
    """What a run showed: seconds from each commit to each table's sight of it, with the second in which it happened;
    and samples of the processes: `at`, `cpu_s`, `memory_bytes` (by process), `cycle_s` (a merge's duration). `late_s`:
    how far the writer fell behind its rate."""

    at: Seconds
    took: Seconds
    samples: list[dict[str, Any]]
    changes_per_second: float
    reader_cpu_s: float
    late_s: float = 0.0

    def p(self, part: float) -> float:
        return float(np.percentile(self.took, part))

    def minutes(self) -> list[tuple[float, float, float]]:
        """p50, p99 and the greatest of each whole minute."""
        found = []
        for begin in range(0, max(60, int(self.at.max())), 60):
            here = self.took[(self.at >= begin) & (self.at < begin + 60)]
            if len(here):
                found.append((float(np.percentile(here, 50)), float(np.percentile(here, 99)), float(here.max())))
        return found

    def between(self, name: str, begin: float, end: float) -> float:
        """The median of a sampled figure in a part of the run."""
        here = [float(s[name]) for s in self.samples if begin <= s["at"] < end and s[name] is not None]
        return float(np.median(here)) if here else 0.0

    @property
    def is_held(self) -> bool:
        """Whether the source was changed at the rate, and readers saw it in time in each minute."""
        return self.late_s <= HELD_S and max(p99 for _, p99, _ in self.minutes()) <= HELD_S


def fill(server: Server, rows: int) -> None:
    """Create the tables of the source, and the function that changes them."""
    for number in range(TABLES):
        server.execute(
            f"CREATE TABLE t{number} (id bigint PRIMARY KEY, qty int, price double precision, at timestamptz,"
            " note text, doc text)"
        )
        server.execute(
            f"INSERT INTO t{number} SELECT i, i % 1000, i * 0.25, timestamptz '2026-01-01' + i * interval '1 second',"
            f" md5((i % 4096)::text), md5((i * 7 % 4096)::text) FROM generate_series(1, {rows}) i"
        )
        server.execute(f"VACUUM (ANALYZE) t{number}")
    server.execute(CREATE)


def run(party: Party, rate: float, seconds: float) -> Run:
    """Write, read and sample for this long.

    Raises:
        Failed: the party or the reader ended, or a table was never seen with the last transaction.
    """
    seen, committed = party.room / f"seen-{party.next}", party.room / f"committed-{party.next}"
    place = {"format": party.table_format, "tables": party.place.tables, "options": party.place.options}
    reader = Child.of("freshreader", {**place, "since": party.next - 1, "times": str(seen)})
    try:
        reader.line()
        began_ns = time.monotonic_ns()
        given = {"dsn": party.server.dsn, "tables": TABLES, "rows": party.rows, "rate": rate, "seconds": seconds}
        writer = Child.of("freshwriter", {**given, "first": party.next, "times": str(committed)})
        with closing(Samples(party.processes, party.cycle_s, began_ns)) as samples:
            wrote = writer.outcome(within_s=seconds + CHILD_SECONDS_MAX)
            passed = (time.monotonic_ns() - began_ns) / 1e9
            commits = np.loadtxt(committed, dtype=np.int64, ndmin=2)
            party.next = int(commits[-1, 0]) + 1
            _wait_for_last(party, reader, seen, party.next - 1)
        reader.ask_to_end()
        read = reader.outcome()
    except BaseException:
        reader.kill()
        raise
    late_s = float(str(wrote.found["late_s"]))
    at, took = waits(commits, np.loadtxt(seen, dtype=np.int64, ndmin=2))
    counts = (at - at.min()) >= min(WARM_S, seconds / 5)
    changes = int(str(wrote.found["changes"])) / passed
    found = Run((at - at.min())[counts], took[counts], samples.found, changes, read.cpu_s, late_s)
    _tell(found, seconds, read.cpu_s / passed)
    return found


def highest_rate(
    measure: Callable[[float, float], Run], rates: Sequence[float], begin: float, step_s: float, held_s: float
) -> tuple[float, Run | None]:
    """The highest of the ascending rates that is held for `held_s`, with its run; 0 if none is. `measure` runs a rate
    for a number of seconds. Short steps of `step_s` lead there: up from `begin`, or down if that is not held."""

    def is_held(number: int, seconds: float) -> Run | None:
        tell(f"    {rates[number]:,.0f} changes/s for {seconds:g} s:")
        try:
            found = measure(rates[number], seconds)
        except Failed as error:
            tell(f"    not held: {error}")
            return None
        return found if found.is_held else None

    chosen = rates.index(begin)
    if is_held(chosen, step_s) is not None:
        while chosen + 1 < len(rates) and is_held(chosen + 1, step_s) is not None:
            chosen += 1
    else:
        chosen -= 1
        while chosen >= 0 and is_held(chosen, step_s) is None:
            chosen -= 1
    while chosen >= 0:
        if (found := is_held(chosen, held_s)) is not None:
            return rates[chosen], found
        chosen -= 1
    return 0.0, None


def _tell(found: Run, seconds: float, reader: float) -> None:
    load = " ".join(f"{n:.1f}" for n in os.getloadavg())
    late = f"; the writer is {found.late_s:.1f} s late" if found.late_s > 1 else ""
    cycle, cpu, memory = (found.between(k, seconds / 2, seconds) for k in ("cycle_s", "cpu_rate", "memory_mb"))
    tell(f"    {found.changes_per_second:,.0f} changes/s{late}")
    tell(f"    p50 {found.p(50):.2f} s, p99 {found.p(99):.2f} s, greatest {found.took.max():.2f} s; load {load}")
    tell(f"    {cycle:.2f} s a merge, {cpu:.2f} CPU s/s and {memory:.0f} MB, reader {reader:.2f} CPU s/s")
    if seconds >= 120:
        for number, (p50, p99, most) in enumerate(found.minutes(), 1):
            tell(f"      minute {number}: p50 {p50:.2f}, p99 {p99:.2f}, greatest {most:.2f}")


def _wait_for_last(party: Party, reader: Child, seen: Path, last: int) -> None:
    """Wait until each table has been seen with the last transaction."""
    until = time.monotonic() + SEEN_WITHIN_S
    while time.monotonic() < until and reader.is_alive:
        party.check()
        lines = [line.split() for line in seen.read_text().splitlines()[-4 * TABLES :]] if seen.exists() else []
        if {int(t) for t, n, *ns in lines if ns and int(n) >= last} >= set(range(TABLES)):
            return
        time.sleep(0.2)
    if not reader.is_alive:
        reader.outcome()
    said = seen.read_text()[-300:] if seen.exists() else "nothing"
    raise Failed(f"a table was not seen with the last transaction, {last}, in {SEEN_WITHIN_S:g} s, but {said}")


def waits(commits: npt.NDArray[np.int64], sights: npt.NDArray[np.int64]) -> tuple[Seconds, Seconds]:
    """For each transaction and table: when it was committed, and how long it took until it was seen; in seconds.

    Raises:
        Failed: a table was never seen with the last one.
    """
    at, took = [], []
    for table in range(TABLES):
        here = sights[sights[:, 0] == table]
        if not len(here) or here[-1, 1] < commits[-1, 0]:
            raise Failed(f"table {table} was never seen with the last transaction")
        first = here[np.searchsorted(here[:, 1], commits[:, 0]), 2]
        at.append(commits[:, 1] / 1e9)
        took.append((first - commits[:, 1]) / 1e9)
    return np.concatenate(at), np.concatenate(took)


class Samples:
    """A party's processes, sampled twice a second by a thread, until `close`."""

    EVERY_S = 0.5

    def __init__(
        self, processes: Callable[[], Iterable[int]], cycle_s: Callable[[], float | None], began_ns: int
    ) -> None:
        self.found: list[dict[str, Any]] = []
        self._processes, self._cycle_s, self._began = processes, cycle_s, began_ns / 1e9
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        before: tuple[float, float] | None = None
        while not self._ended.wait(self.EVERY_S):
            now, pids = time.monotonic(), list(self._processes())
            cpu = sum(map(_cpu_s, pids))
            rate = None if before is None else (cpu - before[1]) / (now - before[0])
            before = now, cpu
            memory = (memory_bytes(pids) or 0) / 1e6
            figures = {"cpu_rate": rate, "memory_mb": memory, "cycle_s": self._cycle_s()}
            self.found.append({"at": now - self._began, **figures})


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(n) for n in fields[11:13]) / _TICKS
