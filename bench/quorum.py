"""quorum: a log with three peers, compared with a log on the local disk, commit by commit in the same rounds.

    commit       from `sync` to durable, one small transaction at a time: p50 and p99
    throughput   rows a second, 500 in a transaction, a sync after each 20 transactions
    round trip   of an empty sync over all peers: what p99 may exceed the local log's by
    object       a conditional write of as many bytes into an S3-compatible store on the loopback: the alternative

All of it is on one machine: the peers share the disk and the processors with the log that they are compared with, and
the round trip is the loopback's. `--rows`: rows of the throughput; commits are a hundredth of it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from tests.servers.journal_peers import JournalPeers
from tests.servers.objects import ObjectServer
from tests.support.certificates import HERE, Authority
from tests.support.log.replicated import ReplicatedLog
from tests.support.objects.logs import IDENTITY

from bench.harness import Budget
from bench.results import Line, at_least, at_most, compared
from cdcflow.config import Objects
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.quorum.links import PeerTls
from cdcflow.stores.bucket import Bucket
from cdcflow.testing.sinks import Writer, orders

ROWS = 100_000
BENCH = "quorum"
ROWS_EACH, SYNC_EACH = 500, 20
SHARE = 0.8


def run(budget: Budget, transport: str) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder, _logs(Path(folder)) as (local, peers, objects):
        commits = max(100, budget.rows // 100)
        times = [_commits(local, peers, objects, commits, number) for number in range(budget.rounds + 1)][1:]
        rates = [(_rate(local, budget.rows), _rate(peers, budget.rows)) for _ in range(budget.rounds + 1)][1:]
    lines = []
    for q in (50, 99):
        here, there, stored, trip = ([float(np.percentile(ms[n], q)) for ms in times] for n in range(4))
        lines.append(compared(BENCH, f"commit, p{q}", "ms", there, here, "a local log"))
        lines.append(compared(BENCH, f"commit, p{q}", "ms", there, stored, "a conditional write into a store"))
        if q == 99:
            limit = [a + b for a, b in zip(here, trip, strict=True)]
            lines.append(compared(BENCH, "commit, p99", "ms", there, limit, "local and one round trip", at_most(1)))
    local_rates, peer_rates = ([rate[n] for rate in rates] for n in range(2))
    return [*lines, compared(BENCH, "throughput", "rows/s", peer_rates, local_rates, "a local log", at_least(SHARE))]


@contextmanager
def _logs(room: Path) -> Iterator[tuple[FileLog, FileLog, Objects]]:
    """A local log, one with three peers over TLS, and a store."""
    authority = Authority(room, "ca")
    files = authority.certificate("peer", HERE)
    key = Path(files["ssl_key"])
    key.chmod(0o600)
    tls = PeerTls(Path(files["ssl_cert"]), key, authority.path)
    with ExitStack() as around:
        server = around.enter_context(ObjectServer())
        peers = around.enter_context(JournalPeers(room, 3, (tls.cert, key, tls.ca)))
        objects = server.objects("bench", "log")
        replicated = ReplicatedLog(room, objects, peers.addresses, tls=tls, timeout_s=60)
        local = FileLog.open(room / "local", IDENTITY)
        around.callback(local.close)
        log = replicated.open()
        around.callback(log.close)
        replicated.all_follow(log)
        yield local, log, objects


def _commits(local: FileLog, peers: FileLog, objects: Objects, count: int, number: int) -> tuple[list[float], ...]:
    """Milliseconds of each commit: locally, with peers, into the store, and of an empty sync; all in turn."""
    bucket, content = Bucket(objects), os.urandom(1000)
    here, there = Writer.of(local), Writer.of(peers)
    found: tuple[list[float], ...] = ([], [], [], [])
    for n in range(count):
        for times, writer in ((found[0], here), (found[1], there)):
            writer.append(orders(n))
            writer.cut()
            times.append(_ms(writer.log.sync))
        found[2].append(_ms(lambda: bucket.put_new(f"appends/{number}-{n:08d}", content)))  # noqa: B023 - called here
        found[3].append(_ms(peers._check_writer))
    return found


def _ms(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1000


def _rate(log: FileLog, rows: int) -> float:
    writer = Writer.of(log)
    runs = [orders(*range(n, n + ROWS_EACH)) for n in range(0, rows, ROWS_EACH)]
    begun = time.perf_counter()
    for number, run in enumerate(runs, 1):
        writer.append(run)
        writer.cut()
        if number % SYNC_EACH == 0:
            log.sync()
    log.sync()
    return rows / (time.perf_counter() - begun)
