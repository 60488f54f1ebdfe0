"""The daemon is killed with SIGKILL at every place where a step could be half done; nothing is lost or doubled.

A part of them in `make test`, the rest in `make test-long`.
"""

from __future__ import annotations

import pytest
from tests.support.daemon.bank import Bank
from tests.support.daemon.faults import check_killed_daemon

POINTS = [
    ("before:decode", "9"),
    ("after:decode", "9"),
    ("before:append", "6"),
    ("after:append", "6"),
    ("after:cut", "7"),
    ("before:sync", "6"),
    ("after:sync", "6"),
    ("before:fsync", "40"),
    ("after:fsync", "41"),
    ("before:feedback", "5"),
    ("after:feedback", "5"),
    ("after:low mark", "3"),
    ("after:chunk read", "4"),
    ("after:high mark", "3"),
    ("before:release", "3"),
    ("after:release", "4"),
    ("after:roll", "1"),
    ("before:seal", "1"),
    ("before:rename", "2"),
    ("after:rename", "2"),
]

AT_START = [("after:plan", "1"), ("before:fsync", "1"), ("after:low mark", "1")]
"""It may die before anything of this capture is durable. Everywhere else a live capture is hit."""

IN_WINDOWS = [
    ("before:window asked", "2"),
    ("after:decode", "3"),
    ("after:window read", "1"),
    ("before:sync", "3"),
    ("before:window feedback", "2"),
    ("after:window feedback", "3"),
    ("before:advance", "1"),
    ("after:advance", "2"),
    ("before:change over", "1"),
    ("after:change over", "1"),
]

ALSO_VERIFIED = (
    ("after:decode", "9"),
    ("after:chunk read", "4"),
    ("before:seal", "1"),
    ("after:plan", "1"),
    ("after:window read", "1"),
)
"""Where `cdcflow verify` compares as well, in the stream, a backfill, a seal, at the start and while catching up. At
each other point it would have the same to compare."""


@pytest.mark.postgres
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), POINTS)
def test_killed_daemon_loses_and_doubles_nothing(bank: Bank, point: str, count: str) -> None:
    """O01, W23, W24, L02, L15, L17, I7: a crash at any step is repaired by simply starting again."""
    check_killed_daemon(bank, point, count, verified=(point, count) in ALSO_VERIFIED)


@pytest.mark.postgres
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), AT_START)
def test_daemon_killed_at_its_start_loses_and_doubles_nothing(bank: Bank, point: str, count: str) -> None:
    """O01, L15: what a first start left half done must not block the next."""
    check_killed_daemon(bank, point, count, "start", verified=(point, count) in ALSO_VERIFIED)


@pytest.mark.postgres
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), IN_WINDOWS)
def test_daemon_killed_while_it_catches_up_loses_and_doubles_nothing(bank: Bank, point: str, count: str) -> None:
    """L15, P40, I7: a window is read from the slot's copy, made durable, the slot advanced; then the stream. Each
    step may be the last."""
    first = bank.daemon()
    bank.catch_up_and_stop(first)
    bank.write(seed=hash_of(point), transactions=400)
    killed = bank.daemon(point, count)
    bank.assert_killed(killed, live=True)
    again = bank.daemon()
    if (point, count) in ALSO_VERIFIED:
        bank.assert_verified(again)
    bank.catch_up_and_stop(again)
    bank.assert_log_equals_source()


def hash_of(text: str) -> int:
    return sum(text.encode())
