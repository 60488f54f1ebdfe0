"""A source that is reached through an SSH server, whose connections end while the daemon runs."""

from __future__ import annotations

import pytest
from tests.servers.sshd import SshServer
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.daemon.through_ssh import killed_daemon_leaves_nothing, survives_links_that_end

pytestmark = [pytest.mark.mysql, pytest.mark.long]
USER = "'tunneled'@'127.%'"


@pytest.fixture
def through(bank: MySQLBank, ssh_server: SshServer) -> MySQLBank:
    """The bank, through the SSH server, with a user that nothing else uses."""
    server = bank.database.server
    server.execute(f"DROP USER IF EXISTS {USER}", f"CREATE USER {USER}", f"GRANT ALL ON *.* TO {USER}")
    bank.configure(url=server.url("tunneled"), ssh=ssh_server.settings)
    return bank


def _sessions(bank: MySQLBank) -> int:
    query = "SELECT count(*) FROM information_schema.processlist WHERE user = 'tunneled'"
    return int(bank.database.server.execute(query)[0][0])


def test_capture_continues_when_its_ssh_connections_end(through: MySQLBank, ssh_server: SshServer) -> None:
    """P70: an SSH server restarts, idles connections out, and is replaced; a person at night cannot help with that."""
    survives_links_that_end(through, ssh_server, lambda: _sessions(through), seed=2)


def test_killed_daemon_leaves_no_ssh_connection(through: MySQLBank, ssh_server: SshServer) -> None:
    """The server sends a binary log without listening: only an end of the link ends it."""
    killed_daemon_leaves_nothing(through, ssh_server, lambda: _sessions(through))
