"""A shop whose daemon runs, merged in this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import Database, PostgresServer
from tests.support.verify.compared_shop import ComparedShop

_numbers = itertools.count(1)


@pytest.fixture
def postgres_shop(database: Database, tmp_path: Path) -> Iterator[ComparedShop]:
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        yield shop


@pytest.fixture
def mysql_shop(mysql_database: MySQLDatabase, tmp_path: Path) -> Iterator[ComparedShop]:
    with ComparedShop.on_mysql(mysql_database, tmp_path) as shop:
        yield shop


@pytest.fixture(scope="session")
def one_server() -> Iterator[PostgresServer]:
    """For what does not depend on the server's version."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def one_database(one_server: PostgresServer) -> Iterator[Database]:
    """Gone after the test together with its slots: the server has room for ten."""
    made = one_server.create_database(f"shop_{next(_numbers)}")
    yield made
    made.drop()


@pytest.fixture
def one_shop(one_database: Database, tmp_path: Path) -> Iterator[ComparedShop]:
    """A shop on PostgreSQL, of one version."""
    with ComparedShop.on_postgres(one_database, tmp_path) as shop:
        yield shop
