"""A source that is reached through an SSH server, whose connections end while the daemon runs."""

from __future__ import annotations

import pytest
from tests.servers.sshd import SshServer
from tests.support.daemon.bank import Bank
from tests.support.daemon.through_ssh import killed_daemon_leaves_nothing, survives_links_that_end

pytestmark = pytest.mark.postgres
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'cdcflow%%' AND datname = %s"


def _sessions(bank: Bank) -> int:
    with bank.database.server.connect() as connection:
        return int((connection.execute(SESSIONS, (bank.database.name,)).fetchone() or (0,))[0])


@pytest.mark.long
def test_capture_continues_when_its_ssh_connections_end(bank: Bank, ssh_server: SshServer) -> None:
    """P70: an SSH server restarts, idles connections out, and is replaced; a person at night cannot help with that."""
    bank.configure(ssh=ssh_server.settings, log_budget="1GiB")
    survives_links_that_end(bank, ssh_server, lambda: _sessions(bank), seed=1)


def test_killed_daemon_leaves_no_ssh_connection(bank: Bank, ssh_server: SshServer) -> None:
    """A slot that a dead daemon keeps in use excludes the next daemon."""
    bank.configure(ssh=ssh_server.settings)
    killed_daemon_leaves_nothing(bank, ssh_server, lambda: _sessions(bank))
