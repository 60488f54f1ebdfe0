"""A bank with policies for its columns, on a separate server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import PostgresServer
from tests.support.privacy.private_bank import SECRETS, PrivateBank
from tests.support.privacy.private_mysql_bank import PrivateMySQLBank

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def private_server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"wal_sender_timeout": "10s", "logical_decoding_work_mem": "64kB"}) as server:
        yield server


@pytest.fixture
def bank(private_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateBank]:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    database = private_server.create_database(f"private_{next(_numbers)}")
    made = PrivateBank(database, tmp_path)
    yield made
    made.stop_writing()
    database.drop()


@pytest.fixture
def mysql_bank(
    mysql_database: MySQLDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PrivateMySQLBank]:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    made = PrivateMySQLBank(mysql_database, tmp_path)
    yield made
    made.stop_writing()
