"""Passwords that a command prints, and that rotate while the daemon runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank
from tests.support.daemon.rotated_passwords import FIRST, RotatedPassword, rotates_under_a_daemon

pytestmark = pytest.mark.postgres


@pytest.mark.long
def test_capture_continues_when_the_printed_password_rotates(
    bank: Bank, wheel_server: PostgresServer, tmp_path: Path
) -> None:
    """P65: a cloud's tokens expire after minutes; a person at night cannot help with that."""
    database, password = bank.database, RotatedPassword(tmp_path)
    database.execute(f"CREATE ROLE tokens LOGIN SUPERUSER PASSWORD '{FIRST}'")
    wheel_server.write_hba(
        "host all,replication tokens 127.0.0.1/32 scram-sha-256", "host all postgres 127.0.0.1/32 trust"
    )
    bank.configure(url=database.url_as("tokens"), password=password.setting)
    try:
        rotates_under_a_daemon(
            bank,
            password,
            lambda new: database.execute(f"ALTER ROLE tokens PASSWORD '{new}'"),
            lambda: database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tokens'"),
        )
    finally:
        wheel_server.write_hba()
        database.execute("DROP PUBLICATION IF EXISTS p; DROP OWNED BY tokens CASCADE")
        wheel_server.execute("DROP ROLE tokens")
