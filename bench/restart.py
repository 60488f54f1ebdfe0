"""restart: SIGKILL under load, again and again; from the new process's start to its first new durable change.

The limit is a bare process that does the least of a start: Python, the slot's connection, the first change. It is
measured twice: with psycopg alone, and with everything loaded that cdcflow loads. At the end nothing may be lost and
nothing doubled.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import contents
from bench.drain import US
from bench.harness import Budget, Child, Failed, Outcome, tell
from bench.latency import insert
from bench.results import Line, at_most, compared
from bench.server import KEPT, PUBLICATION, SLOT, Server, settings
from bench.shapes import NARROW
from cdcflow.log.read.reader import newest_checkpoint

ROWS = 50
"""How often it is killed."""

LOAD = 1000.0
BARE, LOADED = "bare process, slot connect", "the same with cdcflow's imports"


def run(budget: Budget, transport: str) -> list[Line]:
    kills = 5 if budget.quick else budget.rows
    case = f"SIGKILL {kills} times, {LOAD:,.0f} single-row transactions a second"
    tell(f"  restart: {case}, {transport}")
    random.seed(4)
    with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
        server.execute(NARROW.create)
        log = Path(folder) / "log"
        Child.of("capture", {"config": settings(server, log), "once": True}).outcome()
        asked = {"dsn": server.dsn, "statement": insert(NARROW), "connections": 1, "seconds": 0}
        writer = Child.of("writer", {**asked, "first": 1, "rows": 1 << 40, "rate": LOAD})
        try:
            measured = _killed(server, log, kills)
        finally:
            writer.kill()
        _settled(server, log)
    return [
        compared(
            "restart", case, "ms to the first new durable change", measured[US], measured[LOADED], LOADED, at_most(1.5)
        ),
        compared("restart", case, "ms to the first new durable change", measured[US], measured[BARE], BARE),
        compared("restart", case, "ms, the slowest", [max(measured[US])], [1000.0], "one second", at_most(1)),
    ]


def _killed(server: Server, log: Path, kills: int) -> dict[str, list[float]]:
    taking: dict[str, Callable[[], float]] = {
        US: lambda: _restarted(server, log),
        BARE: lambda: _bare(server, imports=False),
        LOADED: lambda: _bare(server, imports=True),
    }
    measured: dict[str, list[float]] = {name: [] for name in taking}
    names = list(taking)
    for number in range(kills + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            # The limits need no fifty rounds to be known.
            if name != US and number > 10:
                continue
            took = taking[name]()
            if number:
                measured[name].append(took)
        if number % 10 == 0:
            tell(f"    {number}: " + ", ".join(f"{n} {m[-1]:.0f} ms" for n, m in measured.items() if m))
    return measured


def _restarted(server: Server, log: Path) -> float:
    """Milliseconds from a start to the first new durable change; killed a moment later."""
    there = newest_checkpoint(log).next_offset - 1
    child = Child.of("capture", {"config": settings(server, log), "first_above": there})
    first_ns = child.line()["first_ns"]
    time.sleep(random.uniform(0.02, 0.5))
    child.kill()
    assert isinstance(first_ns, int)
    return (first_ns - child.begun_ns) / 1e6


def _bare(server: Server, *, imports: bool) -> float:
    server.drop_slot(KEPT)
    server.execute(f"SELECT pg_create_logical_replication_slot('{KEPT}', 'pgoutput')")
    asked = {"dsn": server.replication_dsn, "slot": KEPT, "publication": PUBLICATION, "rows": 1, "mode": "nowhere"}
    child = Child.of("drain", {**asked, "imports": imports})
    outcome = child.outcome()
    server.drop_slot(KEPT)
    return (int(str(outcome.found["ended_ns"])) - child.begun_ns) / 1e6


def _settled(server: Server, log: Path) -> Outcome:
    """Let a last run catch up, then compare everything: nothing lost, nothing doubled."""
    rows = int(server.value(f"SELECT count(*) FROM {NARROW.name}"))
    outcome = Child.of("capture", {"config": settings(server, log), "until_rows": rows}).outcome()
    contents.verify(log, NARROW, contents.source_rows(server, NARROW), rows)
    if not server.value(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"):
        raise Failed("the slot is gone")
    return outcome
