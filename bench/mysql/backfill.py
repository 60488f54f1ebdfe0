"""mysql.backfill: a whole table from an idle source into sealed, synced Parquet.

The limit is the server's own client, which streams the table to nowhere (`mysql --quick`, `mariadb --quick`).
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from tests.servers.mysql import FLAVORS

from bench import contents
from bench.drain import US
from bench.harness import Budget, Child, Failed, Outcome, Party, rounds, tell
from bench.mysql.server import SCHEMA, TABLE, Server, machine, settings
from bench.results import Line, alone, at_least, compared
from bench.server import fresh_log
from bench.shapes import NARROW

ROWS = 2_000_000
CLIENT = "the server's client to nowhere"


def run(budget: Budget, transport: str) -> list[Line]:
    if transport != "tcp":
        return []
    lines: list[Line] = []
    sizes = [budget.rows] if budget.quick else [budget.rows, budget.rows * 3]
    for flavor, rows in itertools.product(FLAVORS, sizes):
        case = f"{flavor}, narrow, 6 columns, {rows:,} rows"
        tell(f"  mysql.backfill: {case}")
        with tempfile.TemporaryDirectory() as folder, Server(flavor) as server:
            server.make()
            server.insert(1, rows)
            source = server.source_rows()
            taking: dict[str, Party] = {
                CLIENT: partial(_streamed, server, rows),
                US: partial(captured, server, Path(folder), source),
            }
            measured = rounds(taking, budget.rounds, postmaster=server.pid)
            lines += [replace(line, machine=machine(server)) for line in _lines(case, measured)]
    return lines


def _lines(case: str, measured: dict[str, list[Outcome]]) -> list[Line]:
    ours, theirs = measured[US], measured[CLIENT]
    cpu = [o.cpu_s_per_million for o in ours], [o.cpu_s_per_million for o in theirs]
    there = [o.server_cpu_s_per_million for o in ours], [o.server_cpu_s_per_million for o in theirs]
    rates = [o.rate for o in ours], [o.rate for o in theirs]
    return [
        compared("mysql.backfill", case, "rows/s", *rates, CLIENT, at_least(0.5)),
        compared("mysql.backfill", case, "client CPU s/M rows", *cpu, CLIENT),
        compared("mysql.backfill", case, "server CPU s/M rows", *there, CLIENT),
        alone("mysql.backfill", case, "peak RSS MB", [(o.rss_bytes or 0) / 1e6 for o in ours]),
    ]


def _streamed(server: Server, rows: int) -> Outcome:
    name = "mysql" if server.flavor == "mysql" else "mariadb"
    command = [*server.program(name), "--no-defaults", "--quick", "--batch", "--host=127.0.0.1", "--protocol=tcp"]
    command += [f"--port={server.port}", "--user=root", f"--execute=SELECT * FROM {SCHEMA}.{TABLE}"]
    return Child(command, to_nowhere=True).outcome(rows)


def captured(server: Server, folder: Path, source: pa.Table) -> Outcome:
    log = folder / "log"
    with fresh_log(None, log):
        outcome = Child.of("capture", {"config": settings(server, log), "once": True}).outcome()
        contents.verify(log, NARROW, source, len(source))
        if not list((log / "segments").iterdir()):
            raise Failed("the rows are not sealed")
    return outcome
