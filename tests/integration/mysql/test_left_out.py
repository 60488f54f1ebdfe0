"""New tables that cannot be captured: the others are captured, and the source reports which it skips."""

from __future__ import annotations

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture
from tests.support.postgres.controlled_source import LOG_ID

from cdcflow.capture.interleave.messages import ChangesRefused
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint

pytestmark = pytest.mark.mysql


def failure(capture: MySQLCapture) -> str:
    """Why the one table fails whose changes up to now cannot be captured."""
    (reason,) = (e.reason for e in capture.events() if isinstance(e, ChangesRefused))
    return reason


def test_skipped_tables_are_those_of_the_latest_check(
    mysql_database: MySQLDatabase, capture: MySQLCapture, make_capture: MakeMySQLCapture
) -> None:
    """A table that got no key shows without a restart, and one that got its key is no longer listed."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    prepared = capture.prepare()
    assert capture.source.left_out() == ()
    capture.source.tables()
    mysql_database.execute("CREATE TABLE bare (v int)", "CREATE TABLE bare_too (v int)")
    assert [t.id.name for t in capture.source.tables()] == ["t"]
    assert capture.source.left_out() == (capture.named("bare"), capture.named("bare_too"))
    mysql_database.execute("ALTER TABLE bare ADD PRIMARY KEY (v)")
    capture.source.tables()
    assert capture.source.left_out() == (capture.named("bare_too"),)
    stopped = make_capture(mysql_database)
    assert stopped.source.left_out(prepared) == (capture.named("bare_too"),), "what the next start would skip"


def test_first_start_captures_the_others(mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture) -> None:
    """A wildcard met one table of MyISAM, and nothing at all was captured."""
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE bare (v int)",
        "CREATE TABLE plain (id int PRIMARY KEY) ENGINE = MyISAM",
    )
    capture = make_capture(mysql_database)
    left_out = (capture.named("bare"), capture.named("plain"))
    preview = capture.source.preview(Checkpoint(), LOG_ID)
    assert ([t.id.name for t in preview.tables], preview.left_out) == (["t"], left_out)
    capture.prepare()
    assert ([t.id.name for t in capture.source.tables()], capture.source.left_out()) == (["t"], left_out)
    found = [f"{f.level} {f.subject}: {f.text}; {f.remedy}" for f in capture.source.doctor()]
    name = f"{mysql_database.name}.plain"
    assert (
        f"error {name}: {name} uses the storage engine MyISAM, which has no transactions; "
        f"run ALTER TABLE `{mysql_database.name}`.`plain` ENGINE = InnoDB"
    ) in found
    named = make_capture(mysql_database, tables=[f"{mysql_database.name}.*", name])
    with pytest.raises(ConfigurationError, match="plain uses the storage engine MyISAM"):
        named.prepare()


def test_a_column_s_setting_is_for_the_rows_of_its_time(
    mysql_database: MySQLDatabase, capture: MySQLCapture, make_capture: MakeMySQLCapture
) -> None:
    """The log has bytes that are no valid text, and the table was recreated with a type that has no such setting: with
    the setting the start was refused, and without it the log could not be read.
    """
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9) CHARACTER SET euckr)")
    before = capture.prepare()
    mysql_database.execute(
        "INSERT INTO t VALUES (1, 0x61FEFE)",
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY, v binary(1))",
        "INSERT INTO t VALUES (2, 'b')",
    )
    stopped = make_capture(mysql_database)
    stopped.prepare(before)
    reason = failure(stopped)
    assert "bad_text is stop" in reason
    assert f"{{{mysql_database.name}.t.v: replace}}" in reason
    assert f"run `cdcflow backfill {mysql_database.name}.t`" in reason
    remedied = make_capture(mysql_database, columns={f"{mysql_database.name}.t.v": "replace"})
    remedied.prepare(before)
    values = [row["v"] for row in remedied.changes("t") if row["_op"] == "c"]
    assert (values[0][:2], values[1]) == ("a\N{REPLACEMENT CHARACTER}", b"b")
    assert [row["v"] for row in remedied.rows("t")] == [b"b"]
    with pytest.raises(ConfigurationError, match="does not know 'replace'"):
        make_capture(mysql_database, columns={f"{mysql_database.name}.t.v": "replace"}).prepare()


@pytest.mark.parametrize("columns", [{}, {"v": "replace"}], ids=["no setting", "its setting replaces"])
def test_the_remedy_for_a_key_that_is_no_text_ends_the_stop(
    mysql_database: MySQLDatabase, capture: MySQLCapture, make_capture: MakeMySQLCapture, columns: dict[str, str]
) -> None:
    """It named a setting that a key refuses, whose remedy was the first setting again. The column became the key after
    it had got that setting."""
    mysql_database.execute(
        "CREATE TABLE good (id int PRIMARY KEY)",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(9) CHARACTER SET euckr NOT NULL)",
    )
    before = capture.prepare()
    mysql_database.execute("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (v)", "INSERT INTO t VALUES (1, 0x61FEFE)")
    mysql_database.execute("INSERT INTO good VALUES (1)")
    name = f"{mysql_database.name}.t"
    settings = {f"{name}.{column}": value for column, value in columns.items()}
    if settings:
        with pytest.raises(ConfigurationError, match="is part of the table's key") as refused:
            make_capture(mysql_database, columns=settings).prepare(before)
        assert f"set source.columns to {{{name}.v: stop}}" in str(refused.value)
        settings = {f"{name}.v": "stop"}
    stopped = make_capture(mysql_database, columns=settings)
    stopped.prepare(before)
    reason = failure(stopped)
    assert "it is part of the key" in reason
    assert f"leave the table out of source.tables (write !{name})" in reason
    without = make_capture(mysql_database, tables=[f"{mysql_database.name}.*", f"!{name}"])
    without.prepare(before)
    assert [row["id"] for row in without.changes("good")] == [1]
