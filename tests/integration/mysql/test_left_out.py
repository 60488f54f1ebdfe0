"""Tables that come up and cannot be captured: the others go on, and the source says which it leaves out."""

from __future__ import annotations

import pytest
from mysqlcapturing import MakeMySQLCapture, MySQLCapture
from tests.servers.mysql import MySQLDatabase

from cdcflow.errors import ConfigurationError

pytestmark = pytest.mark.mysql


def test_tables_left_out_are_those_of_the_newest_look(
    mysql_database: MySQLDatabase, capture: MySQLCapture, make_capture: MakeMySQLCapture
) -> None:
    """A table that got no key shows without a restart, and one that got its key is none of them any more."""
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
    assert stopped.source.left_out(prepared) == (capture.named("bare_too"),), "what the next start would leave out"


def test_a_column_s_setting_is_for_the_rows_of_its_time(
    mysql_database: MySQLDatabase, capture: MySQLCapture, make_capture: MakeMySQLCapture
) -> None:
    """The log has bytes that are no text, and the table was made again with a type that knows no such setting: with it
    the start was refused, and without it the log could not be read."""
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
    with pytest.raises(ConfigurationError, match="bad_text is stop") as told:
        stopped.changes("t")
    assert f"{{{mysql_database.name}.t.v: replace}}" in (told.value.remedy or "")
    remedied = make_capture(mysql_database, columns={f"{mysql_database.name}.t.v": "replace"})
    remedied.prepare(before)
    values = [row["v"] for row in remedied.changes("t") if row["_op"] == "c"]
    assert (values[0][:2], values[1]) == ("a\N{REPLACEMENT CHARACTER}", b"b")
    assert [row["v"] for row in remedied.rows("t")] == [b"b"]
    with pytest.raises(ConfigurationError, match="does not know 'replace'"):
        make_capture(mysql_database, columns={f"{mysql_database.name}.t.v": "replace"}).prepare()
