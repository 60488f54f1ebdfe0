"""Databases in SQL_ASCII, which take any bytes for text: what is UTF-8 is captured, and what is not fails its table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.postgres.controlled_source import MakeCapture, rows_of
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.capture.interleave.messages import ChangesRefused, Committed
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Run
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.catch_up import Windows
from cdcflow.testing.folded import folded_log

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
        connection.execute("ALTER DATABASE anything SET client_encoding = 'UTF8'")  # for the tests' own sessions
    made = Database(postgres_server, "anything")
    made.execute("CREATE TABLE bad (id int PRIMARY KEY, v text); CREATE TABLE good (id int PRIMARY KEY, v text)")
    yield made
    made.drop()


@pytest.mark.spread(2)
@pytest.mark.parametrize("way", WAYS)
def test_bytes_that_are_not_text_fail_their_table_with_a_reason_that_names_the_column(
    database: Database, make_capture: MakeCapture, way: str
) -> None:
    """The server itself would name neither table nor column, and refuse the whole stream."""
    capture = make_capture(database, **WAYS[way])
    before = capture.prepare()
    both = f"INSERT INTO good VALUES (1, 'naïve ☃'); {BAD}"
    database.execute(f"BEGIN; {both}; COMMIT; INSERT INTO good VALUES (3, 'behind')")
    events = capture.events()
    refused = next(event for event in events if isinstance(event, ChangesRefused | Committed))
    assert isinstance(refused, ChangesRefused), "it precedes the rows of the transactions that lack others"
    assert str(refused.table) == "public.bad"
    assert re.match(r"decoding column public\.bad\.v \(text\): a value is not UTF-8", refused.reason)
    assert "!schema.table" in refused.reason
    assert "run `cdcflow backfill public.bad`" in refused.reason
    runs = [event.run for event in events if isinstance(event, Committed)]
    rows = [row for run in runs if isinstance(run, Run) for row in rows_of(run)]
    assert [(r["id"], r["v"]) for r in rows] == [(1, "naïve ☃"), (3, "behind")]
    capture.close()
    without = make_capture(database, tables=["public.*", "!public.bad"], **WAYS[way])
    without.prepare(before)
    assert [(r["id"], r["v"]) for r in without.changes()] == [(1, "naïve ☃"), (3, "behind")]


@pytest.mark.spread(1)
def failed_table(shop: ComparedShop, words: str) -> str:
    """Wait until table bad fails. Return the reason in the status, which has these words."""
    found: list[str] = []

    def is_failed(status: dict[str, Any]) -> bool:
        known = status["tables"]["public.bad"]
        found.append(str(known["reason"]))
        return known["state"] == "failed" and words in found[-1]

    shop.wait_until(is_failed, "the table to fail")
    return found[-1]


KILLED = pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])


@pytest.mark.spread(1)
@KILLED
def test_rows_fixed_at_the_source_are_captured_as_the_reason_promises(
    database: Database, tmp_path: Path, *, killed: bool
) -> None:
    """Its changes until then are missing, deletes too, and the log of the source still has the bytes: also in the old
    rows of its correction."""
    database.execute("ALTER TABLE bad REPLICA IDENTITY FULL; INSERT INTO bad VALUES (0, 'gone'), (1, 'stays')")
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        shop.start("bad", "good")
        database.execute(f"BEGIN; INSERT INTO good VALUES (1, 'naïve ☃'); {BAD}; DELETE FROM bad WHERE id = 0; COMMIT")
        reason = failed_table(shop, "column public.bad.v (text): a value is not UTF-8")
        assert "run `cdcflow backfill public.bad`" in reason
        if killed:
            shop.kill()
        database.execute("INSERT INTO bad VALUES (3, 'later'); INSERT INTO good VALUES (3, 'behind')")
        if killed:
            shop.start("good")
        shop.assert_copies_equal_source("good", ("id", "v"))
        assert failed_table(shop, "a value is not UTF-8") == reason
        assert "a value is not UTF-8" in shop.said("status")
        written = [row.values["id"] for row in folded_log(tmp_path / "log")[TableId("public", "bad")].values()]
        assert set(written) == {0, 1}, "no change is in the log after the table failed"
        database.execute("UPDATE bad SET v = 'mended' WHERE id = 2; INSERT INTO good VALUES (4, 'passed')")
        shop.assert_copies_equal_source("good", ("id", "v"))
        shop.said("backfill", "public.bad")
        if killed:
            shop.kill()
            shop.start()
        shop.wait_until_done("bad")
        database.execute("INSERT INTO bad VALUES (4, 'new')")
        for table in ("bad", "good"):
            shop.assert_copies_equal_source(table, ("id", "v"))
        assert shop.verify(code=0)["bad/tables"]["verdict"] == "equal"


@pytest.mark.spread(1)
def test_large_transaction_fails_the_table_whose_text_it_has_and_no_other(database: Database, tmp_path: Path) -> None:
    """It is streamed before its commit, and what its savepoint undoes fails nothing."""
    for table in ("bad", "good"):
        database.execute(f"ALTER TABLE {table} ALTER v SET STORAGE PLAIN; INSERT INTO {table} VALUES (0, 'first')")
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        shop.start("bad", "good")
        rows = "INSERT INTO bad SELECT i, repeat(md5(i::text), 230) FROM generate_series({0}, {0} + 2999) i"
        others = rows.replace("bad", "good")
        undone = f"SAVEPOINT s; {BAD}; {rows.format(50_000)}; ROLLBACK TO s"
        database.execute(f"BEGIN; {rows.format(10_000)}; {undone}; {others.format(10_000)}; COMMIT")
        for table in ("bad", "good"):
            shop.assert_copies_equal_source(table, ("id", "v"))
        broken = f"{rows.format(20_000)}; {BAD}; {rows.format(30_000)}"
        database.execute(f"BEGIN; {broken}; {others.format(20_000)}; COMMIT")
        failed_table(shop, "a value is not UTF-8")
        shop.assert_copies_equal_source("good", ("id", "v"))
        assert len(folded_log(tmp_path / "log")[TableId("public", "bad")]) == 3_001, "none of its rows since then"
        (streamed,) = database.execute("SELECT sum(stream_txns) FROM pg_stat_replication_slots")
        assert streamed[0] >= 2, "otherwise the transactions were not large enough"
        database.execute("DELETE FROM bad WHERE id = 2; DELETE FROM bad WHERE id % 3 = 0")
        shop.said("backfill", "public.bad")
        shop.wait_until_done("bad")
        shop.assert_copies_equal_source("bad", ("id", "v"))


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


@pytest.mark.spread(1)
@pytest.mark.parametrize("way", WAYS)
def test_byte_without_a_character_stops_the_stream_until_the_remedy_was_followed(
    western: Database, make_capture: MakeCapture, way: str
) -> None:
    """The server converts to UTF-8 before it sends, and ends the stream of all tables. Its refusal names no table, but
    the position of the change. The text of other tables is right, before and after."""
    western.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)")
    capture = make_capture(western, **WAYS[way])
    before = capture.prepare()
    western.execute(r"INSERT INTO u VALUES (1, convert_from('\xe980', 'WIN1252'))")
    assert [row["v"] for row in capture.changes()] == ["é€"]
    western.execute(r"INSERT INTO t VALUES (1, convert_from('\x81', 'WIN1252')); INSERT INTO u VALUES (2, 'b')")
    with pytest.raises(ConfigurationError, match="22P05") as refused:
        capture.changes()
    with pytest.raises(ConfigurationError, match=r"reading public\.t: .* text of it .*22P05") as unread:
        capture.rows("public.t")
    assert "correct its rows" in str(unread.value)
    assert [row["v"] for row in capture.rows("public.u")] == ["é€", "b"]
    assert "a text of table public.t as UTF-8" in str(refused.value)
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
