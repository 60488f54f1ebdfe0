"""huge transaction: one transaction of ten thousand to ten million rows; memory, and commit to visible.

Large transactions reach cdcflow while they are open, go to disk as they arrive, and count once their commit arrives.
The limit reads the same transaction live and to nowhere, on a separate table: from the commit's answer to the commit in
the stream.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench import contents
from bench.harness import Budget, Child, Failed, Outcome, tell
from bench.parties import RAW
from bench.results import Line, alone, at_most, compared
from bench.server import SLOT, Server, fresh_log, settings
from bench.shapes import NARROW, Shape

ROWS = 10_000_000
INSERT, UPDATE, ABORTED = "insert", "update", "aborted insert"
MEMORY_MAX_MB = 256.0
OTHER = Shape("narrow_raw", NARROW.columns)
"""The limit's table: cdcflow's slot is created after it was written, and never has to read past it."""


def run(budget: Budget, transport: str) -> list[Line]:
    sizes = [budget.rows // part for part in (1000, 100, 10, 1)]
    lines: list[Line] = []
    memory: dict[tuple[str, int], float] = {}
    for rows in sizes:
        with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
            server.execute(NARROW.create)
            for kind, ours, limit in _kinds(server, Path(folder), rows):
                memory[kind, rows] = (ours.rss_bytes or 0) / 1e6
                case = f"{kind} of {rows:,} rows"
                visible, raw = _late_ms(ours), _late_ms(limit)
                tell(f"    {case}: {visible:.0f} ms to visible (limit {raw:.0f}), {memory[kind, rows]:.0f} MB")
                lines.append(
                    compared("transaction", case, "ms commit to visible", [visible], [1000.0], "one second", at_most(1))
                )
                lines.append(compared("transaction", case, "ms commit to visible", [visible], [raw], RAW))
                lines.append(alone("transaction", case, "client CPU s/M rows", [ours.cpu_s / rows * 1e6]))
    small, large = sizes[1], sizes[-1]
    for kind in (INSERT, UPDATE, ABORTED):
        peak = [memory[kind, large]]
        case = f"{kind} of {large:,} rows"
        lines += [
            compared("transaction", case, "peak RSS MB", peak, [memory[kind, small]], f"{small:,} rows", at_most(1.1)),
            compared("transaction", case, "peak RSS MB", peak, [MEMORY_MAX_MB], "256 MB", at_most(1)),
        ]
    return lines


def _late_ms(outcome: Outcome) -> float:
    return (int(str(outcome.found["ended_ns"])) - int(str(outcome.found["committed_ns"]))) / 1e6


def _kinds(server: Server, folder: Path, rows: int) -> list[tuple[str, Outcome, Outcome]]:
    """Insert, update and aborted insert, each live: the limit's on a separate table, then cdcflow's, verified."""
    tell(f"  transaction: {rows:,} rows")
    limits = _limits(server, rows)
    log = folder / "log"
    config = settings(server, log, tables=[f"public.{NARROW.name}"])
    found = []
    with fresh_log(None, log):
        Child.of("capture", {"config": config, "once": True}).outcome()
        for (kind, statement), until, limit in zip(
            _statements(NARROW, rows), (rows, 2 * rows, 2 * rows + 1), limits, strict=True
        ):
            child = Child.of("capture", {"config": config, "until_rows": until})
            _past_what_was(server)
            found.append((kind, _transacted(server, NARROW, child, kind, statement), limit))
        contents.verify(log, NARROW, contents.source_rows(server, NARROW), 2 * rows + 1)
    return found


def _statements(shape: Shape, rows: int) -> list[tuple[str, str]]:
    return [
        (INSERT, shape.insert("1", str(rows))),
        (UPDATE, f"UPDATE {shape.name} SET customer = customer + 1"),
        (ABORTED, shape.insert(str(rows + 1), str(2 * rows))),
    ]


def _limits(server: Server, rows: int) -> list[Outcome]:
    server.execute(OTHER.create)
    server.execute(f"CREATE PUBLICATION {OTHER.name} FOR TABLE {OTHER.name}")
    found = []
    for kind, statement in _statements(OTHER, rows):
        server.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        place = {"dsn": server.replication_dsn, "slot": SLOT, "publication": OTHER.name, "mode": "nowhere"}
        child = Child.of("drain", {**place, "rows": 1 if kind == ABORTED else rows})
        found.append(_transacted(server, OTHER, child, kind, statement))
        server.drop_slot()
    return found


def _past_what_was(server: Server) -> None:
    """Wait until the slot's next reader begins here: otherwise it first decodes the transaction before, which the
    limit, on a separate slot, need not."""
    here = server.value("SELECT pg_current_wal_lsn()")
    begins_here = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND restart_lsn >= '{here}'"
    deadline = time.monotonic() + 120
    while not server.value(begins_here):
        if time.monotonic() > deadline:
            raise Failed("the slot's restart position does not move")
        server.execute("SELECT pg_log_standby_snapshot()")
        time.sleep(0.5)


def _transacted(server: Server, shape: Shape, child: Child, kind: str, statement: str) -> Outcome:
    """Run a statement as one transaction while the child reads; with the time of the commit's answer."""
    server.until_read(child)
    with server.connect(autocommit=False) as connection:
        connection.execute(statement)
        if kind == ABORTED:
            # It leaves nothing; a row that is committed after it shows when it has been read past.
            connection.rollback()
            connection.execute(shape.insert("0", "0"))
        connection.commit()
        committed_ns = time.monotonic_ns()
    outcome = child.outcome()
    return replace(outcome, found={**outcome.found, "committed_ns": committed_ns})
