"""The daemon that writes to Kafka is killed with SIGKILL at every step: nothing is lost or doubled."""

from __future__ import annotations

import signal

import pytest
from bank import Bank

POINTS = [
    ("after:records sent", "9"),
    ("after:commit", "8"),
]
MORE_POINTS = [
    ("after:transaction begun", "7"),
    ("after:roll", "1"),
    ("after:topics made", "1"),
    ("after:taken over", "1"),
    ("before:transaction begun", "1"),
    ("after:head sent", "1"),
    ("before:commit", "1"),
    ("after:commit", "1"),
    ("after:append", "6"),
    ("after:cut", "7"),
    ("before:sync", "6"),
    ("after:record put", "60"),
    ("before:commit", "8"),
    ("before:feedback", "5"),
    ("after:feedback", "5"),
    ("before:release", "3"),
    ("after:release", "4"),
    ("before:roll", "1"),
    ("after:head sent", "2"),
]


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.parametrize(
    ("point", "count"), [*POINTS, *(pytest.param(*point, marks=pytest.mark.long) for point in MORE_POINTS)]
)
def test_killed_daemon_loses_and_doubles_nothing_in_kafka(bank: Bank, point: str, count: str) -> None:
    """O01, W23, L02, L15, K11, I7: rows and checkpoint are in one Kafka transaction, so every crash is between two."""
    bank.start_writing(seed=hash_of(point))
    killed = bank.daemon(point, count)
    assert killed.wait(timeout=60) == -signal.SIGKILL, bank.output()
    again = bank.daemon()
    before = bank.transactions
    bank.wait_until(lambda: bank.transactions > before + 30, "the writer to go on", again)
    bank.stop_writing()
    bank.catch_up_and_stop(again)
    bank.assert_log_equals_source()


def hash_of(text: str) -> int:
    return sum(text.encode())
