"""Who may connect, how, and with which rights: refusals name the reason and are never accidental."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pymysql
import pytest
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.servers.postgres import Database
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture
from tests.support.postgres.controlled_source import rows_of

from cdcflow.config import MySQL
from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable
from cdcflow.model.change import Run
from cdcflow.sources.mysql.connection import Connector, query
from cdcflow.sources.postgres.connection import Connector as PostgresConnector

pytestmark = pytest.mark.mysql

CANARY = "c4n4ry-s3cret"


def connector(server: MySQLServer, password: str | None = None, **settings: Any) -> Connector:
    given = {"kind": server.flavor, "url": server.url(), "tables": ["a.*"], "tls": {"mode": "off"}, **settings}
    return Connector(MySQL.model_validate(given), lambda: password)


def granted(database: MySQLDatabase, name: str, *grants: str) -> str:
    """A user with these grants and no password; its url."""
    server = database.server
    user = f"'{name}'@'127.0.0.1'"
    server.execute(f"DROP USER IF EXISTS {user}", f"CREATE USER {user}", *(f"GRANT {g} TO {user}" for g in grants))
    return server.url(name)


def monitor(flavor: Flavor) -> str:
    return "REPLICATION CLIENT" if flavor == "mysql" else "BINLOG MONITOR"


def test_read_only_capture_needs_no_right_to_write(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor
) -> None:
    """S08: the least that a capture needs: SELECT, and the binary log."""
    url = granted(
        mysql_database,
        "reader",
        f"REPLICATION SLAVE, {monitor(flavor)} ON *.*",
        f"SELECT ON `{mysql_database.name}`.*",
    )
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    capture = make_capture(mysql_database, url=url, fence="read-only")
    assert not [f for f in capture.source.doctor() if f.level != "ok"]
    capture.prepare()
    mysql_database.execute("INSERT INTO t VALUES (3)")
    assert [row["id"] for row in capture.changes()] == [3]
    assert [row["id"] for row in capture.rows("t", 2)] == [1, 2, 3]
    before = mysql_database.server.binlog()
    capture.chunks.heartbeat()
    assert mysql_database.server.binlog() == before
    assert capture.source.status(capture.checkpoint.position).lag_bytes is not None


def test_marks_need_rights_on_their_table_alone(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor
) -> None:
    """S08: written marks need three rights on one table of cdcflow's."""
    name = f"marks_{mysql_database.name}"
    url = granted(
        mysql_database,
        "marker",
        f"REPLICATION SLAVE, {monitor(flavor)} ON *.*",
        f"SELECT ON `{mysql_database.name}`.*",
        f"CREATE, SELECT, INSERT, UPDATE ON `{name}`.*",
    )
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(mysql_database, url=url, marks_table=f"{name}.cdcflow_marks")
    try:
        capture.prepare()
        mysql_database.execute("INSERT INTO t VALUES (3)")
        assert [row["id"] for row in capture.changes()] == [3]
        assert not [f for f in capture.source.doctor() if f.level != "ok"]
    finally:
        mysql_database.server.execute(f"DROP DATABASE IF EXISTS `{name}`")


@pytest.mark.parametrize("missing", ["REPLICATION SLAVE", "monitor", "SELECT", "marks"])
def test_missing_right_is_named_with_its_grant(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor, missing: str
) -> None:
    """M69: a reader of the error runs one statement."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    grants = {
        "REPLICATION SLAVE": "REPLICATION SLAVE ON *.*",
        "monitor": f"{monitor(flavor)} ON *.*",
        "SELECT": f"SELECT ON `{mysql_database.name}`.*",
        "marks": "CREATE, SELECT, INSERT, UPDATE ON cdcflow.*",
    }
    wanted = {"monitor": monitor(flavor), "marks": "(CREATE|SELECT|INSERT)"}.get(missing, missing)
    if missing == "SELECT":
        grants["other"] = f"INSERT ON `{mysql_database.name}`.*"  # so that it sees the tables at all
    url = granted(mysql_database, "lacking", *(g for name, g in grants.items() if name != missing))
    capture = make_capture(mysql_database, url=url)
    findings = [f for f in capture.source.doctor() if f.level == "error"]
    assert any(f.remedy and wanted.strip("()").split("|")[0] in f.remedy for f in findings)
    with pytest.raises(ConfigurationError, match=rf"run GRANT (.*, )?{wanted}"):
        use(capture)


def test_table_without_a_key_is_locked_for_its_snapshot(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor
) -> None:
    """S08, M69: only MySQL needs the right; MariaDB's snapshots have one place in the log by themselves."""
    mysql_database.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1), (2)")
    url = granted(
        mysql_database,
        "keyless",
        f"REPLICATION SLAVE, {monitor(flavor)} ON *.*",
        f"SELECT ON `{mysql_database.name}`.*",
        "CREATE, SELECT, INSERT, UPDATE ON cdcflow.*",
    )
    capture = make_capture(mysql_database, url=url, tables_without_key="whole")
    capture.prepare()
    if flavor == "mysql":
        with pytest.raises(ConfigurationError, match="run GRANT LOCK TABLES"):
            capture.read(capture.plan("t"), kind="whole")
        mysql_database.execute(f"GRANT LOCK TABLES ON `{mysql_database.name}`.* TO keyless@'127.0.0.1'")
        capture = make_capture(mysql_database, url=url, tables_without_key="whole")
        capture.prepare()
    read = capture.read(capture.plan("t"), kind="whole")
    assert isinstance(read.run, Run)
    assert sorted(row["id"] for row in rows_of(read.run) if row["_op"] == "r") == [1, 2]


def use(capture: MySQLCapture) -> None:
    capture.prepare()
    capture.rows("t")
    capture.changes()


def test_kind_of_server_is_checked(mysql_database: MySQLDatabase, flavor: Flavor) -> None:
    """O04: MariaDB's transactions and MySQL's are not counted alike."""
    other = "mariadb" if flavor == "mysql" else "mysql"
    with pytest.raises(ConfigurationError, match=rf"source.kind is {other}(.|\n)*set source.kind: {flavor}"):
        connector(mysql_database.server, kind=other).connect("test")


def test_link_is_secure_or_refused(mysql_server: MySQLServer, flavor: Flavor, tmp_path: Path) -> None:
    """S02, M58: a server without TLS, or with a certificate of an unknown authority, gets no password."""
    with pytest.raises(ConfigurationError, match=r"no secure connection(.|\n)*source.tls"):
        connector(mysql_server, tls={"mode": "verify"}).connect("test")
    if flavor == "mysql":
        ca = tmp_path / "ca.pem"
        ca.write_bytes((mysql_server.data / "ca.pem").read_bytes())
        secured = connector(mysql_server, tls={"mode": "verify-ca", "ca": str(ca)})
        assert query(secured.connect("test"), "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]
        # Its own certificate names no host.
        with pytest.raises(ConfigurationError, match="no secure connection"):
            connector(mysql_server, tls={"mode": "verify", "ca": str(ca)}).connect("test")


def test_whole_password_goes_only_where_no_other_process_reads_it(
    mysql_server: MySQLServer, flavor: Flavor, tmp_path: Path
) -> None:
    """M57: without TLS and without a pinned key, a server that requests the whole password is refused."""
    if flavor == "mariadb":
        mysql_server.execute("CREATE OR REPLACE USER sha@'127.0.0.1' IDENTIFIED BY 'c4n4ry-s3cret'")
        connector(mysql_server, CANARY, url=mysql_server.url("sha")).connect("test")
        return
    mysql_server.execute("DROP USER IF EXISTS sha@'127.0.0.1'", f"CREATE USER sha@'127.0.0.1' IDENTIFIED BY '{CANARY}'")
    url = mysql_server.url("sha")
    with pytest.raises(ConfigurationError, match=r"not encrypted(.|\n)*server_public_key"):
        connector(mysql_server, CANARY, url=url).connect("test")
    key = tmp_path / "public_key.pem"
    key.write_bytes((mysql_server.data / "public_key.pem").read_bytes())
    connector(mysql_server, CANARY, url=url, server_public_key=str(key)).connect("test")
    # The server remembers it now, and is content with a hash that fits.
    connector(mysql_server, CANARY, url=url).connect("test")
    other = tmp_path / "other.pem"
    other.write_text("no key")
    mysql_server.execute("FLUSH PRIVILEGES")
    with pytest.raises(ConfigurationError, match="server_public_key"):
        connector(mysql_server, CANARY, url=url, server_public_key=str(other)).connect("test")


def test_password_is_in_no_error(mysql_server: MySQLServer) -> None:
    """S03: errors end up in tickets."""
    for settings in ({}, {"url": mysql_server.url("nobody")}, {"url": "mysql://root@127.0.0.1:1/"}):
        with pytest.raises(CdcflowError) as caught:
            connector(mysql_server, CANARY, **settings).connect("test")
        assert CANARY not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_rotated_password_is_picked_up(mysql_server: MySQLServer, flavor: Flavor) -> None:
    """P65: the reference is resolved again at each connection; a refused password is retried."""
    mysql_server.execute("DROP USER IF EXISTS rotated@'127.0.0.1'", "CREATE USER rotated@'127.0.0.1' IDENTIFIED BY ''")
    current = ["wrong"] if flavor == "mariadb" else [""]
    made = Connector(
        MySQL.model_validate(
            {"kind": flavor, "url": mysql_server.url("rotated"), "tables": ["a.*"], "tls": {"mode": "off"}}
        ),
        lambda: current[0],
    )
    if flavor == "mariadb":
        with pytest.raises(SourceUnavailable, match="password of rotated is refused"):
            made.connect("test")
        current[0] = ""
    made.connect("test")


def test_login_without_a_password_is_answered_with_the_missing_setting(
    mysql_server: MySQLServer, flavor: Flavor, tmp_path: Path
) -> None:
    """The commonest first error; it named a setting that was not in the file. The remedy's setting lets in."""
    # Either flavor takes this way to log in without TLS; MySQL 9 has no other that does.
    mysql_server.execute("DROP USER IF EXISTS shy@'127.0.0.1'", f"CREATE USER shy@'127.0.0.1' IDENTIFIED BY '{CANARY}'")
    url = mysql_server.url("shy")
    with pytest.raises(SourceUnavailable) as refused:
        connector(mysql_server, url=url).connect("test")
    assert str(refused.value) == (
        f"connecting to 127.0.0.1:{mysql_server.port}: shy is refused without a password, and source.password is not "
        "set\n  set source.password: ${env:NAME} or ${file:path}; for a user that has to show a certificate, set "
        "source.tls.cert"
    )
    key = tmp_path / "public_key.pem"
    pinned = {}
    if flavor == "mysql":
        key.write_bytes((mysql_server.data / "public_key.pem").read_bytes())
        pinned = {"server_public_key": str(key)}
    connector(mysql_server, CANARY, url=url, **pinned).connect("test")


@pytest.mark.parametrize("pattern", ["{}.orders", "{}.*", "*.ord*"])
def test_table_hidden_for_lack_of_a_right_is_reported_with_the_grant(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor, pattern: str
) -> None:
    """The server hides a table from users without a right to it, so the names looked wrong. The test runs the GRANT as
    printed.
    """
    name = mysql_database.name
    mysql_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    url = granted(mysql_database, "unseeing", f"REPLICATION SLAVE, {monitor(flavor)} ON *.*")
    tables = [pattern.format(name)]
    capture = make_capture(mysql_database, url=url, tables=tables, fence="read-only")
    what = {"{}.orders": f"`{name}`.`orders`", "{}.*": f"`{name}`.*", "*.ord*": "*.*"}[pattern]
    found = "there is no table {}.orders on the server" if pattern == "{}.orders" else " matches no table"
    remedy = (
        "check the names in source.tables (case counts); where they are right, the server hides the tables: "
        f"run GRANT SELECT ON {what} TO `unseeing`@`127.0.0.1`"
    )
    with pytest.raises(ConfigurationError) as refused:
        capture.prepare()
    assert str(refused.value) == f"source.tables{': ' * found.startswith('there')}{found.format(name)}\n  {remedy}"
    assert remedy in [f.remedy for f in capture.source.doctor() if f.level == "error"]
    mysql_database.execute(remedy.partition(": run ")[2])
    make_capture(mysql_database, url=url, tables=tables, fence="read-only").prepare()


def test_a_schema_without_tables_is_captured_by_who_may_read_it(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """A deployment starts the daemon before the migrations run. Later all tables may be dropped again."""
    capture = make_capture(mysql_database)
    before = capture.prepare()
    assert capture.source.tables() == []
    assert [f.level for f in capture.source.doctor() if "matches no table" in f.text] == ["warning"]
    mysql_database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    capture.close()
    again = make_capture(mysql_database)
    after = again.prepare(before)
    mysql_database.execute("INSERT INTO items VALUES (1)")
    assert [row["id"] for row in again.changes()] == [1]
    mysql_database.execute("DROP TABLE items")
    again.close()
    empty = make_capture(mysql_database)
    empty.prepare(after)
    assert empty.source.tables() == []


def test_missing_table_offers_no_grant(mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture) -> None:
    """A user who may read the whole schema would search for a right that is not missing."""
    with pytest.raises(ConfigurationError) as refused:
        make_capture(mysql_database, tables=[f"{mysql_database.name}.ordres"]).prepare()
    assert str(refused.value) == (
        f"source.tables: there is no table {mysql_database.name}.ordres on the server\n  check the name (case counts)"
    )


def test_files_of_this_machine_are_never_sent(mysql_server: MySQLServer) -> None:
    """S05: a server may answer any query with a request for a file."""
    connection = connector(mysql_server).connect("test")
    with pytest.raises((pymysql.Error, RuntimeError)):
        query(connection, "LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE mysql.user")


def test_session_is_the_same_whatever_the_server_is_configured_to(own_mysql: MySQLServer) -> None:
    """P67: a limit or a mode that an administrator set for all sessions would change what a chunk reads."""
    own_mysql.execute(
        "SET GLOBAL sql_mode = 'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH', sql_select_limit = 3, time_zone = '+05:00', "
        "max_join_size = 10, sql_safe_updates = 1"
    )
    database = own_mysql.create_database("shop")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, c char(5), at timestamp)",
        "INSERT INTO t VALUES (1, 'a', '2024-01-01 05:00:00'), (2, 'b', NULL), (3, 'c', NULL), "
        "(4, 'd', NULL), (5, '', NULL)",
    )
    capture = MySQLCapture(database)
    capture.prepare()
    rows = capture.rows("t")
    assert [row["c"] for row in rows] == ["a", "b", "c", "d", ""]
    assert rows[0]["at"].isoformat() == "2024-01-01T00:00:00+00:00"
    capture.close()


def test_server_of_another_kind_is_named(
    mysql_server: MySQLServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port of the wrong server: one hung for a minute, again and again, the other gave a letter for a reason."""
    monkeypatch.setattr("cdcflow.sources.mysql.connection.HANDSHAKE_TIMEOUT_S", 1.0)
    url = f"mysql://root@127.0.0.1:{database.server.port}/"
    with pytest.raises(ConfigurationError, match=r"a PostgreSQL server answers there(.|\n)*source.kind: postgres"):
        connector(mysql_server, url=url).connect("test")
    for mode in ("prefer", "disable"):
        url = f"postgresql://root@127.0.0.1:{mysql_server.port}/shop?sslmode={mode}"
        with pytest.raises(ConfigurationError, match=r"no PostgreSQL server(.|\n)*source.kind: mysql or mariadb"):
            PostgresConnector(url, lambda: None).connect("test")
