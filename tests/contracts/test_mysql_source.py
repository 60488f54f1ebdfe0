"""MySQL and MariaDB keep the contract of all sources, with marks that are written and without."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest
from tests.servers.mysql import MySQLDatabase

from cdcflow.capture.interleave.messages import Advanced
from cdcflow.capture.ports.source import Source
from cdcflow.config import MySQL
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.source import MySQLSource
from cdcflow.testing.sources import Act, FenceContract, SourceContract, SourceKit, collect, refuse_spool, rows_of

_NO_COPY = "a separate server has to be copied for it: tests/integration/mysql does"
_BY_AGE = "the server keeps its log by age, whether or not it was read"


class ReadOnlyKit:
    """One database with the suite's tables in it, captured without a mark being written."""

    cannot: ClassVar[Mapping[Act, str]] = {"restore a copy": _NO_COPY, "forget history": _BY_AGE}
    fence: ClassVar[str] = "read-only"

    def __init__(self, database: MySQLDatabase) -> None:
        self._database = database
        self.table = self.named("items")
        self.create("items")
        self.create("others")

    def named(self, name: str) -> TableId:
        return TableId(self._database.name, name)

    def open_source(self) -> Source:
        return self._opened(self._database.url)

    def open_reader(self) -> Source:
        server, user = self._database.server, "suite_reader@'127.0.0.1'"
        log = "REPLICATION CLIENT" if server.flavor == "mysql" else "BINLOG MONITOR"
        server.execute(f"DROP USER IF EXISTS {user}", f"CREATE USER {user}")
        server.execute(f"GRANT REPLICATION SLAVE, {log} ON *.* TO {user}")
        server.execute(f"GRANT CREATE, SELECT, INSERT, UPDATE ON cdcflow.* TO {user}")
        self.grant_select("items")
        self.grant_select("others")
        return self._opened(server.url("suite_reader"))

    def _opened(self, url: str) -> Source:
        settings = {
            "kind": self._database.server.flavor,
            "url": url,
            "tables": [f"{self._database.name}.{name}*" for name in ("items", "others", "bare")],
            "tables_without_key": "whole",
            "tls": {"mode": "off"},
            "fence": self.fence,
            "heartbeat": 1.0,
            "spool_bytes_max": "32KiB",
        }
        return MySQLSource(MySQL.model_validate(settings), lambda: None)

    def execute(self, *statements: str) -> None:
        with self._database.session(autocommit=False) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def execute_unlogged(self, *statements: str) -> None:
        self._database.execute("SET SESSION sql_log_bin = 0", *statements)

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        with self._database.session() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {name}")
            columns = [c[0] for c in cursor.description or ()]
            return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]

    def create(self, name: str, *, keyed: bool = True) -> None:
        self._database.execute(f"CREATE TABLE {name} (id int {'PRIMARY KEY' if keyed else ''}, name text)")

    def add_column_with_values(self, name: str, column: str) -> None:
        self._database.execute(f"ALTER TABLE {name} ADD COLUMN {column} int NOT NULL DEFAULT 7")

    def retype(self, name: str, column: str) -> None:
        self._database.execute(f"ALTER TABLE {name} MODIFY {column} int")

    def rename(self, *pairs: tuple[str, str]) -> None:
        self._database.execute(f"RENAME TABLE {', '.join(f'{old} TO {new}' for old, new in pairs)}")

    def truncate(self, name: str) -> None:
        self._database.execute(f"TRUNCATE TABLE {name}")

    def hold_commit(self, statement: str) -> AbstractContextManager[Callable[[], None]]:
        return self._database.holding_commit(statement)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        with self._database.session() as connection, connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLES {name} WRITE")
            yield

    def revoke_select(self, name: str) -> None:
        self._database.execute(f"REVOKE SELECT ON {name} FROM suite_reader@'127.0.0.1'")

    def grant_select(self, name: str) -> None:
        self._database.execute(f"GRANT SELECT ON {name} TO suite_reader@'127.0.0.1'")

    def copied(self) -> Callable[[], None]:
        raise AssertionError(_NO_COPY)  # scenarios that need it are not collected: see `cannot`


class MarksKit(ReadOnlyKit):
    """The same, captured with marks in a table."""

    cannot: ClassVar[Mapping[Act, str]] = {
        **ReadOnlyKit.cannot,
        "hold commits": "a mark's own commit waits for them, and that is the fence",
    }
    fence = "marks"


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's tables are small, and what it calls a large transaction fits into one read."""
    monkeypatch.setattr("cdcflow.sources.mysql.stream.BYTES_MAX", 32 << 10)
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.ROWS_MIN", 1)
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.PART_ROWS_MIN", 1)


@pytest.mark.mysql
class TestMarks(SourceContract):
    """Every test of the suite, on MariaDB and on MySQL, with a mark written into a table."""

    kit = MarksKit

    @pytest.fixture
    def source_kit(self, mysql_database: MySQLDatabase) -> SourceKit:
        return MarksKit(mysql_database)


@pytest.mark.mysql
class TestReadOnly(FenceContract):
    """Marks and chunks on MariaDB and on MySQL, with nothing written."""

    kit = ReadOnlyKit

    @pytest.fixture
    def source_kit(self, mysql_database: MySQLDatabase) -> SourceKit:
        return ReadOnlyKit(mysql_database)

    def test_idle_source_still_moves_the_position(self, source_kit: SourceKit) -> None:
        """M31: where nothing is written, writes elsewhere on the server move the position, which it reports."""
        source, checkpoint = self.prepare_source(source_kit)
        stream = source.stream(checkpoint, refuse_spool)
        source_kit.execute("CREATE TABLE elsewhere (id int PRIMARY KEY)", "INSERT INTO elsewhere VALUES (1)")
        events = collect(stream, lambda seen: any(isinstance(e, Advanced) for e in seen))
        assert not rows_of(events, source_kit.table)
        stream.close()
        source.close()
