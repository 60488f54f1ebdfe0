"""The daemon that writes to Kafka is killed with SIGKILL at every step: nothing is lost or doubled."""

from __future__ import annotations

import pytest
from tests.support.daemon.bank import Bank
from tests.support.daemon.faults import check_killed_daemon

POINTS = [
    ("after:records sent", "9"),
    ("after:commit", "8"),
]
# Where a line has "start", all calls count since the process's begin; otherwise those of a capture that is live.
MORE_POINTS: list[tuple[str, ...]] = [
    ("after:transaction begun", "7"),
    ("after:roll", "1"),
    ("after:topics made", "1", "start"),
    ("after:taken over", "1", "start"),
    ("before:transaction begun", "1", "start"),
    ("after:head sent", "1", "start"),
    ("before:commit", "1", "start"),
    ("after:commit", "1", "start"),
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


@pytest.mark.spread(1)
@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.parametrize(
    "point", [*POINTS, *(pytest.param(point, marks=pytest.mark.long) for point in MORE_POINTS)], ids="-".join
)
def test_killed_daemon_loses_and_doubles_nothing_in_kafka(bank: Bank, point: tuple[str, ...]) -> None:
    """O01, W23, L02, L15, K11, I7: rows and checkpoint are in one Kafka transaction, so every crash is between two."""
    check_killed_daemon(bank, *point)
