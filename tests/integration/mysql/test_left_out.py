"""Tables that come up and cannot be captured: the others go on, and the source says which it leaves out."""

from __future__ import annotations

import pytest
from mysqlcapturing import MakeMySQLCapture, MySQLCapture
from tests.servers.mysql import MySQLDatabase

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
