"""Fixtures that integration and contract tests share: real servers, one fresh database a test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcflow.testing.mysql import FLAVORS, Flavor, MySQLDatabase, MySQLServer
from cdcflow.testing.postgres import Database, PostgresServer, binaries

_numbers = itertools.count(1)
_INSTALLED = binaries()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes share the tests: a file's stay together, and all of Spark's, which then start it once.

    The daemon's tests stand alone: each is long, and needs nothing of the one before it.
    """
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here)
        if "spark" in place.parts:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif "daemon" not in place.parts:
            item.add_marker(pytest.mark.xdist_group(str(place)))


@pytest.fixture(scope="session", params=sorted(_INSTALLED), ids=str)
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A running server; every test that uses it runs once with each PostgreSQL that is installed here."""
    with PostgresServer(_INSTALLED[request.param]) as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A fresh database on `postgres_server`, gone after the test together with its slots and sessions."""
    made = postgres_server.create_database(f"test_{next(_numbers)}")
    yield made
    if not postgres_server.is_running:
        postgres_server.start()
    made.drop()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server for one test alone, which it may stop, kill, or start with other settings."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session", params=FLAVORS, ids=str)
def flavor(request: pytest.FixtureRequest) -> Flavor:
    """Every test that asks for it runs once with MariaDB and once with MySQL."""
    found: Flavor = request.param
    return found


@pytest.fixture(scope="session")
def mysql_server(flavor: Flavor) -> Iterator[MySQLServer]:
    """A running MySQL or MariaDB server."""
    with MySQLServer(flavor) as server:
        yield server


@pytest.fixture
def mysql_database(mysql_server: MySQLServer) -> Iterator[MySQLDatabase]:
    """A fresh database on `mysql_server`, gone after the test. The binlog is shared with other tests' databases."""
    made = mysql_server.create_database(f"test_{next(_numbers)}")
    yield made
    if not mysql_server.is_running:
        mysql_server.start()
    made.drop()


@pytest.fixture
def own_mysql(flavor: Flavor) -> Iterator[MySQLServer]:
    """A server for one test alone, which it may stop, kill, or start with other settings."""
    with MySQLServer(flavor) as server:
        yield server
