"""A server for the daemon's tests, and a bank on it for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def wheel_server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"wal_sender_timeout": "10s"}) as server:
        yield server


@pytest.fixture
def bank(wheel_server: PostgresServer, tmp_path: Path) -> Iterator[Bank]:
    database = wheel_server.create_database(f"bank_{next(_numbers)}")
    made = Bank(database, tmp_path)
    yield made
    made.stop_writing()
    if not wheel_server.is_running:
        wheel_server.start()
    database.drop()
