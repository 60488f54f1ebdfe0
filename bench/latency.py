"""latency: from a commit's answer at the writer to the row on disk in the log.

An open-loop writer commits single-row transactions at 10, 50 and 80 % of the machine's maximum while the limit reads
along: `psycopg.pq`, every message appended to a file, one fdatasync for all that arrived together. Both ends read the
machine's one monotonic clock. Debezium's rows count when its consumer has them, nothing stored.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench import contents, peers
from bench.backfill import forget
from bench.drain import US
from bench.harness import Budget, Child, Failed, Outcome, Party, rounds, tell
from bench.parties import DEBEZIUM
from bench.results import Line, alone, at_most, compared
from bench.server import PUBLICATION, SLOT, Server, fresh_log, settings
from bench.shapes import NARROW, Shape
from cdcflow.log.read.reader import read_rows
from cdcflow.model.table import OFFSET, TableId

ROWS = 100_000
LIMIT = "raw drain, one fdatasync a batch"
LOADS = (0.1, 0.5, 0.8)
SECONDS, QUICK_SECONDS = 10.0, 5.0
CONNECTIONS = 2
WARM = 0.4  # this part of each run does not count
DEBEZIUM_WARM_ROWS, DEBEZIUM_WARM_S = 60_000, 5.0  # a JVM needs more: this backlog, and this pause, before its run

Times = npt.NDArray[np.int64]


def insert(shape: Shape) -> str:
    """An INSERT of the row whose id is the parameter."""
    listed = ", ".join(expression for _, _, expression in shape.columns)
    return f"INSERT INTO {shape.name} SELECT {listed} FROM (SELECT $1::bigint AS i) AS one"


@dataclass(frozen=True, slots=True)
class Bench:
    """The state that the parties of one run share."""

    server: Server
    folder: Path
    rate: float
    rows: int

    def writer(self) -> Child:
        asked = {"dsn": self.server.dsn, "statement": insert(NARROW), "connections": CONNECTIONS}
        paced = {"first": 1, "rows": self.rows, "rate": self.rate, "seconds": 0, "times": str(self.committed)}
        return Child.of("writer", {**asked, **paced})

    @property
    def committed(self) -> Path:
        return self.folder / "committed"

    @property
    def arrived(self) -> Path:
        return self.folder / "arrived"

    def empty(self) -> None:
        """An empty table, no slot, no publication."""
        forget(self.server)
        self.server.execute(f"TRUNCATE {NARROW.name}")

    def with_slot(self) -> None:
        self.empty()
        self.server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {NARROW.name}")
        self.server.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
        server.execute(NARROW.create)
        most = sustained(server, Path(folder))
        tell(f"  latency: {most:,.0f} transactions a second are what the machine bears with the limit reading along")
        for load in LOADS[1:2] if budget.quick else LOADS:
            rate = most * load
            rows = round(rate * (QUICK_SECONDS if budget.quick else SECONDS))
            tell(f"  latency: {load:.0%} load, {rate:,.0f} single-row transactions a second, {transport}")
            lines += _load(Bench(server, Path(folder), rate, rows), f"{load:.0%} load, {rate:,.0f} commits/s", budget)
    return lines


def sustained(server: Server, folder: Path) -> float:
    """Single-row transactions a second in a closed loop, with the limit reading along."""
    bench = Bench(server, folder, 0, 1 << 40)
    bench.with_slot()
    reader = _raw(bench, 1 << 40)
    bench.server.until_read(reader)
    asked = {"dsn": server.dsn, "statement": insert(NARROW), "connections": CONNECTIONS}
    outcome = Child.of("writer", {**asked, "first": 1, "rows": 10_000_000, "rate": 0, "seconds": 3}).outcome()
    reader.kill()
    return outcome.rate


def _raw(bench: Bench, rows: int) -> Child:
    place = {"slot": SLOT, "publication": PUBLICATION, "dsn": bench.server.replication_dsn}
    files = {"path": str(bench.folder / "raw"), "times": str(bench.arrived)}
    (bench.folder / "raw").unlink(missing_ok=True)
    return Child.of("drain", {**place, **files, "rows": rows, "mode": "disk"})


def _load(bench: Bench, case: str, budget: Budget) -> list[Line]:
    command = peers.debezium_command(
        bench.server.port,
        DEBEZIUM_WARM_ROWS + bench.rows,
        **peers.spelled(peers.PROMPT),
        bench_times=str(bench.arrived),
    )
    taking: dict[str, Party] = {LIMIT: lambda: raw(bench), US: lambda: captured(bench)}
    if command is not None and bench.server.transport == "tcp":
        taking[DEBEZIUM] = lambda: followed(bench, command)
    fewer = {DEBEZIUM: 1 if budget.quick else budget.rounds}
    measured = rounds(taking, budget.rounds, postmaster=bench.server.postmaster, fewer=fewer)
    return _lines(case, measured)


def _lines(case: str, measured: dict[str, list[Outcome]]) -> list[Line]:
    lines = []
    targets = {("p50", LIMIT): at_most(2), ("p99", LIMIT): at_most(3), ("p99", DEBEZIUM): at_most(0.1)}
    for part in ("p50", "p99"):
        ours = [float(str(o.found[part])) for o in measured[US]]
        for name in measured:
            if name != US:
                theirs = [float(str(o.found[part])) for o in measured[name]]
                lines.append(compared("latency", case, f"ms {part}", ours, theirs, name, targets.get((part, name))))
    cpu = [o.cpu_s_per_million for o in measured[US]]
    limit = [o.cpu_s_per_million for o in measured[LIMIT]]
    lines.append(compared("latency", case, "client CPU s/M rows", cpu, limit, LIMIT))
    lines.append(alone("latency", case, "commits a fsync", [o.rows / max(o.fsyncs or 1, 1) for o in measured[US]]))
    return lines


# ── the parties ─────────────────────────────────────────────────────────────────────────────────────────────


def raw(bench: Bench) -> Outcome:
    bench.with_slot()
    reader = _raw(bench, bench.rows)
    bench.server.until_read(reader)
    bench.writer().outcome()
    outcome = reader.outcome()
    return timed(bench, outcome, pairs(bench.arrived))


def captured(
    bench: Bench, seal: Mapping[str, object] | None = None, merge: Mapping[str, object] | None = None
) -> Outcome:
    """cdcflow; the log is verified, and records which row had which offset. `merge`: settings; it merges, too."""
    bench.empty()
    log = bench.folder / "log"
    with fresh_log(None, log):
        config = settings(bench.server, log)
        if seal is not None:
            config = {**config, "log": {"path": str(log), "seal": dict(seal)}}
        if merge is not None:
            config = {**config, "merge": dict(merge)}
        asked = {"config": config, "until_rows": bench.rows, "times": str(bench.arrived)}
        reader = Child.of("capture", asked)
        bench.server.until_read(reader)
        bench.writer().outcome()
        outcome = reader.outcome()
        contents.verify(log, NARROW, contents.source_rows(bench.server, NARROW), bench.rows)
        arrived = durable_times(log, NARROW, np.vstack([(0, 0), pairs(bench.arrived)]))
    return timed(bench, outcome, arrived)


def followed(bench: Bench, command: list[str]) -> Outcome:
    """Debezium, its poll as quick as it gets, its compiler warmed up by rows with negative ids."""
    bench.with_slot()
    reader = Child(command)
    bench.server.until_read(reader)
    bench.server.execute(NARROW.insert(str(-DEBEZIUM_WARM_ROWS), "-1"))
    time.sleep(DEBEZIUM_WARM_S)
    bench.writer().outcome()
    outcome = reader.outcome()
    arrived = pairs(bench.arrived)
    return timed(bench, outcome, arrived[arrived[:, 0] > 0])


def durable_times(log: Path, shape: Shape, syncs: Times) -> Times:
    """Each row's id and the time at which it was durable, from the syncs of one process: rows of the log, when."""
    wanted = frozenset({TableId("public", shape.name)})
    found = [rows.select([OFFSET, "id"]) for _, _, rows in read_rows(log, tables=wanted)]
    offsets = np.concatenate([r.column(OFFSET).to_numpy() for r in found])
    ids = np.concatenate([r.column("id").to_numpy() for r in found])
    which = np.searchsorted(np.maximum.accumulate(syncs[:, 0]), offsets)
    here = (which < len(syncs)) & (offsets > syncs[0, 0])
    return np.stack([ids[here], syncs[which[here], 1]], axis=1)


def pairs(path: Path) -> Times:
    """A file of pairs of numbers, one pair per line."""
    return np.loadtxt(path, dtype=np.int64, ndmin=2)


def timed(bench: Bench, outcome: Outcome, arrived: Times) -> Outcome:
    """The outcome with percentiles of arrival minus commit, in ms, without the run's beginning."""
    committed = pairs(bench.committed)
    committed, arrived = committed[np.argsort(committed[:, 0])], arrived[np.argsort(arrived[:, 0])]
    if not np.array_equal(committed[:, 0], arrived[:, 0]):
        raise Failed(f"{len(committed)} rows were committed, {len(arrived)} arrived, or not the same ones")
    took = (arrived[:, 1] - committed[:, 1])[int(len(arrived) * WARM) :] / 1e6
    p50, p99 = (float(np.percentile(took, p)) for p in (50, 99))
    lasted = (committed[:, 1].max() - committed[:, 1].min()) / 1e9
    pace = len(committed) / lasted / bench.rate
    tell(f"      p50 {p50:.2f} ms, p99 {p99:.2f} ms" + ("" if pace > 0.95 else f", the writer kept {pace:.0%} of pace"))
    return replace(outcome, rows=len(committed), found={**outcome.found, "p50": p50, "p99": p99})
