"""mysql.drain: a backlog in the binary log, read into a fsynced columnar log.

The limit is the server's own client that copies the same files (`mysqlbinlog --raw`, `mariadb-binlog --raw`). The peers
decode and store nothing: go-mysql into Go values, Debezium's connector into records, mysql-replication and
mysql-event-stream into Python values.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.servers.mysql import FLAVORS

from bench import contents, peers
from bench.drain import US
from bench.harness import Budget, Child, Failed, Outcome, Party, rounds, tell
from bench.mysql.server import SCHEMA, TABLE, Backlog, Server, machine, prepared, settings
from bench.results import Line, alone, at_least, compared
from bench.server import fresh_log
from bench.shapes import NARROW

ROWS = 2_000_000
CASES = ((1, 0.2), (100, 1.0), (10_000, 1.0))
RAW, GO, DEBEZIUM = "binlog --raw", "go-mysql", "Debezium"
REPLICATION, EVENT_STREAM = "mysql-replication", "mysql-event-stream"
TARGETS = {
    RAW: at_least(0.3),
    GO: at_least(1.0),
    DEBEZIUM: at_least(8),
    REPLICATION: at_least(30),
    EVENT_STREAM: at_least(12),
}
SLOW = 20
"""Of the Python peers' backlog only this part is waited for, one round: they need a hundred times as long."""


def run(budget: Budget, transport: str) -> list[Line]:
    if transport != "tcp":
        return []
    lines: list[Line] = []
    for flavor in FLAVORS:
        for per_transaction, part in CASES[1:2] if budget.quick else CASES:
            rows = round(budget.rows * part / per_transaction) * per_transaction
            case = f"{flavor}, narrow, 6 columns, {per_transaction:,} a transaction, {rows:,} rows"
            tell(f"  mysql.drain: {case}")
            with tempfile.TemporaryDirectory() as folder, Server(flavor) as server:
                backlog = prepared(server, Path(folder), rows, per_transaction, with_debezium=per_transaction == 100)
                found = _case(backlog, case, budget, whole=per_transaction == 100)
                lines += [replace(line, machine=machine(server)) for line in found]
    return lines


def _case(backlog: Backlog, case: str, budget: Budget, *, whole: bool) -> list[Line]:
    taking: dict[str, Party | None] = {
        RAW: lambda: _raw(backlog),
        US: lambda: captured(backlog),
        GO: _go(backlog),
        DEBEZIUM: _debezium(backlog) if whole else None,
        REPLICATION: _python(backlog, "pymysqlreplication") if whole else None,
        EVENT_STREAM: _python(backlog, "mysql_event_stream") if whole else None,
    }
    there = {name: party for name, party in taking.items() if party is not None}
    fewer = {DEBEZIUM: 1, REPLICATION: 1, EVENT_STREAM: 1}
    measured = rounds(there, budget.rounds, postmaster=backlog.server.pid, fewer=fewer)
    ours = measured[US]
    lines = []
    for name, theirs in measured.items():
        if name != US:
            rates = [o.rate for o in ours], [o.rate for o in theirs]
            lines.append(compared("mysql.drain", case, "rows/s", *rates, name, TARGETS[name]))
            cpu = [o.cpu_s_per_million for o in ours], [o.cpu_s_per_million for o in theirs]
            lines.append(compared("mysql.drain", case, "client CPU s/M rows", *cpu, name))
    lines.append(alone("mysql.drain", case, "peak RSS MB", [(o.rss_bytes or 0) / 1e6 for o in ours]))
    lines.append(alone("mysql.drain", case, "fsyncs/100k rows", [(o.fsyncs or 0) / o.rows * 1e5 for o in ours]))
    return lines


def _raw(backlog: Backlog) -> Outcome:
    server = backlog.server
    name = "mysqlbinlog" if server.flavor == "mysql" else "mariadb-binlog"
    with tempfile.TemporaryDirectory() as to:
        command = [*server.program(name), "--no-defaults", "--raw", "--read-from-remote-server", f"--result-file={to}/"]
        command += ["--host=127.0.0.1", f"--port={server.port}", "--user=root", "--protocol=tcp", backlog.file]
        if server.flavor == "mysql":
            command.append("--get-server-public-key")
        outcome = Child(command).outcome(backlog.rows)
        size = sum(path.stat().st_size for path in Path(to).iterdir())
    if size < (server.data / backlog.file).stat().st_size:
        raise Failed(f"{name} copied {size} bytes of {backlog.file}")
    return outcome


def captured(backlog: Backlog) -> Outcome:
    with fresh_log(backlog.template, backlog.template.with_name("log")) as log:
        asked = {"config": settings(backlog.server, log), "until_rows": backlog.rows}
        outcome = Child.of("capture", asked).outcome()
        contents.verify(log, NARROW, backlog.source, backlog.rows)
    return outcome


def _go(backlog: Backlog) -> Party | None:
    program = peers.go_mysql()
    if program is None:
        return None
    server = backlog.server
    place = [server.flavor, str(server.port), backlog.file, str(backlog.position)]
    return lambda: _all(backlog, Child([program, *place, f"{SCHEMA}.{TABLE}", str(backlog.rows)]).outcome())


def _debezium(backlog: Backlog) -> Party | None:
    kept = backlog.debezium
    if kept is None:
        return None

    def read() -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(kept, folder, dirs_exist_ok=True)
            command = peers.debezium_mysql_command(
                backlog.server.port, backlog.rows, Path(folder), f"{SCHEMA}.{TABLE}", **peers.spelled(peers.TUNED)
            )
            assert command is not None  # what was kept was created with it
            outcome = Child(command).outcome()
        if outcome.found["seen"] != backlog.rows:
            raise Failed(f"Debezium saw {outcome.found['seen']} of {backlog.rows} changes")
        return outcome

    return read


def _python(backlog: Backlog, module: str) -> Party | None:
    if importlib.util.find_spec(module) is None:
        tell(f"  {module} is not installed and sits out (pip install --group bench)")
        return None
    server, rows = backlog.server, backlog.rows // SLOW
    asked = {"with": module, "flavor": server.flavor, "port": server.port, "rows": rows}
    place = {"file": backlog.file, "position": backlog.position, "schema": SCHEMA, "table": TABLE}
    return lambda: Child.of("binlog", {**asked, **place}).outcome()


def _all(backlog: Backlog, outcome: Outcome) -> Outcome:
    if outcome.rows != backlog.rows:
        raise Failed(f"a party saw {outcome.rows} of {backlog.rows} changes")
    return outcome
