"""MySQL and MariaDB keep the contract of all sources, with marks that are written and without."""

from __future__ import annotations

import pytest

from cdcflow.config import MySQL
from cdcflow.interleave.messages import Advanced
from cdcflow.model.table import TableId
from cdcflow.ports import Source
from cdcflow.sources.mysql.source import MySQLSource
from cdcflow.testing.mysql import MySQLDatabase
from cdcflow.testing.sources import SourceContract, SourceKit, collect, refuse_spool, rows_of


class MySQLKit:
    """One database with the suite's table in it."""

    def __init__(self, database: MySQLDatabase, fence: str) -> None:
        self._database = database
        self.fence = fence
        self.table = TableId(database.name, "items")
        self.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")

    def execute(self, *statements: str) -> None:
        with self._database.session(autocommit=False) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def open_source(self) -> Source:
        settings = MySQL.model_validate(
            {
                "kind": self._database.server.flavor,
                "url": self._database.url,
                "tables": [f"{self._database.name}.*"],
                "tls": {"mode": "off"},
                "fence": self.fence,
                "heartbeat": 1.0,
            }
        )
        return MySQLSource(settings, lambda: None)


@pytest.fixture(params=["marks", "read-only"])
def source_kit(
    mysql_database: MySQLDatabase, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> SourceKit:
    monkeypatch.setattr("cdcflow.sources.mysql.chunks.ROWS_MIN", 1)  # the suite's chunks are small
    monkeypatch.setattr("cdcflow.sources.mysql.chunks.PART_ROWS_MIN", 1)
    return MySQLKit(mysql_database, request.param)


@pytest.mark.mysql
class TestMySQL(SourceContract):
    """Every test of the suite, on MariaDB and on MySQL."""

    def test_idle_source_still_moves_the_position(self, source_kit: SourceKit) -> None:
        """M31: where nothing is written, what others write elsewhere moves the position, and the server tells of it."""
        assert isinstance(source_kit, MySQLKit)
        if source_kit.fence == "marks":
            super().test_idle_source_still_moves_the_position(source_kit)
            return
        source, checkpoint = self.prepared(source_kit)
        stream = source.stream(checkpoint, refuse_spool)
        source_kit.execute("CREATE TABLE elsewhere (id int PRIMARY KEY)", "INSERT INTO elsewhere VALUES (1)")
        events = collect(stream, lambda seen: any(isinstance(e, Advanced) for e in seen))
        assert not rows_of(events, source_kit.table)
        stream.close()
        source.close()
