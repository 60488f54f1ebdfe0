"""drain: a backlog in a slot, streamed into a fsynced columnar log.

The limit is `pg_recvlogical -f /dev/null` with the same pgoutput options over the same transport: the walsender's own
speed. The peers decode the same bytes into Go structs, Java records, Python values, and store nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench import parties
from bench.harness import Budget, Outcome, Party, rounds, tell
from bench.parties import DEBEZIUM, DECODE, GO, PYTHON, RAW, RECVLOGICAL
from bench.results import Line, alone, at_least, at_most, compared
from bench.server import Backlog, Server, prepared
from bench.shapes import NARROW, SIXTY, TEN, WIDE, Shape

ROWS = 600_000
US = "cdcflow"

CASES: tuple[tuple[Shape, int, float], ...] = (
    (NARROW, 1, 1.0),
    (NARROW, 10, 1.0),
    (NARROW, 100, 1.0),
    (NARROW, 10_000, 1.0),
    (TEN, 100, 1.0),
    (SIXTY, 100, 0.25),  # the same order of bytes as the narrow ones
    (WIDE, 100, 0.25),
)
QUICK = CASES[0:3:2]


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    for shape, per_transaction, part in QUICK if budget.quick else CASES:
        rows = round(budget.rows * part / per_transaction) * per_transaction
        case = f"{shape.name}, {len(shape.columns)} columns, {per_transaction:,} a transaction, {rows:,} rows"
        tell(f"  drain: {case}, {transport}")
        with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
            backlog = prepared(server, Path(folder), shape, rows, per_transaction)
            with_debezium = shape is NARROW and per_transaction in ((100,) if budget.quick else (1, 100))
            lines += _case(backlog, case, budget, with_debezium=with_debezium)
    return lines


def _case(backlog: Backlog, case: str, budget: Budget, *, with_debezium: bool) -> list[Line]:
    taking: dict[str, Party | None] = {
        RECVLOGICAL: parties.recvlogical(backlog),
        US: parties.capture(backlog, "never", parties.verified(backlog)),
        RAW: None if budget.quick else parties.drain(backlog, "nowhere"),
        GO: parties.go(backlog),
        PYTHON: None if budget.quick else parties.drain(backlog, "python"),
        DEBEZIUM: parties.debezium(backlog) if with_debezium else None,
    }
    there = {name: party for name, party in taking.items() if party is not None}
    fewer = {DEBEZIUM: 1 if budget.quick else budget.rounds}
    measured = rounds(there, budget.rounds, postmaster=backlog.server.postmaster, fewer=fewer)
    return [*speeds("drain", case, measured), *costs("drain", case, measured)]


def speeds(bench: str, case: str, measured: Mapping[str, list[Outcome]]) -> list[Line]:
    """Rows a second, compared with those of all other parties."""
    targets = {RECVLOGICAL: at_least(0.90), GO: at_least(1.2), DEBEZIUM: at_least(3.5)}
    ours = [o.rate for o in measured[US]]
    return [
        compared(bench, case, "rows/s", ours, [o.rate for o in theirs], name, targets.get(name))
        for name, theirs in measured.items()
        if name != US
    ]


def costs(bench: str, case: str, measured: Mapping[str, list[Outcome]]) -> list[Line]:
    """CPU of client and server, memory, bytes and fsyncs."""
    ours = measured[US]
    cpu, memory = [o.cpu_s_per_million for o in ours], [(o.rss_bytes or 0) / 1e6 for o in ours]
    lines = []
    for name, theirs in measured.items():
        if name in (US, DECODE):
            continue
        their_cpu = [o.cpu_s_per_million for o in theirs]
        target = at_most(1 / 6) if name == DEBEZIUM else None
        lines.append(compared(bench, case, "client CPU s/M rows", cpu, their_cpu, name, target))
    server_cpu = [o.server_cpu_s_per_million for o in ours]
    limit = RECVLOGICAL if RECVLOGICAL in measured else next(n for n in measured if n != US)
    theirs_there = [o.server_cpu_s_per_million for o in measured[limit]]
    lines.append(compared(bench, case, "server CPU s/M rows", server_cpu, theirs_there, limit))
    for name in (GO, DEBEZIUM):
        if measured.get(name):
            their_memory = [(o.rss_bytes or 0) / 1e6 for o in measured[name]]
            target = at_most(1 / 4) if name == DEBEZIUM else None
            lines.append(compared(bench, case, "peak RSS MB", memory, their_memory, name, target))
    lines.append(alone(bench, case, "bytes written/row", [(o.written_bytes or 0) / o.rows for o in ours]))
    lines.append(alone(bench, case, "fsyncs/100k rows", [(o.fsyncs or 0) / o.rows * 1e5 for o in ours]))
    return lines
