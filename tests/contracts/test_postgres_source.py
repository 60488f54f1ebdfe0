"""PostgreSQL keeps the contract of all sources."""

from __future__ import annotations

import pytest

from cdcflow.config import Postgres
from cdcflow.model.table import TableId
from cdcflow.ports import Source
from cdcflow.sources.postgres.source import PostgresSource
from cdcflow.testing.postgres import Database
from cdcflow.testing.sources import SourceContract


class PostgresKit:
    """One database with the suite's table in it."""

    table = TableId("public", "items")

    def __init__(self, database: Database) -> None:
        self._database = database
        self.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")

    def execute(self, *statements: str) -> None:
        with self._database.connect(autocommit=False) as conn:
            for statement in statements:
                conn.execute(statement)

    def open_source(self) -> Source:
        return PostgresSource(Postgres(kind="postgres", url=self._database.url), lambda: None)


@pytest.fixture
def source_kit(database: Database) -> PostgresKit:
    return PostgresKit(database)


@pytest.mark.postgres
class TestPostgres(SourceContract):
    """Every test of the suite, on every PostgreSQL that is installed here."""
