"""catch-up: the same backlog, read in windows through SQL and COPY where that is quicker than the stream.

Limits: `pg_recvlogical` (the stream's own speed), one COPY of the peeked backlog to nowhere, and the server's decoding
alone, its output only counted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import parties
from bench.drain import US, costs
from bench.harness import Budget, rounds, tell
from bench.parties import DEBEZIUM, DECODE, PEEK, RECVLOGICAL
from bench.results import Line, at_least, compared
from bench.server import Server, prepared
from bench.shapes import NARROW, TEN

ROWS = 900_000
TARGETS = {RECVLOGICAL: at_least(1.8), PEEK: at_least(0.6), DEBEZIUM: at_least(8)}


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    for shape, per_transaction in ((NARROW, 100),) if budget.quick else ((NARROW, 1), (NARROW, 100), (TEN, 100)):
        rows = budget.rows // per_transaction * per_transaction
        case = f"{shape.name}, {len(shape.columns)} columns, {per_transaction:,} a transaction, {rows:,} rows"
        tell(f"  catch-up: {case}, {transport}")
        with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
            backlog = prepared(server, Path(folder), shape, rows, per_transaction)
            taking = {
                RECVLOGICAL: parties.recvlogical(backlog),
                US: parties.capture(backlog, "auto", parties.verified(backlog)),
                PEEK: parties.peeked(backlog),
                DECODE: parties.decoded(backlog),
                DEBEZIUM: parties.debezium(backlog) if shape is NARROW and per_transaction == 100 else None,
            }
            there = {name: party for name, party in taking.items() if party is not None}
            fewer = {DEBEZIUM: 1 if budget.quick else budget.rounds}
            measured = rounds(there, budget.rounds, postmaster=server.postmaster, fewer=fewer)
        ours = [o.rate for o in measured[US]]
        lines += [
            compared("catch-up", case, "rows/s", ours, [o.rate for o in theirs], name, TARGETS.get(name))
            for name, theirs in measured.items()
            if name != US
        ]
        lines += costs("catch-up", case, measured)
    return lines
