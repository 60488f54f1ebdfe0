"""Databases in SQL_ASCII, which take any bytes for text: what is UTF-8 is captured, and what is not has a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.postgres.controlled_source import MakeCapture
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.errors import ConfigurationError
from cdcflow.sources.postgres.catch_up import Windows

pytestmark = pytest.mark.postgres

WAYS: dict[str, dict[str, Any]] = {
    "binary": {"catch_up": "never"},
    "text": {"catch_up": "never", "binary": False},
    "windows": {"windows": Windows(backlog_min=1, rest_min=1, messages_max=40, advance_min=1)},
}
"""How the changes come: a stream of values in binary or as text, and windows through SQL."""

BAD = "INSERT INTO bad VALUES (2, convert_from('\\xfffe', 'SQL_ASCII'))"


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    with postgres_server.connect() as connection:
        connection.execute(
            "CREATE DATABASE anything ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
    made = Database(postgres_server, "anything")
    made.execute("CREATE TABLE bad (id int PRIMARY KEY, v text); CREATE TABLE good (id int PRIMARY KEY, v text)")
    yield made
    made.drop()


@pytest.mark.spread(2)
@pytest.mark.parametrize("way", WAYS)
def test_bytes_that_are_not_text_stop_with_an_error_that_names_the_column_and_leads_out(
    database: Database, make_capture: MakeCapture, way: str
) -> None:
    """The server itself names neither table nor column, and refuses the whole stream."""
    capture = make_capture(database, **WAYS[way])
    before = capture.prepare()
    database.execute(f"INSERT INTO good VALUES (1, 'naïve ☃'); {BAD}; INSERT INTO good VALUES (3, 'behind')")
    with pytest.raises(ConfigurationError, match=r"column public\.bad\.v \(text\): a value is not UTF-8") as stopped:
        capture.events()
    assert "!schema.table" in str(stopped.value)
    assert "--accept-history-loss" in str(stopped.value)
    capture.close()
    without = make_capture(database, tables=["public.*", "!public.bad"], **WAYS[way])
    without.prepare(before)
    assert [(r["id"], r["v"]) for r in without.changes()] == [(1, "naïve ☃"), (3, "behind")]


@pytest.mark.spread(1)
def test_rows_fixed_at_the_source_are_captured_as_the_error_promises(database: Database, tmp_path: Path) -> None:
    """What the stream has of them stays what it is, so the capture begins after it, and reads all tables again."""
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        shop.start("bad", "good")
        database.execute(f"INSERT INTO good VALUES (1, 'naïve ☃'); {BAD}")
        assert shop.daemon is not None
        assert shop.daemon.wait(60) == 78
        assert "a value is not UTF-8" in shop.output.read_text()
        database.execute("UPDATE bad SET v = 'mended'; INSERT INTO good VALUES (3, 'behind')")
        shop.start("bad", "good", options=["--accept-history-loss"])
        for table, rows in {"bad": [(2, "mended")], "good": [(1, "naïve ☃"), (3, "behind")]}.items():
            found = shop.merge_until(table, lambda found: found.num_rows > 0)
            assert sorted((row["id"], row["v"]) for row in found.to_pylist()) == rows


def test_bytes_that_are_not_text_fail_the_backfill_of_their_table_with_an_error_that_names_it(
    database: Database, make_capture: MakeCapture
) -> None:
    """And no other: a table whose texts are UTF-8 is read."""
    database.execute(f"INSERT INTO good VALUES (1, 'naïve ☃'); {BAD}")
    capture = make_capture(database)
    capture.prepare()
    assert [row["v"] for row in capture.rows("public.good")] == ["naïve ☃"]
    with pytest.raises(ConfigurationError, match=r"column public\.bad\.v \(text\): a value is not UTF-8"):
        capture.rows("public.bad")
    database.execute("UPDATE bad SET v = 'mended'")
    assert [row["v"] for row in capture.rows("public.bad")] == ["mended"]


def test_name_that_is_not_text_is_reported_as_one(database: Database, make_capture: MakeCapture) -> None:
    """In this case the catalog cannot be read; a bare SQLSTATE does not explain why."""
    database.execute("DO $$ BEGIN EXECUTE format('ALTER TABLE bad RENAME v TO %I', chr(254)); END $$")
    with pytest.raises(ConfigurationError, match="not valid in the encoding") as stopped:
        make_capture(database).prepare()
    assert "SQLSTATE 22021" in str(stopped.value)


@pytest.fixture
def western(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database whose encoding has bytes without a character in Unicode."""
    with postgres_server.connect(autocommit=True) as session:
        session.execute("CREATE DATABASE western ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    made = Database(postgres_server, "western")
    yield made
    made.drop()


def test_byte_without_a_character_stops_the_stream_until_the_remedy_was_followed(
    western: Database, make_capture: MakeCapture
) -> None:
    """The server converts to UTF-8 before it sends, so its refusal names no table. The text of other tables is
    right, before and after."""
    western.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)")
    capture = make_capture(western)
    before = capture.prepare()
    western.execute(r"INSERT INTO u VALUES (1, convert_from('\xe980', 'WIN1252'))")
    assert [row["v"] for row in capture.changes()] == ["é€"]
    western.execute(r"INSERT INTO t VALUES (1, convert_from('\x81', 'WIN1252')); INSERT INTO u VALUES (2, 'b')")
    with pytest.raises(ConfigurationError, match="22P05") as refused:
        capture.changes()
    assert refused.value.remedy is not None
    assert refused.value.remedy.startswith("correct the text")
    assert "`cdcflow run --accept-history-loss`" in refused.value.remedy
    capture.close()
    western.execute("UPDATE t SET v = 'corrected'")
    again = make_capture(western)
    again.prepare(before, accept_history_loss=True)
    western.execute("UPDATE t SET id = 2; INSERT INTO u VALUES (3, 'c')")
    assert [(row["id"], row["v"]) for row in again.changes() if row["_op"] != "d"] == [(2, "corrected"), (3, "c")]
    assert [row["v"] for row in again.rows("public.t")] == ["corrected"]
