"""Freshness that is proven on MySQL and MariaDB: by marks that are written, and by positions alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.support.capture.watched_capture import Watched
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture

from cdcflow.capture.ports.source import Covering, Described
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId

pytestmark = pytest.mark.mysql


@pytest.mark.parametrize("fence", ["marks", "read-only"])
def test_a_table_that_changes_is_fresh_and_an_idle_one_is_quiet(
    flavor: Flavor, mysql_database: MySQLDatabase, tmp_path: Path, fence: str
) -> None:
    """Whether cdcflow may write to the server or not."""
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
        on.until_fresh_by(lambda: mysql_database.execute("REPLACE INTO t VALUES (1)", "DELETE FROM t"), f"{name}.t")
        on.until_fresh(f"{name}.idle", "quiet")
    assert on.error is None


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "unlogged", ["UPDATE t SET v = 2 WHERE id = 1", "INSERT INTO t VALUES (99, 1)", "DELETE FROM t"]
)
def test_rows_that_a_session_changes_without_logging_are_found(
    flavor: Flavor, mysql_database: MySQLDatabase, tmp_path: Path, unlogged: str
) -> None:
    """`sql_log_bin = 0` is known to that session only; only the rows reveal it. A backfill repairs it."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    name = mysql_database.name
    source = {"kind": flavor, "url": mysql_database.url, "tables": [f"{name}.*"], "tls": {"mode": "off"}}
    with Watched(tmp_path, source) as on:
        sampled = on.capture._freshness
        assert sampled is not None
        on.until(lambda _: sampled._samples, "a first sample")
        mysql_database.execute("UPDATE t SET v = 5 WHERE id = 2")
        on.until(lambda s: s["counts"]["rows_captured"] >= 1, "the change")
        settled = sampled._turn + 3
        on.until(lambda _: sampled._turn > settled, "samples after the change")
        mysql_database.execute("SET SESSION sql_log_bin = 0", unlogged)
        found = on.until_fresh(f"{name}.t", "not proven")
        assert found["freshness_reason"].startswith("its rows changed at the source, but no change arrived")
        assert found["freshness_cause"] == "uncovered"
        on.capture.request("backfill", [f"{name}.t"])
        on.until(lambda s: s["tables"][f"{name}.t"]["generation"] == 2, "the backfill")
        on.until_fresh(f"{name}.t", "quiet", "fresh")
    assert on.error is None


def test_server_reports_its_kind_and_version(capture: MySQLCapture, flavor: Flavor) -> None:
    """For `cdcflow bundle`."""
    source: Described = capture.source
    facts = source.facts()
    assert facts["binlog_format"] == "ROW"
    assert ("mariadb" in facts["version"].lower()) == (flavor == "mariadb")


def reasons(capture: MySQLCapture, *tables: str) -> dict[TableId, str]:
    source: Covering = capture.source
    return dict(source.coverage({capture.named(t): 0 for t in tables}))


def test_a_table_that_is_gone_or_changed_unlogged_is_not_covered(
    flavor: Flavor, mysql_database: MySQLDatabase, capture: MySQLCapture
) -> None:
    """Its silence would suggest that nothing had changed."""
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


@pytest.mark.spread(1)
def test_a_filter_on_the_binary_log_is_never_green(own_mysql: MySQLServer, make_capture: MakeMySQLCapture) -> None:
    """The connection is open and heartbeats arrive; the database's changes do not. The next start stops with an error
    that names the filter.
    """
    database = own_mysql.create_database("filtered")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    prepared = capture.prepare()
    assert reasons(capture, "t") == {}
    own_mysql.restart(binlog_ignore_db="filtered")
    (reason,) = reasons(capture, "t").values()
    assert "excludes databases (binlog_ignore_db filtered)" in reason
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
