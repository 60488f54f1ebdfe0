"""executors: a backfill read by two executors of one core each, next to the daemon's own reading of the same table.

All of it, the server, the executors and the capture, shares this machine. The clock runs from when the executors are
ready until the log is closed and every row is compared; Spark's own start does not count. CPU is that of the capture's
process alone: the executors exist to use theirs.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pyarrow as pa
from tests.servers.spark import SparkCluster

from bench import contents
from bench.backfill import captured, filled, forget
from bench.drain import US
from bench.harness import Budget, Child, Outcome, rounds, tell
from bench.results import Line, at_most, compared
from bench.server import Server, fresh_log, settings
from bench.shapes import NARROW

ROWS = 10_000_000
EXECUTORS = "cdcflow, 2 executors of 1 core"
SENDING = "the same, without the log's folder"
CPU_SHARE = 0.05


def run(budget: Budget, transport: str) -> list[Line]:
    rows = budget.rows
    tell(f"  executors: {rows:,} rows, {transport}")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        hidden = Path(folder) / "hidden"
        hidden.mkdir()
        server = stack.enter_context(Server(transport))
        cluster = stack.enter_context(SparkCluster(hidden=[hidden]))
        filled(server, NARROW, rows)
        source = contents.source_rows(server, NARROW)
        parties = {
            EXECUTORS: lambda: read_by_executors(server, Path(folder), source, cluster.url),
            SENDING: lambda: read_by_executors(server, hidden, source, cluster.url),
            US: lambda: captured(server, Path(folder), NARROW, source),
        }
        measured = rounds(parties, budget.rounds, postmaster=server.postmaster, fewer={})
    return [
        line
        for party in (EXECUTORS, SENDING)
        for line in compared_with_us(measured[party], measured[US], f"{party}: narrow, 6 columns, {rows:,} rows")
    ]


def compared_with_us(theirs: list[Outcome], ours: list[Outcome], case: str) -> list[Line]:
    cpu = [[o.cpu_s_per_million for o in found] for found in (theirs, ours)]
    return [
        compared("executors", case, "rows/s", [o.rate for o in theirs], [o.rate for o in ours], US),
        compared("executors", case, "capture's CPU s/M rows", *cpu, US, at_most(CPU_SHARE)),
    ]


def read_by_executors(server: Server, folder: Path, source: pa.Table, master: str) -> Outcome:
    """A one-shot backfill into a new log, verified."""
    forget(server)
    log = folder / "log"
    with fresh_log(None, log):
        config = settings(server, log)
        spark = {"spark.executor.memory": "700m", "spark.executor.cores": "1"}
        config["merge"] = {"warehouse": str(folder / "warehouse"), "spark": {**spark, **sources()}}
        outcome = Child.of("capture", {"config": config, "once": True, "on": master}).outcome()
        contents.verify(log, NARROW, source, len(source))
    return outcome


def sources() -> dict[str, str]:
    """Where executors find cdcflow: where this process does."""
    import cdcflow

    return {"spark.executorEnv.PYTHONPATH": str(Path(cdcflow.__file__).parents[1])}
