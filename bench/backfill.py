"""backfill: a whole table from an idle source into sealed, synced Parquet.

The limit is the table through COPY BINARY in two halves (ctid ranges) at once, in C, to nowhere. The peers write
Parquet with the same codec: connectorx with two partitions, ADBC; Debezium's snapshot builds records and stores
nothing. The costs of rows written through the journal, and not to Parquet at once, are measured by a separate party.
cdcflow's clock runs from before its first connection (it creates publication and slot first) until the log is closed.
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
from pathlib import Path

import pyarrow as pa

from bench import contents, peers
from bench.drain import US
from bench.harness import Budget, Child, Failed, Outcome, Party, rounds, tell
from bench.parties import DEBEZIUM, copied
from bench.results import Line, alone, at_least, at_most, compared
from bench.server import PUBLICATION, SLOT, Server, fresh_log, settings
from bench.shapes import NARROW, Shape

ROWS = 3_000_000
LIMIT = "2 × COPY BINARY to nowhere"
JOURNAL = "cdcflow, all rows through the journal"
CONNECTORX, ADBC = "connectorx, 2 partitions, Parquet", "ADBC, Parquet"
TARGETS = {LIMIT: at_least(0.60), CONNECTORX: at_least(1.2), DEBEZIUM: at_least(6)}
DEBEZIUM_ROWS_MAX = 1_000_000


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    sizes = [budget.rows] if budget.quick else [budget.rows // 3, budget.rows, budget.rows * 10 // 3]
    seconds: dict[int, float] = {}
    memory: dict[int, float] = {}
    for rows in sizes:
        tell(f"  backfill: {rows:,} rows, {transport}")
        count = budget.rounds if rows <= budget.rows else 1
        with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
            filled(server, NARROW, rows)
            measured = _measured(server, Path(folder), NARROW, rows, count, budget)
        lines += _lines(f"narrow, 6 columns, {rows:,} rows", measured)
        seconds[rows] = min(o.seconds for o in measured[US])
        memory[rows] = max((o.rss_bytes or 0) / 1e6 for o in measured[US])
    if len(sizes) > 1:
        lines += growth(sizes, seconds, memory)
    return lines


def filled(server: Server, shape: Shape, rows: int) -> None:
    """A table of `rows` rows at rest."""
    server.execute(shape.create)
    server.execute(shape.insert("1", str(rows)))
    server.execute(f"VACUUM (FREEZE, ANALYZE) {shape.name}")
    server.execute("CHECKPOINT")


def _measured(
    server: Server, folder: Path, shape: Shape, rows: int, count: int, budget: Budget
) -> dict[str, list[Outcome]]:
    source = contents.source_rows(server, shape)
    taking: dict[str, Party | None] = {
        LIMIT: lambda: copied(server, halves(server, shape.name), rows),
        US: lambda: captured(server, folder, shape, source),
        JOURNAL: lambda: captured(server, folder, shape, source, file_bytes_min=1 << 60),
        CONNECTORX: _reader(server, folder, shape, "connectorx", rows),
        ADBC: None if budget.quick else _reader(server, folder, shape, "adbc", rows),
        DEBEZIUM: _snapshot(server, shape, rows),
    }
    there = {name: party for name, party in taking.items() if party is not None}
    return rounds(there, count, postmaster=server.postmaster, fewer={DEBEZIUM: 1 if budget.quick else budget.rounds})


def halves(server: Server, table: str) -> list[str]:
    """Two COPY statements that read a table's halves by its pages."""
    pages = int(server.value(f"SELECT relpages FROM pg_class WHERE oid = '{table}'::regclass"))
    middle = f"'({pages // 2},0)'::tid"
    return [
        f"COPY (SELECT * FROM {table} WHERE ctid {half} {middle}) TO STDOUT (FORMAT binary)" for half in ["<", ">="]
    ]


def captured(server: Server, folder: Path, shape: Shape, source: pa.Table, **asked: int) -> Outcome:
    """A one-shot backfill into a new log, verified."""
    forget(server)
    log = folder / "log"
    with fresh_log(None, log):
        outcome = Child.of("capture", {"config": settings(server, log), "once": True, **asked}).outcome()
        contents.verify(log, shape, source, len(source))
        if not list((log / "segments").iterdir()):
            raise Failed("the rows are not sealed")
    return outcome


def forget(server: Server) -> None:
    """Leave no slot or publication of an earlier round."""
    server.drop_slot(SLOT)
    server.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")


def _reader(server: Server, folder: Path, shape: Shape, library: str, rows: int) -> Party | None:
    module = "connectorx" if library == "connectorx" else "adbc_driver_postgresql"
    if importlib.util.find_spec(module) is None:
        tell(f"  {library} is not installed and sits out (pip install --group bench)")
        return None

    def read() -> Outcome:
        path = folder / f"{library}.parquet"
        asked = {"dsn": server.dsn, "table": shape.name, "path": str(path), "with": library}
        outcome = Child.of("reader", asked).outcome()
        path.unlink()
        if outcome.rows != rows:
            raise Failed(f"{library} read {outcome.rows} of {rows} rows")
        return outcome

    return read


def _snapshot(server: Server, shape: Shape, rows: int) -> Party | None:
    if rows > DEBEZIUM_ROWS_MAX or server.transport != "tcp":
        return None
    command = peers.debezium_command(server.port, rows, **peers.spelled(peers.TUNED), snapshot_mode="initial_only")
    if command is None:
        return None

    def read() -> Outcome:
        forget(server)
        server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {shape.name}")
        return Child(command).outcome()

    return read


def _lines(case: str, measured: dict[str, list[Outcome]]) -> list[Line]:
    ours = measured[US]
    lines = [
        compared("backfill", case, "rows/s", [o.rate for o in ours], [o.rate for o in theirs], name, TARGETS.get(name))
        for name, theirs in measured.items()
        if name != US
    ]
    cpu = [o.cpu_s_per_million for o in ours]
    lines += [
        compared("backfill", case, "client CPU s/M rows", cpu, [o.cpu_s_per_million for o in theirs], name)
        for name, theirs in measured.items()
        if name != US
    ]
    there = [o.server_cpu_s_per_million for o in ours]
    limit = [o.server_cpu_s_per_million for o in measured[LIMIT]]
    lines.append(compared("backfill", case, "server CPU s/M rows", there, limit, LIMIT))
    memory = [(o.rss_bytes or 0) / 1e6 for o in ours]
    lines += [
        compared("backfill", case, "peak RSS MB", memory, [(o.rss_bytes or 0) / 1e6 for o in theirs], name)
        for name, theirs in measured.items()
        if name not in (US, LIMIT)
    ]
    lines.append(alone("backfill", case, "bytes written/row", [(o.written_bytes or 0) / o.rows for o in ours]))
    lines.append(alone("backfill", case, "fsyncs", [o.fsyncs or 0 for o in ours]))
    return lines


def growth(sizes: list[int], seconds: dict[int, float], memory: dict[int, float]) -> list[Line]:
    """How time and memory grow with the table: an exponent of 1 is linear."""
    small, large = sizes[0], sizes[-1]
    exponent = math.log(seconds[large] / seconds[small]) / math.log(large / small)
    case = f"narrow, {small:,} to {large:,} rows"
    return [
        compared("backfill", case, "exponent of time", [exponent], [1.0], "linear", at_most(1.05)),
        compared("backfill", case, "peak RSS MB", [memory[large]], [memory[small]], f"{small:,} rows", at_most(1.05)),
    ]
