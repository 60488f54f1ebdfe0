"""huge transaction: one transaction of ten thousand to ten million rows; memory, and commit to visible.

Large transactions reach cdcflow while they are open, go to disk as they come, and count once their commit is there. The
limit is the server's own time for the same transaction: read anew from its log after the commit, to nowhere.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench import contents
from bench.backfill import forget
from bench.harness import Budget, Child, Outcome, tell
from bench.parties import RAW
from bench.results import Line, alone, at_most, compared
from bench.server import KEPT, PUBLICATION, Server, fresh_log, settings
from bench.shapes import NARROW

ROWS = 10_000_000
INSERT, UPDATE, ABORTED = "insert", "update", "aborted insert"
MEMORY_MAX_MB = 256.0


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
                visible, raw = _late_ms(ours), limit.seconds * 1e3
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
    """Insert, update and aborted insert: cdcflow live, then the limit over the same stretch of the server's log."""
    tell(f"  transaction: {rows:,} rows")
    log = folder / "log"
    forget(server)
    with fresh_log(None, log):
        Child.of("capture", {"config": settings(server, log), "once": True}).outcome()
        found = [
            (INSERT, *_one(server, log, NARROW.insert("1", str(rows)), rows, rows)),
            (UPDATE, *_one(server, log, f"UPDATE {NARROW.name} SET customer = customer + 1", 2 * rows, rows)),
        ]
        gone = NARROW.insert(str(rows + 1), str(2 * rows))
        found.append((ABORTED, *_one(server, log, gone, 2 * rows + 1, 1, aborted=True)))
        contents.verify(log, NARROW, contents.source_rows(server, NARROW), 2 * rows + 1)
    return found


def _one(
    server: Server, log: Path, statement: str, until_rows: int, changes: int, *, aborted: bool = False
) -> tuple[Outcome, Outcome]:
    server.execute(f"SELECT pg_create_logical_replication_slot('{KEPT}', 'pgoutput')")
    child = Child.of("capture", {"config": settings(server, log), "until_rows": until_rows})
    server.until_read(child)
    with server.connect(autocommit=False) as connection:
        connection.execute(statement)
        if aborted:
            # It leaves nothing; a row that is committed behind it shows when it has been read past.
            connection.rollback()
            connection.execute(NARROW.insert("0", "0"))
        connection.commit()
        committed_ns = time.monotonic_ns()
    ours = child.outcome()
    place = {"dsn": server.replication_dsn, "slot": KEPT, "publication": PUBLICATION}
    limit = Child.of("drain", {**place, "rows": changes, "mode": "nowhere"}).outcome()
    server.drop_slot(KEPT)
    return replace(ours, found={**ours.found, "committed_ns": committed_ns}), limit
