"""Freshness that is proven on MySQL and MariaDB: by marks that are written, and by positions alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from mysqlcapturing import MakeMySQLCapture, MySQLCapture
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from watched import Watched

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.ports import Covering

pytestmark = pytest.mark.mysql


@pytest.mark.parametrize("fence", ["marks", "read-only"])
def test_a_table_that_changes_is_fresh_and_an_idle_one_is_quiet(
    flavor: Flavor, mysql_database: MySQLDatabase, tmp_path: Path, fence: str
) -> None:
    """Whether we may write to the server or not."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE idle (id int PRIMARY KEY)")
    name = mysql_database.name
    source = {
        "kind": flavor,
        "url": mysql_database.url,
        "tables": [f"{name}.*"],
        "fence": fence,
        "tls": {"mode": "off"},
    }
    with Watched(tmp_path, source) as on:
        on.until_fresh(f"{name}.t", "quiet")
        mysql_database.execute("INSERT INTO t VALUES (1)")
        on.until_fresh(f"{name}.t", "fresh")
        on.until_fresh(f"{name}.idle", "quiet")
    assert on.error is None


def reasons(capture: MySQLCapture, *tables: str) -> dict[TableId, str]:
    source: Covering = capture.source
    return dict(source.coverage({capture.named(t): 0 for t in tables}))


def test_a_table_that_is_gone_or_changed_unlogged_is_not_covered(
    flavor: Flavor, mysql_database: MySQLDatabase, capture: MySQLCapture
) -> None:
    """Its silence would look like peace."""
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
    )
    capture.prepare()
    found = reasons(capture, "t", "parent", "child", "gone")
    assert found.pop(capture.named("gone")) == "it was dropped or renamed since the capture began"
    cascade = found.pop(capture.named("child"), "")
    if flavor == "mariadb":  # of MySQL it depends on the version
        assert "changes its rows, and the server does not log that" in cascade
    assert found == {}


def test_a_filter_on_the_binary_log_is_never_green(own_mysql: MySQLServer, make_capture: MakeMySQLCapture) -> None:
    """The connection is open and heartbeats come; the database's changes do not. The next start stops by name."""
    database = own_mysql.create_database("filtered")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    prepared = capture.prepare()
    assert reasons(capture, "t") == {}
    own_mysql.restart(binlog_ignore_db="filtered")
    (reason,) = reasons(capture, "t").values()
    assert "leaves databases out (binlog_ignore_db filtered)" in reason
    with pytest.raises(ConfigurationError, match="binlog_ignore_db filtered"):
        make_capture(database).prepare(prepared)


def test_rows_that_statements_change_unseen_are_not_covered(
    own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """A server that was switched to log statements sends nothing of the rows."""
    database = own_mysql.create_database("statements")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    capture.prepare()
    own_mysql.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    (reason,) = reasons(capture, "t").values()
    assert reason.startswith("binlog_format is STATEMENT")
