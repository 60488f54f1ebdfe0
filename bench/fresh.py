"""fresh: from a commit at the source until a plain reader of the tables sees it, with merges by the daemon.

    PostgreSQL ◀── a writer: changes of five tables, open loop
        └──▶ cdcflow run, with merge.every ──▶ Delta or Iceberg tables, folder or store ◀── delta-rs, PyIceberg

Every transaction changes every table and inserts a row that shows its number, so the time at which a reader first sees
that number is known for each transaction and table. The reader polls, and its query counts. Tables are maintained as by
default.

`python -m bench.fresh` has options for one run of any length; `make bench-fresh` runs the cases of `run`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.servers.objects import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.support.tables.catalogs import catalog_of

from bench import results
from bench.children.freshwriter import CREATE, FIRST
from bench.harness import Budget, Child, Failed, tell
from bench.results import Line, alone, at_most, compared
from bench.server import Server, machine, settings
from cdcflow.config.logs import StoreAccess
from cdcflow.daemon.child_process import list_tree, memory_bytes
from cdcflow.log.maintenance import state_files

ROWS = 5_000_000
"""Of each table."""
TABLES = 5
RATE = 10_000
SECONDS, QUICK_SECONDS = 1800, 180
LIMITS = {"folder": 1.0, "store": 2.0}
"""What p99 should be at most, in seconds."""
HELD_S, HELD_SECONDS = 3.0, 600
"""A rate is held if p99 stays at most this for this long."""
STEPS = (1, 1.5, 2, 3, 4, 6)
"""Of the rate, until one is not held."""
WARM_S = 15.0
"""The beginning of a run does not count."""
LOADED_WITHIN_S = 3600.0
PLOTS = results.RESULTS / "plots"
_TICKS = os.sysconf("SC_CLK_TCK")

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured. `merge` and `log`: settings in addition to those that it needs."""

    table_format: str = "delta"
    place: str = "folder"
    rows: int = ROWS
    rate: float = RATE
    seconds: float = SECONDS
    merge: Mapping[str, object] = field(default_factory=lambda: {"every": "200ms"})
    log: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        size = f"{self.rows / 1e6:g} M" if self.rows >= 1_000_000 else f"{self.rows:,}"
        where = "a folder" if self.place == "folder" else "a store"
        lasts = f"{self.seconds / 60:g} min"
        return f"{self.table_format} in {where}, {TABLES} tables of {size} rows, {self.rate:,.0f} changes/s, {lasts}"


@dataclass(slots=True)
class Run:
    """What a run showed: seconds from each commit to each table's sight of it, with the second in which it happened;
    and samples of the processes: `at`, `cpu_s`, `memory_bytes` (by process), `cycle_s` (a merge's duration)."""

    at: Seconds
    took: Seconds
    samples: list[dict[str, Any]]
    changes_per_second: float
    reader_cpu_s: float

    def p(self, part: float) -> float:
        return float(np.percentile(self.took, part))

    def minutes(self) -> list[tuple[float, float, float]]:
        """p50, p99 and the greatest of each whole minute."""
        found = []
        for begin in range(0, max(60, int(self.at.max())), 60):
            here = self.took[(self.at >= begin) & (self.at < begin + 60)]
            if len(here):
                found.append((*(float(np.percentile(here, p)) for p in (50, 99)), float(here.max())))
        return found

    def between(self, name: str, begin: float, end: float) -> float:
        """The median of a sampled figure in a part of the run."""
        here = [float(s[name]) for s in self.samples if begin <= s["at"] < end and s[name] is not None]
        return float(np.median(here)) if here else 0.0


def run(budget: Budget, transport: str) -> list[Line]:
    seconds = QUICK_SECONDS if budget.quick else SECONDS
    rows = min(budget.rows, 200_000) if budget.quick else budget.rows
    lines = []
    for table_format in ("delta", "iceberg"):
        for place in ("folder", "store"):
            case = Case(table_format, place, rows, seconds=seconds)
            found = measured(case, transport)
            lines += lines_of(case, found)
            draw(case, found)
    if not budget.quick:
        held = highest_rate(Case(rows=rows, seconds=HELD_SECONDS), transport)
        lines.append(alone("fresh", f"changes/s with p99 of {HELD_S:g} s at most, delta in a folder", "rows/s", [held]))
    return lines


def highest_rate(case: Case, transport: str) -> float:
    """The highest of the rates that holds, 0 if none does. A run that fails (a merge that never comes) does not."""
    held = 0.0
    for step in STEPS:
        asked = Case(case.table_format, case.place, case.rows, case.rate * step, case.seconds, case.merge, case.log)
        try:
            found = measured(asked, transport)
        except Failed as error:
            tell(f"    {asked.rate:,.0f} changes/s: {error}")
            break
        if max(p99 for _, p99, _ in found.minutes()) > HELD_S:
            break
        held = found.changes_per_second
    return held


def lines_of(case: Case, found: Run) -> list[Line]:
    """The figures of a run. Those of the fifth minute exist only if the run was long enough to compare them."""
    name, end = case.name, case.seconds
    limit = LIMITS[case.place]
    lines = [
        compared("fresh", name, "s p99", [found.p(99)], [limit], "the aim", at_most(1)),
        alone("fresh", name, "s p50", [found.p(50)]),
        alone("fresh", name, "s, the greatest", [float(found.took.max())]),
        alone("fresh", name, "changes/s captured", [found.changes_per_second]),
    ]
    for unit, key in (("CPU s/s", "cpu_rate"), ("memory MB", "memory_mb"), ("s/merge", "cycle_s")):
        last = found.between(key, end - 60, end)
        if end >= 360:
            fifth = found.between(key, 240, 300)
            aim = at_most(1.2) if key != "cpu_rate" else None
            lines.append(compared("fresh", name, unit, [last], [fifth], "the fifth minute", aim))
        else:
            lines.append(alone("fresh", name, unit, [last]))
    return lines


# ── one run ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tables are: settings of the merge, and how a plain reader finds them."""

    merge: Mapping[str, object]
    tables: tuple[str, ...]
    options: Mapping[str, str]


def measured(case: Case, transport: str = "tcp") -> Run:
    tell(f"  fresh: {case.name}")
    with tempfile.TemporaryDirectory(prefix="fresh-") as folder, ExitStack() as stack:
        server = stack.enter_context(Server(transport))
        filled(server, case.rows)
        room = Path(folder)
        place = stack.enter_context(placed(case, room, server))
        log: dict[str, object] = {"path": str(room / "log"), **case.log}
        config = {**settings(server, room / "log"), "log": log, "merge": {**place.merge, **case.merge}}
        with _daemon(server, room, config) as daemon:
            _wait_for_load(daemon, room / "log", case.rows * TABLES)
            return _watched(case, room, server, daemon, place)


def filled(server: Server, rows: int) -> None:
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


@contextmanager
def placed(case: Case, room: Path, server: Server) -> Iterator[Place]:
    names = [f"t{number}" for number in range(TABLES)]
    merge: dict[str, object] = {"format": case.table_format, "engine": "local"}
    with ExitStack() as stack:
        if case.place == "folder":
            root, options = str(room / "lake"), {}
        else:
            store = stack.enter_context(ObjectServer())
            objects = store.objects("lake").model_dump(mode="json", include=set(StoreAccess.model_fields))
            root = "s3://lake/lake"
            merge["objects"] = {name: value for name, value in objects.items() if value is not None}
            options = _store_options(case.table_format, store)
        merge["warehouse"] = root
        if case.table_format == "delta":
            yield Place(merge, tuple(f"{root}/public/{name}" for name in names), options)
            return
        if case.place == "folder":
            uri = f"sqlite:///{root}/_cdcflow_catalog.db"
        else:
            catalog = merge["catalog"] = stack.enter_context(catalog_of("sql", root, server))
            uri = catalog["uri"].replace("jdbc:postgresql://", "postgresql+psycopg://postgres@")
        yield Place(merge, tuple(f"public.{name}" for name in names), {**options, "type": "sql", "uri": uri})


def _store_options(table_format: str, store: ObjectServer) -> dict[str, str]:
    keys = {"access": ACCESS_KEY, "secret": SECRET_KEY}
    if table_format == "delta":
        return {
            "AWS_ENDPOINT_URL": store.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": keys["access"],
            "AWS_SECRET_ACCESS_KEY": keys["secret"],
        }
    return {
        "s3.endpoint": store.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": keys["access"],
        "s3.secret-access-key": keys["secret"],
    }


@contextmanager
def _daemon(server: Server, room: Path, config: Mapping[str, object]) -> Iterator[Child]:
    """`cdcflow run`, in a process as users have it."""
    file = room / "cdcflow.yaml"
    file.write_text(json.dumps(config))  # YAML has JSON in it
    daemon = Child([sys.executable, "-m", "cdcflow", "run", "--config", file], to_nowhere=True)
    try:
        yield daemon
        daemon.ask_to_end()
        daemon.outcome()
    finally:
        if daemon.is_alive:
            daemon.kill()


def _wait_for_load(daemon: Child, log: Path, rows: int) -> None:
    began = time.monotonic()
    while (state_files.of_merge(log) or {}).get("offset", 0) < rows:
        if not daemon.is_alive:
            daemon.outcome()
            raise Failed("cdcflow ended before the tables were loaded")
        if time.monotonic() - began > LOADED_WITHIN_S:
            raise Failed(f"the tables were not loaded in {LOADED_WITHIN_S:g} s: {state_files.of_merge(log)}")
        time.sleep(0.2)
    tell(f"    loaded in {time.monotonic() - began:.0f} s")


def _watched(case: Case, room: Path, server: Server, daemon: Child, place: Place) -> Run:
    """Write, read and sample for as long as the case lasts."""
    seen, committed = room / "seen", room / "committed"
    given = {"format": case.table_format, "tables": place.tables, "options": place.options}
    asked = {**given, "since": FIRST - 1}
    reader = Child.of("freshreader", {**asked, "times": str(seen)})
    try:
        reader.line()
        before, began_ns = _offset(room / "log"), time.monotonic_ns()
        writing = {"dsn": server.dsn, "tables": TABLES, "rows": case.rows, "rate": case.rate, "seconds": case.seconds}
        writer = Child.of("freshwriter", {**writing, "times": str(committed)})
        with closing(Samples(daemon.pid, room / "log", began_ns)) as samples:
            wrote = writer.outcome()
            seconds = (time.monotonic_ns() - began_ns) / 1e9
            last = np.loadtxt(committed, dtype=np.int64, ndmin=2)[-1, 0]
            _wait_for_last(reader, seen, int(last))
        rate = (_offset(room / "log") - before) / seconds
        reader.ask_to_end()
        read = reader.outcome()
    except BaseException:
        reader.kill()
        raise
    late = float(str(wrote.found.get("late_s", 0)))
    tell(f"    {rate:,.0f} changes/s captured" + (f"; the writer is {late:.1f} s late" if late > 1 else ""))
    at, took = waits(np.loadtxt(committed, dtype=np.int64, ndmin=2), np.loadtxt(seen, dtype=np.int64, ndmin=2))
    counts = (at - at.min()) >= min(WARM_S, case.seconds / 5)
    found = Run((at - at.min())[counts], took[counts], samples.found, rate, read.cpu_s)
    _tell(found, case, read.cpu_s / seconds)
    return found


def _tell(found: Run, case: Case, reader: float) -> None:
    load = " ".join(f"{n:.1f}" for n in os.getloadavg())
    cycle, cpu, memory = (
        found.between(k, case.seconds / 2, case.seconds) for k in ("cycle_s", "cpu_rate", "memory_mb")
    )
    tell(f"    p50 {found.p(50):.2f} s, p99 {found.p(99):.2f} s, greatest {found.took.max():.2f} s; load {load}")
    tell(f"    {cycle:.2f} s a merge, {cpu:.2f} CPU s/s and {memory:.0f} MB, reader {reader:.2f} CPU s/s")
    for number, (p50, p99, most) in enumerate(found.minutes(), 1):
        tell(f"      minute {number}: p50 {p50:.2f}, p99 {p99:.2f}, greatest {most:.2f}")


def _offset(log: Path) -> int:
    return int((state_files.of_merge(log) or {}).get("offset", 0))


def _wait_for_last(reader: Child, seen: Path, last: int, within_s: float = 120.0) -> None:
    """Wait until each table has been seen with the last transaction."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and reader.is_alive:
        lines = [line.split() for line in seen.read_text().splitlines()[-4 * TABLES :]] if seen.exists() else []
        if {int(t) for t, n, *ns in lines if ns and int(n) >= last} >= set(range(TABLES)):
            return
        time.sleep(0.2)
    if not reader.is_alive:
        reader.outcome()
    said = seen.read_text()[-300:] if seen.exists() else "nothing"
    raise Failed(f"a table was not seen with the last transaction, {last}, in {within_s:g} s, but {said}")


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
    """The daemon and its merge process, sampled twice a second by a thread, until `close`."""

    EVERY_S = 0.5

    def __init__(self, pid: int, log: Path, began_ns: int) -> None:
        self.found: list[dict[str, Any]] = []
        self._pid, self._log, self._began = pid, log, began_ns / 1e9
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        before: tuple[float, float] | None = None
        while not self._ended.wait(self.EVERY_S):
            now, pids = time.monotonic(), list_tree(self._pid)
            cpu = sum(map(_cpu_s, pids))
            rate = None if before is None else (cpu - before[1]) / (now - before[0])
            before = now, cpu
            merge = state_files.of_merge(self._log) or {}
            memory = (memory_bytes(pids) or 0) / 1e6
            figures = {"cpu_rate": rate, "memory_mb": memory, "cycle_s": merge.get("seconds"), "cut": merge.get("cut")}
            self.found.append({"at": now - self._began, **figures})


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(n) for n in fields[11:13]) / _TICKS


# ── the plot ────────────────────────────────────────────────────────────────────────────────────────────────


def draw(case: Case, found: Run, directory: Path = PLOTS) -> Path:
    """Freshness over time: of each second the median and the greatest."""
    import matplotlib as mpl  # only who draws needs it

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "cdcflow", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"fresh-{case.table_format}-{case.place}.svg"
    seconds = np.arange(int(found.at.max()) + 1)
    which = found.at.astype(int)
    groups = [found.took[which == second] for second in seconds]
    canvas, axes = pyplot.subplots(figsize=(8.5, 3), layout="constrained")
    axes.plot(seconds / 60, [np.median(g) if len(g) else np.nan for g in groups], color="#0b6e4f", label="median")
    axes.plot(seconds / 60, [g.max() if len(g) else np.nan for g in groups], color="#5b8fb9", lw=0.7, label="greatest")
    axes.axhline(LIMITS[case.place], color="#8a8f98", lw=0.8, ls="--", label="the aim of p99")
    axes.set_title(f"{case.name}\nseconds from commit to seen; lower is better; linear scale", loc="left", fontsize=9)
    axes.set_xlabel("minutes")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=3)
    canvas.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(canvas)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.fresh", description="One run of the bench `fresh`.")
    parser.add_argument("--format", choices=["delta", "iceberg"], default="delta")
    parser.add_argument("--place", choices=["folder", "store"], default="folder")
    parser.add_argument("--rows", type=int, default=200_000, help="of each table (200,000)")
    parser.add_argument("--rate", type=float, default=RATE, help=f"changes a second ({RATE:,})")
    parser.add_argument("--seconds", type=float, default=QUICK_SECONDS, help=f"({QUICK_SECONDS})")
    parser.add_argument("--merge", type=json.loads, default={"every": "200ms"}, help="settings of merge, as JSON")
    parser.add_argument("--log", type=json.loads, default={}, help="settings of log, as JSON")
    parser.add_argument("--plot", type=Path, help="a folder for the plot")
    options = parser.parse_args(arguments)
    case = Case(options.format, options.place, options.rows, options.rate, options.seconds, options.merge, options.log)
    found = measured(case)
    if options.plot is not None:
        tell(str(draw(case, found, options.plot)))
    results.show(lines_of(case, found))
    print(machine("tcp"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
