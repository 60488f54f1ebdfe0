"""Cases on several servers at once: each job is a process with its own server.

Each has its own server, because every capture of a MySQL server reads the whole binary log, the other jobs' part too.

    run.py ──cases──▶ queue ──▶ job: server, execute, shrink ──▶ queue ──Tried──▶ run.py
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from multiprocessing.queues import Queue

from tests.ddlfuzz.dialects import running
from tests.ddlfuzz.draw import Case
from tests.ddlfuzz.execute import Outcome, execute
from tests.ddlfuzz.model import Server
from tests.ddlfuzz.shrink import shrunk
from tests.servers.mysql import MySQLServer
from tests.servers.postgres import PostgresServer

# Not daemonic ones, which may have no children; and no fork, which would copy threads of queues.
_SPAWNING = multiprocessing.get_context("spawn")
_LOOK_S = 5.0


@dataclass(frozen=True)
class Tried:
    """A case that was run. `text`: as a file of `cases/`, if it failed."""

    case: Case
    outcome: Outcome
    text: str = ""


@dataclass(frozen=True)
class Ways:
    """How the cases are run. `shrinks`: one that fails is run again, and shrunk."""

    server: Server
    in_lower_case: bool = False
    shrinks: bool = True


def tried(cases: Iterable[Case], ways: Ways, jobs: int) -> Generator[Tried]:
    """Run cases, `jobs` at a time, and give each back when it ends. A generator: closing it ends the jobs."""
    waiting: Queue[Case | None] = _SPAWNING.Queue()
    done: Queue[Tried] = _SPAWNING.Queue()
    processes = [_SPAWNING.Process(target=_job, args=(ways, waiting, done)) for _ in range(jobs)]
    for process in processes:
        process.start()
    running_cases = 0
    try:
        for case in cases:
            waiting.put(case)
            running_cases += 1
            if running_cases > jobs:
                yield _next(done, processes)
                running_cases -= 1
        for _ in range(running_cases):
            yield _next(done, processes)
    finally:
        for _ in processes:
            waiting.put(None)
        for process in processes:
            process.join()


def _next(done: Queue[Tried], processes: Iterable[multiprocessing.process.BaseProcess]) -> Tried:
    while True:
        try:
            return done.get(timeout=_LOOK_S)
        except queue.Empty:
            if ended := [p.exitcode for p in processes if not p.is_alive()]:
                raise RuntimeError(f"a job ended by itself, with {ended[0]}") from None


def _job(ways: Ways, waiting: Queue[Case | None], done: Queue[Tried]) -> None:
    with running(ways.server, in_lower_case=ways.in_lower_case) as started:
        while (case := _next_case(waiting)) is not None:
            outcome = execute(case, started)
            text = ""
            if outcome.failure is not None:
                text = _shrunk(case, outcome, started) if ways.shrinks else case.text()
            done.put(Tried(case, outcome, text))


def _next_case(waiting: Queue[Case | None]) -> Case | None:
    """`None` when no cases are left, or the process that provides them has ended."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        try:
            return waiting.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
    return None


def _shrunk(case: Case, outcome: Outcome, started: PostgresServer | MySQLServer) -> str:
    """The case as text, as small as it gets. One that does not fail again is returned unchanged."""

    def fails(tried: Case) -> bool:
        return execute(tried, started).sort == outcome.sort

    if not any(fails(case) for _ in range(3)):
        return f"# did not fail again\n{case.text()}"
    small = shrunk(case, fails)
    again = next((o.failure for o in (execute(small, started) for _ in range(3)) if o.failure), "(not again)")
    return f"{small.text()}   → {again}\n"


__all__ = ["Tried", "Ways", "tried"]
