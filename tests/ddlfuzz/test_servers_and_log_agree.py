"""DDL from a few fixed seeds on each server, and what seeds found before."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest
from tests.ddlfuzz.dialects import running
from tests.ddlfuzz.draw import Case, committed, drawn
from tests.ddlfuzz.execute import execute
from tests.ddlfuzz.model import SERVERS, Server
from tests.servers.mysql import MySQLServer
from tests.servers.postgres import PostgresServer

SEEDS: dict[Server, int] = {"postgres": 8, "mysql": 5, "mariadb": 5}
"""How many; they draw from every kind, and a table that is read again takes its time."""
CASES = [(server, case) for server in SERVERS for case in committed(server) if not case.open]

Started = Callable[[Server], PostgresServer | MySQLServer]


@pytest.fixture(scope="module")
def started() -> Iterator[Started]:
    """The running server of a kind, started when it is first asked for; the cases come in any order."""
    with contextlib.ExitStack() as opened:
        yield functools.cache(lambda server: opened.enter_context(running(server)))


@pytest.mark.parametrize(("server", "seed"), [(s, n) for s in SERVERS for n in range(SEEDS[s])])
def test_log_equals_the_source_after_any_ddl(server: Server, seed: int, started: Started) -> None:
    """A table that silently differs from its source is the worst failure. `make fuzz-ddl` draws from more."""
    case = drawn(server, seed)
    outcome = execute(case, started(server))
    assert outcome.failure is None, f"{outcome.failure}\n{case.text()}{again(case, seed)}"


@pytest.mark.spread(12)
@pytest.mark.parametrize(("server", "case"), CASES, ids=[f"{server}: {case.title}" for server, case in CASES])
def test_case_that_a_seed_found_stays_fixed(server: Server, case: Case, started: Started) -> None:
    """A failure that a seed found stays covered: shrunk to the fewest statements that show it."""
    outcome = execute(case, started(server))
    assert outcome.failure is None, f"{outcome.failure}\n{case.text()}"


def again(case: Case, seed: int) -> str:
    return f"again with: python tests/ddlfuzz/run.py --server {case.server} --seed {seed}"
