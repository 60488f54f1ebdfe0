"""MySQL 8.0, as far as a newer server that speaks as one can show it: its statements, its settings, its defaults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers.mysql import MySQLServer
from tests.servers.older import OlderMySQL
from tests.support.mysql.controlled_source import MakeMySQLCapture

from cdcflow.errors import ConfigurationError

pytestmark = pytest.mark.mysql

of_mysql = pytest.mark.parametrize("flavor", ["mysql"], indirect=True)

AS_INSTALLED = {"gtid_mode": "", "enforce_gtid_consistency": "", "binlog_row_metadata": ""}
"""The defaults of 8.0: no GTIDs, and no names of columns in the log."""


@pytest.fixture(params=["8.0.36", "8.0.12"])
def older(request: pytest.FixtureRequest, mysql_server: MySQLServer) -> Iterator[OlderMySQL]:
    with OlderMySQL(mysql_server.port, request.param) as made:
        yield made


@of_mysql
def test_older_server_is_captured(mysql_server: MySQLServer, older: OlderMySQL, make_capture: MakeMySQLCapture) -> None:
    """M56: rows, changes and a restart, with marks and without, with nothing that it does not know."""
    database = mysql_server.create_database("older")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9))", "INSERT INTO t VALUES (1, 'a')")
    for fence in ("marks", "read-only"):
        capture = make_capture(database, url=f"mysql://root@127.0.0.1:{older.port}/", fence=fence)
        begun = capture.prepare()
        assert [row["v"] for row in capture.rows("t")] == ["a"]
        database.execute("UPDATE t SET v = concat(v, 'b')")
        assert [row["v"] for row in capture.changes("t")] == ["ab"]
        assert capture.source.continues(lambda begun=begun: begun, "log")[0].level == "ok"
        assert capture.source.status(begun.position).lag_bytes is not None
        assert not [f for f in capture.source.doctor() if f.level == "problem"]
        capture.close()
        database.execute("UPDATE t SET v = 'a'")
    database.drop()
    assert not older.refused


def test_defaults_are_named_with_what_changes_them(make_capture: MakeMySQLCapture) -> None:
    """M72: a freshly installed server writes a log without names; the printed statements are all that it needs."""
    with MySQLServer("mysql", AS_INSTALLED) as server, OlderMySQL(server.port, "8.0.36") as older:
        database = server.create_database("plain")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        capture = make_capture(database, url=f"mysql://root@127.0.0.1:{older.port}/")
        with pytest.raises(ConfigurationError, match="binlog_row_metadata is MINIMAL") as caught:
            capture.prepare()
        assert caught.value.remedy is not None
        database.execute(caught.value.remedy.removeprefix("run "))
        capture.prepare()
        database.execute("INSERT INTO t VALUES (1)")
        assert [row["id"] for row in capture.changes("t")] == [1]


@of_mysql
def test_server_before_it_is_refused(mysql_server: MySQLServer, make_capture: MakeMySQLCapture) -> None:
    """Its log names no columns, whatever is set."""
    with OlderMySQL(mysql_server.port, "5.7.44") as older:
        database = mysql_server.create_database("too_old")
        capture = make_capture(database, url=f"mysql://root@127.0.0.1:{older.port}/")
        with pytest.raises(ConfigurationError, match=r"is MySQL 5\.7; cdcflow needs 8\.0 or newer"):
            capture.prepare()
        database.drop()
