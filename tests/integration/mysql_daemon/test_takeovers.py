"""Two daemons with one lease capture MySQL and MariaDB into one folder, as two machines with a shared disk do."""

from __future__ import annotations

import pytest
from tests.support.daemon.lease_takeovers import Pair, check_handover, check_takeovers
from tests.support.daemon.mysql_bank import MySQLBank

pytestmark = pytest.mark.mysql


@pytest.mark.long
def test_standby_becomes_active_by_a_lock_of_the_source(bank: MySQLBank) -> None:
    """L10, L11: the server ends a suspended daemon's session, and with it the lock."""
    with Pair(bank, {"at": "source", "name": bank.schema}) as pair:
        check_takeovers(pair, ["kill", "suspend", "handover"], seed=1)


@pytest.mark.long
def test_handover_succeeds_only_if_the_other_daemon_becomes_active(bank: MySQLBank) -> None:
    """The server names the session that has the lock, not the daemon: a new session of the same one is no handover."""
    with Pair(bank, {"at": "source", "name": bank.schema}) as pair:
        check_handover(pair)
