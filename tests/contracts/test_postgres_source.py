"""PostgreSQL keeps the contract of all sources."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from tests.servers.postgres import Database
from tests.support.polling import PATIENCE_S, wait_until

from cdcflow.capture.ports.source import Source
from cdcflow.config import Postgres
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.source import PostgresSource
from cdcflow.testing.sources import Act, SourceContract

TABLES = ("public.items*", "public.others*", "public.bare*")
COLUMNS = "id int {}, name text"


class PostgresKit:
    """One database with the suite's tables in it."""

    cannot: ClassVar[Mapping[Act, str]] = {
        "restore a copy": "a separate server has to be copied for it: tests/integration/daemon does",
    }
    table = TableId("public", "items")

    def __init__(self, database: Database) -> None:
        self._database = database
        # A walsender applies it too: a transaction that exceeds it is sent before its end.
        database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
        self.create("items")
        self.create("others")

    def named(self, name: str) -> TableId:
        return TableId("public", name)

    def open_source(self) -> Source:
        return self._opened(url=self._database.url)

    def open_reader(self) -> Source:
        self._do(
            "DO $$ BEGIN CREATE ROLE suite_reader LOGIN REPLICATION; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
            "GRANT SELECT ON items, others TO suite_reader",
            "CREATE PUBLICATION suite FOR TABLE items, others WITH (publish_via_partition_root)",
        )
        if self._database.server.version >= 180000:
            self._do("ALTER PUBLICATION suite SET (publish_generated_columns = stored)")
        url = self._database.url_as("suite_reader")
        return self._opened(url=url, publication="suite", tables=("public.items", "public.others"))

    def _opened(self, **settings: Any) -> Source:
        return PostgresSource(Postgres(**{"kind": "postgres", "tables": TABLES, **settings}), lambda: None)

    def execute(self, *statements: str) -> None:
        with self._database.connect(autocommit=False) as conn:
            for statement in statements:
                conn.execute(statement.encode())

    def execute_unlogged(self, *statements: str) -> None:
        # What a publication excludes is decided as of each change, and no other session sees this one.
        names = [name for (name,) in self._database.execute("SELECT pubname FROM pg_publication")]
        self.execute(
            *(f"ALTER PUBLICATION {name} SET (publish = 'truncate')" for name in names),
            *statements,
            *(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')" for name in names),
        )

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        with self._database.connect() as conn:
            cursor = conn.execute(f"SELECT * FROM {name}".encode())
            columns = [c.name for c in cursor.description or ()]
            return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]

    def create(self, name: str, *, keyed: bool = True) -> None:
        self._do(f"CREATE TABLE {name} ({COLUMNS.format('PRIMARY KEY' if keyed else '')})")
        if not keyed:
            self._do(f"ALTER TABLE {name} REPLICA IDENTITY FULL")

    def add_column_with_values(self, name: str, column: str) -> None:
        self._do(f"ALTER TABLE {name} ADD COLUMN {column} int DEFAULT (random() * 1000)::int")

    def retype(self, name: str, column: str) -> None:
        self._do(f"ALTER TABLE {name} ALTER COLUMN {column} TYPE int USING {column}::int")

    def rename(self, *pairs: tuple[str, str]) -> None:
        self.execute(*(f"ALTER TABLE {old} RENAME TO {new}" for old, new in pairs))

    def truncate(self, name: str) -> None:
        self._do(f"TRUNCATE {name}")

    @contextlib.contextmanager
    def hold_commit(self, statement: str) -> Iterator[Callable[[], None]]:
        def run() -> None:
            with self._database.connect() as conn:
                conn.execute("SET synchronous_commit = on")
                conn.execute(statement.encode())

        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
        writer = threading.Thread(target=run)

        def release() -> None:
            self._database.server.reload(synchronous_standby_names="")
            writer.join(PATIENCE_S)

        with self._database.server.holding_commits():
            writer.start()
            try:
                wait_until(lambda: self._database.execute(waits)[0][0], "the statement's commit to wait")
                yield release
            finally:
                release()

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        with self._database.session(autocommit=False) as conn:
            conn.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE".encode())
            yield

    def revoke_select(self, name: str) -> None:
        self._do(f"REVOKE SELECT ON {name} FROM suite_reader")

    def grant_select(self, name: str) -> None:
        self._do(f"GRANT SELECT ON {name} TO suite_reader")

    def copied(self) -> Callable[[], None]:
        raise AssertionError(self.cannot["restore a copy"])  # scenarios that need it are not collected

    def _do(self, *statements: str) -> None:
        for statement in statements:
            self._database.execute(statement)


@pytest.fixture
def source_kit(database: Database) -> PostgresKit:
    return PostgresKit(database)


@pytest.mark.postgres
class TestPostgres(SourceContract):
    """Every test of the suite, on every PostgreSQL that is installed here."""

    kit = PostgresKit
