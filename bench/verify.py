"""verify: a table of a running source compared with its copy, by digests that the server computes.

The limit is the server's own SELECT of the same hash: one statement on one connection. All parties have the same two
cores: the server hashes in two connections while this process digests the copy. The command is a separate process,
measured from start to exit. The peer is reladiff, from one table of the server to a second one with the same rows.

    at rest     everything agrees
    few differ  one row in ten thousand of the copy is off in its last digit: all of them are found
    under load  pgbench at half of what it reaches, alone and alongside a verify that keeps to a pace
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from bench.backfill import filled
from bench.harness import Budget, Failed, tell
from bench.results import Line, alone, at_least, at_most, compared
from bench.server import Server, settings
from bench.shapes import NARROW
from cdcflow import local
from cdcflow.model.digest import Buckets
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.postgres import digests
from cdcflow.sources.postgres.types import Policy, describe_table
from cdcflow.sources.postgres.types.describe import AttributeInfo

ROWS = 2_000_000
BENCH = "verify"
LIMIT, RELADIFF = "SELECT of the same hash", "reladiff, table to table"
SHARE = 10_000
"""One row in this many differs."""
PACE = 50_000
"""Rows a second of the verify that runs alongside pgbench."""
LOAD_S = 15
LOAD_SCALE, LOAD_CLIENTS = 10, 2
WAIT_S = 600.0
TYPES = (
    AttributeInfo("id", 1, 20, -1, "bigint", not_null=True, in_key=True),
    AttributeInfo("customer", 2, 23, -1, "integer"),
    AttributeInfo("status", 3, 25, -1, "text"),
    AttributeInfo("note", 4, 25, -1, "text"),
    AttributeInfo("amount", 5, 1700, (10 << 16 | 2) + 4, "numeric(10,2)", base_modifier=(10 << 16 | 2) + 4),
    AttributeInfo("placed", 6, 1184, -1, "timestamp with time zone"),
)
"""The catalog's description of the narrow table."""
COPIED = ("bigint", "int", "string", "string", "decimal(10,2)", "timestamp")


def run(budget: Budget, transport: str) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
        tell(f"  verify: {budget.rows:,} rows")
        filled(server, NARROW, budget.rows)
        server.execute("CREATE TABLE other AS SELECT * FROM narrow")
        server.execute("ALTER TABLE other ADD PRIMARY KEY (id)")
        server.execute("VACUUM (FREEZE, ANALYZE) other")
        with _running(server, Path(folder)) as room:
            return [*_at_rest(server, room, budget), *_few_differ(server, room, budget), *_under_load(server, room)]


@contextlib.contextmanager
def _running(server: Server, room: Path) -> Iterator[Path]:
    """A folder whose daemon runs, with the table merged."""
    config = settings(server, room / "log", tables=[f"public.{NARROW.name}"], heartbeat="1s")
    config["log"] = {"path": "log", "seal": {"age_max": "1s"}}
    (room / "cdcflow.yaml").write_text(
        yaml.safe_dump({**config, "merge": {"warehouse": "warehouse", "engine": "local"}})
    )
    with (room / "daemon.log").open("wb") as said:
        daemon = subprocess.Popen(_cdcflow("run", "--json"), cwd=room, stdout=said, stderr=subprocess.STDOUT)
        try:
            _merged_until(room, int(server.value("SELECT count(*) FROM narrow")))
            yield room
        finally:
            daemon.terminate()
            daemon.wait()


def _merged_until(room: Path, rows: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        time.sleep(1)
        report = local.merge(room / "log", room / "warehouse")
        found = local.read_cut(room / "warehouse") if report.cut else {}
        if (table := found.get(f"public.{NARROW.name}")) is not None and table.num_rows == rows:
            return
    raise Failed(f"the copy did not come to {rows} rows: {(room / 'daemon.log').read_text()[-1000:]}")


def _spoiled(rows: pa.Table) -> pa.Table:
    """One row in this many is off in its last digit."""
    amount = rows.column("amount")
    wrong = pc.add(amount, pa.scalar(Decimal("0.01"), amount.type)).cast(amount.type)
    chosen = pc.equal(pc.subtract(rows.column("id"), pc.multiply(pc.divide(rows.column("id"), SHARE), SHARE)), 7)
    return rows.set_column(rows.column_names.index("amount"), "amount", pc.if_else(chosen, wrong, amount))


def _cdcflow(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cdcflow.cli", *arguments]


def _verify(room: Path, *arguments: str) -> tuple[float, dict[str, Any]]:
    """Seconds of the whole command, and its findings about the table."""
    begun = time.perf_counter()
    said = subprocess.run(
        _cdcflow("verify", "--json", *arguments), cwd=room, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begun
    if said.returncode not in (0, 1):
        raise Failed(said.stderr[-1000:])
    (found,) = json.loads(said.stdout.splitlines()[-1])["tables"]
    if found["by"] != "digests":
        raise Failed(f"the table was compared by {found['by']}: {found['read_why']}")
    return seconds, found


def _hash_sql() -> str:
    """The digest of all rows added up: what the server is queried for, without buckets."""
    described = describe_table(TableId("public", NARROW.name), 1, TYPES, Identity.KEY, Policy())
    columns = tuple((a.name, copied) for a, copied in zip(TYPES, COPIED, strict=True))
    query = digests.sums(described, Buckets(columns, ("id",), 1), NARROW.name, "true", is_utf8=True)
    number = query[query.index(" AS b, ") + len(" AS b, ") : query.index(" AS d FROM ")]
    return f"SELECT count(*), sum({number}) FROM {NARROW.name} AS t"


def _hashed(server: Server, statement: str) -> float:
    with server.connect() as connection:
        for setting in ("TimeZone = 'UTC'", "max_parallel_workers_per_gather = 0", "jit = off"):
            connection.execute(f"SET {setting}".encode())
        begun = time.perf_counter()
        connection.execute(statement.encode()).fetchall()
        return time.perf_counter() - begun


def _at_rest(server: Server, room: Path, budget: Budget) -> list[Line]:
    statement = _hash_sql()
    ours, limit, peer = [], [], []
    for number in range(budget.rounds + 1):
        hashed, (seconds, found) = _hashed(server, statement), _verify(room)
        if (found["verdict"], found["rows"]) != ("equal", budget.rows):
            raise Failed(f"a table that agrees was called {found['verdict']}, with {found['rows']} rows")
        other = _reladiff(server)
        if number:
            ours.append(budget.rows / seconds)
            limit.append(budget.rows / hashed)
            peer += [] if other is None else [budget.rows / other]
    case = f"narrow, 6 columns, {budget.rows:,} rows at rest"
    lines = [compared(BENCH, case, "rows/s", ours, limit, LIMIT, at_least(0.5))]
    return lines + ([compared(BENCH, case, "rows/s", ours, peer, RELADIFF)] if peer else [])


def _few_differ(server: Server, room: Path, budget: Budget) -> list[Line]:
    agree = [_verify(room)[0] for _ in range(budget.rounds)]
    with closing(local.local_engine(room / "warehouse", "delta")) as engine:
        there = engine.table(("public", NARROW.name))
        there.snapshot()
        there.rewrite(_spoiled(there.rows()), {"edited": "by a bench"}, 100)
    server.execute("INSERT INTO narrow SELECT id + 1, customer, status, note, amount, placed FROM narrow "
                   "WHERE id = (SELECT max(id) FROM narrow)")  # fmt: skip
    _merged_until(room, budget.rows + 1)
    differ = []
    for _ in range(budget.rounds):
        seconds, found = _verify(room)
        if found["different"] != len(range(7, budget.rows + 1, SHARE)):
            raise Failed(f"{found['different']} rows were found that differ")
        differ.append(seconds)
    case = f"{budget.rows:,} rows, one in {SHARE:,} differs"
    return [compared(BENCH, case, "s", differ, agree, "all agree", at_most(3))]


def _under_load(server: Server, room: Path) -> list[Line]:
    program = server.bin_directory / "pgbench"
    _pgbench(program, server, "-i", "-s", str(LOAD_SCALE), "-q")
    most = _tps(program, server)
    rate = f"{most / 2:.0f}"
    alone_, beside = [], []
    for _ in range(2):
        alone_.append(_tps(program, server, "-R", rate))
        command = _cdcflow("verify", "--json", "--rows-per-second", str(PACE))
        verify = subprocess.Popen(command, cwd=room, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2)  # until it reads
        beside.append(_tps(program, server, "-R", rate))
        if verify.poll() is not None:
            raise Failed("verify ended before pgbench did: there are too few rows for its pace")
        verify.kill()
        verify.wait()
    case = f"pgbench at half rate, during a verify of {PACE:,} rows/s"
    return [
        compared(BENCH, case, "TPS", beside, alone_, "the same without", at_least(0.9)),
        alone(BENCH, "pgbench alone, as fast as it goes", "TPS", [most]),
    ]


def _pgbench(program: Path, server: Server, *arguments: str) -> str:
    command = [str(program), *arguments, server.dsn]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout


def _tps(program: Path, server: Server, *arguments: str) -> float:
    said = _pgbench(program, server, "-n", "-c", str(LOAD_CLIENTS), "-T", str(LOAD_S), *arguments)
    found = re.search(r"^tps = ([\d.]+)", said, re.MULTILINE)
    if found is None:
        raise Failed(said[-500:])
    return float(found[1])


def _reladiff(server: Server) -> float | None:
    """Seconds that the peer takes for two equal tables; `None` if it is not installed."""
    program = os.environ.get("RELADIFF") or shutil.which("reladiff")
    if program is None:
        tell("  verify: reladiff is not installed (pip install 'reladiff[postgresql]', and RELADIFF names it)")
        return None
    begun = time.perf_counter()
    said = subprocess.run(
        [program, server.dsn, "narrow", server.dsn, "other", "-k", "id", "-c", "%", "--threads", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode or said.stdout.strip():
        raise Failed(f"reladiff: {said.stderr[-500:]}{said.stdout[:200]}")
    return time.perf_counter() - begun


__all__ = ["ROWS", "run"]
