"""A server that is upgraded in place: its files are opened by a newer release, and the capture continues."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.mysql import MySQLServer, fetched
from tests.support.daemon.mysql_bank import MySQLBank

pytestmark = [pytest.mark.mysql, pytest.mark.long]


def test_major_upgrade_in_place_is_followed(tmp_path: Path) -> None:
    """MariaDB 10.11 to 11.8: a new file of the binary log, in a later format. Changes before and after it arrive."""
    with MySQLServer("mariadb", installed=fetched("mariadb", "bookworm")) as server:
        bank = MySQLBank(server.create_database("upgraded"), tmp_path)
        daemon = bank.daemon()
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill", daemon)
        bank.write(seed=1, transactions=100)
        server.stop()
        server.installation = fetched("mariadb", "trixie")
        server.start()
        (version,) = server.execute("SELECT VERSION()")[0]
        assert str(version).startswith("11.8")
        bank.write(seed=2, transactions=100)
        bank.catch_up_and_stop(daemon)
        bank.assert_log_equals_source()
