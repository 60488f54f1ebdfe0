"""A branch of the bank for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.daemon.mysql_bank import MySQLBank


@pytest.fixture
def bank(mysql_database: MySQLDatabase, tmp_path: Path) -> Iterator[MySQLBank]:
    made = MySQLBank(mysql_database, tmp_path)
    yield made
    made.stop_writing()
