"""Passwords that a command prints, and that rotate while the daemon runs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pymysql
import pytest
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.daemon.rotated_passwords import FIRST, RotatedPassword, rotates_under_a_daemon

pytestmark = pytest.mark.mysql

USER = "'tokens'@'127.%'"


@pytest.mark.long
def test_capture_continues_when_the_printed_password_rotates(bank: MySQLBank, tmp_path: Path) -> None:
    """P65: a cloud's tokens expire after minutes; a person at night cannot help with that."""
    server, password = bank.database.server, RotatedPassword(tmp_path)
    server.execute(
        f"DROP USER IF EXISTS {USER}", f"CREATE USER {USER} IDENTIFIED BY '{FIRST}'", f"GRANT ALL ON *.* TO {USER}"
    )
    pinned = {}
    if server.flavor == "mysql":
        key = tmp_path / "public_key.pem"
        key.write_bytes((server.data / "public_key.pem").read_bytes())
        pinned = {"server_public_key": str(key)}
    bank.configure(url=server.url("tokens"), password=password.setting, **pinned)

    def hang_up() -> None:
        query = "SELECT id FROM information_schema.processlist WHERE user = 'tokens'"
        for (number,) in server.execute(query):
            with contextlib.suppress(pymysql.err.OperationalError):  # it has ended by itself
                server.execute(f"KILL {number}")

    try:
        rotates_under_a_daemon(
            bank, password, lambda new: server.execute(f"ALTER USER {USER} IDENTIFIED BY '{new}'"), hang_up
        )
    finally:
        server.execute(f"DROP USER {USER}")
