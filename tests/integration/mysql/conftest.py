"""Captures that are closed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture


@pytest.fixture
def make_capture() -> Iterator[MakeMySQLCapture]:
    """Opens captures, and closes them after the test."""
    made: list[MySQLCapture] = []

    def make(database: MySQLDatabase, **settings: Any) -> MySQLCapture:
        made.append(MySQLCapture(database, **settings))
        return made[-1]

    yield make
    for capture in reversed(made):
        capture.close()


@pytest.fixture
def capture(mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture) -> MySQLCapture:
    """A capture of all of the test's database; not prepared yet, so that tables can be created first."""
    return make_capture(mysql_database)
