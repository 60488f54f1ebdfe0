"""Tables that another session has locked or is altering, and a database that has none yet: the others are captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import Database
from tests.support.postgres.controlled_source import Capture, MakeCapture

from cdcflow.errors import HistoryLost
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.postgres import doctor
from cdcflow.sources.postgres.catalog import select
from cdcflow.sources.postgres.types import Policy

pytestmark = pytest.mark.postgres

LOCKS = (
    "CREATE INDEX ON more (id)",
    "LOCK TABLE more IN SHARE UPDATE EXCLUSIVE MODE",
    "ALTER TABLE more ADD COLUMN w int",
)


@pytest.fixture
def items(database: Database) -> Database:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    return database


@contextmanager
def locked(database: Database, statement: str) -> Iterator[int]:
    """Inside, a session holds what the statement locks; the value is its pid."""
    with database.session(autocommit=False) as session:
        session.execute(statement.encode())
        yield session.info.backend_pid
        session.rollback()  # the server notices a closed connection later


def captured(capture: Capture) -> list[str]:
    return [str(table.id) for table in capture.source.tables()]


@pytest.mark.parametrize("lock", LOCKS)
def test_locked_new_table_is_captured_when_it_is_free(items: Database, make_capture: MakeCapture, lock: str) -> None:
    """The publication would wait for the lock, and the capture of all tables with it: at a check, and at a start."""
    running = make_capture(items)
    before = running.prepare()
    items.execute("CREATE TABLE more (id int PRIMARY KEY)")
    with locked(items, lock) as pid:
        assert captured(running) == ["public.items"]
        assert [str(t) for t in running.source.left_out()] == ["public.more"]
        restarted = make_capture(items)
        after = restarted.prepare(before)
        assert captured(restarted) == ["public.items"]
        assert [str(t) for t in restarted.source.left_out()] == ["public.more"]
        items.execute("INSERT INTO items VALUES (1)")
        assert [r["id"] for r in restarted.changes()] == [1]
        told = [f.text for f in running.source.doctor() if f.subject == "public.more" and f.level == "warning"]
        assert any(f"pid {pid} of " in text and "lock" in text for text in told), told
    assert captured(running) == captured(restarted) == ["public.items", "public.more"]
    restarted.close()
    at_last = make_capture(items)
    at_last.prepare(after)
    items.execute("INSERT INTO more (id) VALUES (2)")
    assert [r["id"] for r in at_last.changes("public.more")] == [2]


def test_doctor_names_a_transaction_that_new_tables_wait_for(
    items: Database, make_capture: MakeCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is skipped as long as a transaction runs that began before it was published."""
    monkeypatch.setattr(doctor, "OLD_TRANSACTION_S", 0)
    with locked(items, "INSERT INTO items VALUES (1)") as pid:
        found = {f.subject: f.text for f in make_capture(items).source.doctor()}
    assert f"pid {pid} of " in found["transactions"]


def test_first_start_postpones_a_locked_table(items: Database, make_capture: MakeCapture) -> None:
    """Also where it is the only one: the daemon waits for it, not at it."""
    capture = make_capture(items)
    with locked(items, "LOCK TABLE items IN SHARE MODE"):
        before = capture.prepare()
        assert captured(capture) == []
    assert captured(capture) == ["public.items"]
    make_capture(items).prepare(before)
    items.execute("INSERT INTO items VALUES (1)")
    again = make_capture(items)
    again.prepare(before)
    assert [r["id"] for r in again.changes("public.items")] == [1]


def test_a_captured_table_out_of_the_publication_is_lost_history_locked_or_not(
    items: Database, make_capture: MakeCapture
) -> None:
    """Its changes are in no stream: to leave it for later would hide that."""
    items.execute("CREATE TABLE more (id int PRIMARY KEY)")
    capture = make_capture(items)
    before = capture.prepare()
    items.execute(f"ALTER PUBLICATION {before.source['publication']} DROP TABLE more")
    with locked(items, "LOCK TABLE more IN SHARE MODE"), pytest.raises(HistoryLost):
        make_capture(items).prepare(before)


def test_a_table_that_is_no_longer_selected_is_not_waited_for(items: Database, make_capture: MakeCapture) -> None:
    """It stays in the publication until it is free; its rows are passed over."""
    items.execute("CREATE TABLE more (id int PRIMARY KEY)")
    before = make_capture(items).prepare()
    with locked(items, "LOCK TABLE more IN SHARE MODE"):
        capture = make_capture(items, tables=["public.items"])
        capture.prepare(before)
    items.execute("INSERT INTO more VALUES (1); INSERT INTO items VALUES (2)")
    assert [r["id"] for r in capture.changes()] == [2]


def test_a_partition_that_is_being_altered_holds_nothing_up(items: Database, make_capture: MakeCapture) -> None:
    """To ask for its columns needs no lock of it, at a start or while rows come."""
    items.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (9)"
    )
    capture = make_capture(items)
    before = capture.prepare()
    items.execute("INSERT INTO parts VALUES (1)")
    with locked(items, "LOCK TABLE ONLY part_1 IN ACCESS EXCLUSIVE MODE"):
        assert captured(capture) == ["public.items", "public.parts"]
        make_capture(items).prepare(before)
        assert [r["id"] for r in capture.changes("public.parts")] == [1]


def test_a_database_without_tables_is_captured(database: Database, make_capture: MakeCapture) -> None:
    """A deployment starts the daemon before the migrations run. Later all tables may be dropped again."""
    capture = make_capture(database)
    before = capture.prepare()
    assert captured(capture) == []
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    assert captured(capture) == ["public.items"]
    capture.close()
    again = make_capture(database)
    after = again.prepare(before)
    database.execute("INSERT INTO items VALUES (1)")
    assert [r["id"] for r in again.changes()] == [1]
    database.execute("DROP TABLE items")
    assert captured(again) == []
    again.close()
    assert make_capture(database).prepare(after).position is not None


class Between:
    """A connection on which another session acts just before one of its statements."""

    def __init__(self, connection: psycopg.Connection[Any], word: str, act: Callable[[], object]) -> None:
        self._connection, self._word, self._act = connection, word, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: Any, *arguments: Any) -> Any:
        if self._word in str(statement):
            self._word = "nothing more"
            self._act()
        return self._connection.execute(statement, *arguments)


@pytest.mark.parametrize("word", ["pg_attribute", "pg_index", "pg_inherits"])
def test_catalog_is_read_in_one_snapshot(items: Database, word: str) -> None:
    """A key column that an earlier answer did not contain ended the daemon with an internal error."""
    items.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    changed = (
        "ALTER TABLE items DROP COLUMN id, ADD COLUMN other int PRIMARY KEY;"
        "CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (9); DROP TABLE IF EXISTS gone"
    )
    with items.session() as session:
        between: Any = Between(session, word, lambda: items.execute(changed))
        found = select(between, Selection.parse(["public.*"]), Policy())
        names = {str(t.id): (t.names_of(t.identity_numbers), len(t.leaves)) for t in found.tables}
        assert names == {"public.items": (("id",), 0), "public.parts": (("id",), 0)}
        again = select(session, Selection.parse(["public.*"]), Policy())
    assert {str(t.id): len(t.leaves) for t in again.good} == {"public.items": 0, "public.parts": 1}
