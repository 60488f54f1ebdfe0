"""A shop whose daemon runs, merged in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from comparedshop import ComparedShop
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import Database


@pytest.fixture
def postgres_shop(database: Database, tmp_path: Path) -> Iterator[ComparedShop]:
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        yield shop


@pytest.fixture
def mysql_shop(mysql_database: MySQLDatabase, tmp_path: Path) -> Iterator[ComparedShop]:
    with ComparedShop.on_mysql(mysql_database, tmp_path) as shop:
        yield shop
