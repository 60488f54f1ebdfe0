"""Rounds: the order rotates, the warm-up does not count."""

from __future__ import annotations

import os
import sys

import pytest
from bench.harness import Child, Failed, Outcome, Party, rounds, server_cpu_s


def _parties(names: str, ran: list[str]) -> dict[str, Party]:
    def party(name: str) -> Party:
        def run() -> Outcome:
            ran.append(name)
            return Outcome(seconds=float(len(ran)), rows=1, cpu_s=0)

        return run

    return {name: party(name) for name in names}


def test_everybody_is_first_in_turn() -> None:
    """A system that always went first would always have a colder cache."""
    ran: list[str] = []
    rounds(_parties("abc", ran), 3, postmaster=None)
    assert "".join(ran) == "abc" + "bca" + "cab" + "abc"


def test_the_warm_up_is_not_measured() -> None:
    """The first round of each party is in no figure."""
    measured = rounds(_parties("ab", []), 2, postmaster=None)
    assert {name: [o.seconds for o in outcomes] for name, outcomes in measured.items()} == {"a": [4, 5], "b": [3, 6]}


def test_a_slow_peer_sits_out_the_warm_up_and_the_last_rounds() -> None:
    """A JVM warms up within its run, and a quick bench has no time for more."""
    ran: list[str] = []
    measured = rounds(_parties("ab", ran), 3, postmaster=None, fewer={"b": 1})
    assert (ran.count("b"), len(measured["b"]), len(measured["a"])) == (1, 1, 3)


def test_a_party_that_breaks_gives_no_figures() -> None:
    """No number without a run that ended successfully."""
    with pytest.raises(Failed, match="ended with 3: broken"):
        Child([sys.executable, "-c", "import sys; sys.stderr.write('broken'); sys.exit(3)"]).outcome()


def test_child_reports_its_figures_in_its_last_line() -> None:
    """The figures that it prints replace those that the parent measured around it."""
    said = 'print(\'noise\'); print(\'{"seconds": 2.0, "rows": 10, "cpu_s": 1.0, "more": 7}\')'
    outcome = Child([sys.executable, "-c", said]).outcome()
    assert (outcome.rate, outcome.cpu_s_per_million, outcome.found) == (5.0, 100_000, {"more": 7})


def test_the_cost_of_a_process_holds_its_children() -> None:
    """A walsender ends with its client; its time must not end with it."""
    before = server_cpu_s(os.getpid())
    Child([sys.executable, "-c", "sum(range(5_000_000))"]).outcome(rows=1)
    assert server_cpu_s(os.getpid()) > before


def test_child_may_take_as_long_as_its_bench_says() -> None:
    """A run of half an hour was ended by a limit of half an hour."""
    with pytest.raises(Failed, match=r"did not end in 0.1 s"):
        Child([sys.executable, "-c", "import time; time.sleep(60)"]).outcome(within_s=0.1)
