"""The daemon on MySQL and MariaDB, killed with SIGKILL where a step could be half done; nothing is lost or doubled."""

from __future__ import annotations

import pytest
from tests.support.daemon.faults import check_killed_daemon
from tests.support.daemon.mysql_bank import MySQLBank

pytestmark = pytest.mark.mysql

# Where the source takes part; what belongs to the log alone is killed on PostgreSQL (`daemon/test_kill_points.py`).
POINTS = [
    ("after:decode", "9"),
    ("after:append", "6"),
    ("before:sync", "6"),
    ("before:feedback", "5"),
    ("after:low mark", "3"),
    ("after:chunk read", "4"),
    ("after:high mark", "3"),
    ("after:release", "4"),
]
AT_START = [("after:plan", "1")]
"""Before anything of this capture was durable; everywhere else a live capture is hit."""
READING_ONLY = [("after:low mark", "3"), ("after:release", "4")]
ALSO_VERIFIED = (("after:append", "6"), ("after:chunk read", "4"))
"""Where `cdcflow verify` compares as well; at each other point it would have the same to compare."""


@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), POINTS)
def test_killed_daemon_loses_and_doubles_nothing(bank: MySQLBank, point: str, count: str) -> None:
    """O01, M08, M11, M12, W23, W24, L15: a crash at any step is repaired by simply starting again."""
    check_killed_daemon(bank, point, count, verified=(point, count) in ALSO_VERIFIED)


@pytest.mark.long
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), AT_START)
def test_daemon_killed_at_its_start_loses_and_doubles_nothing(bank: MySQLBank, point: str, count: str) -> None:
    """O01, L15: what a first start has done by half must not be in the way of the next."""
    check_killed_daemon(bank, point, count, "start", verified=(point, count) in ALSO_VERIFIED)


@pytest.mark.long
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), READING_ONLY)
def test_killed_daemon_that_writes_nothing_loses_and_doubles_nothing(bank: MySQLBank, point: str, count: str) -> None:
    """W03: marks that are only places in the log serve as well, over a crash too."""
    bank.configure(fence="read-only")
    check_killed_daemon(bank, point, count, verified=(point, count) in ALSO_VERIFIED)
