"""How busy a MySQL or MariaDB server is, measured on real ones."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.support.polling import wait_until

from cdcflow.config import MySQL
from cdcflow.model.source_load import LoadLimits
from cdcflow.sources.mysql.load import MySQLProbe, source_probe

pytestmark = [pytest.mark.mysql, pytest.mark.long]


def probe_of(
    server: MySQLServer, measured: LoadLimits, url: str | None = None, replicas: Sequence[str] = ()
) -> MySQLProbe:
    given: dict[str, Any] = {"url": url or server.url(), "tables": ["*.*"], "tls": {"mode": "off"}}
    given |= {"backfill": {"limits": {"replicas": replicas}}}
    settings = MySQL.model_validate({"kind": server.flavor, **given})
    return source_probe(settings, lambda: None, measured, "slot")


def test_sessions_that_wait_for_a_lock_are_counted(mysql_database: MySQLDatabase) -> None:
    """A backfill must not add to a queue of sessions."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    probe = probe_of(mysql_database.server, LoadLimits(lock_waits=1))
    assert probe.load().values == {"lock_waits": 0}
    with contextlib.closing(mysql_database.connect(autocommit=False)) as holder, holder.cursor() as cursor:
        cursor.execute("SELECT * FROM t FOR UPDATE")
        waiter = threading.Thread(target=mysql_database.execute, args=("DELETE FROM t",))
        waiter.start()
        wait_until(lambda: probe.load().values == {"lock_waits": 1}, "a session to wait")
        holder.rollback()
        waiter.join()
    wait_until(lambda: probe.load().values == {"lock_waits": 0}, "no session to wait")
    probe.close()


def test_history_list_grows_while_a_snapshot_needs_old_rows(mysql_database: MySQLDatabase) -> None:
    """Old row versions slow down all sessions, and a long snapshot keeps them."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 0)")
    probe = probe_of(mysql_database.server, LoadLimits(history_list_length=100))

    def length() -> float:
        return probe.load().values["history_list_length"]

    before = length()
    with contextlib.closing(mysql_database.connect(autocommit=False)) as reader, reader.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT * FROM t")
        mysql_database.execute(*(f"UPDATE t SET n = {number} WHERE id = 1" for number in range(300)))
        wait_until(lambda: length() > before + 100, "the history list to grow")

    def length_after_a_write() -> float:
        mysql_database.execute("UPDATE t SET n = n + 1 WHERE id = 1")  # an idle MySQL does not truncate the list
        return length()

    wait_until(lambda: length_after_a_write() < before + 100, "the history list to shrink")
    probe.close()


def test_missing_right_is_named_and_its_grant_is_enough(mysql_database: MySQLDatabase) -> None:
    """The remedy is followed to the letter: until then nothing is read, because unknown is not within a limit."""
    server = mysql_database.server
    server.execute("CREATE USER plain@'%'")
    try:
        url = server.url().replace("root@", "plain@")
        probe = probe_of(server, LoadLimits(lock_waits=1), url)
        why = probe.load().unknown["lock_waits"]
        assert why.startswith("run GRANT PROCESS ON *.* TO `plain`@`%`")
        server.execute(why.removeprefix("run "))
        again = probe_of(server, LoadLimits(lock_waits=1), url)
        assert "lock_waits" in again.load().values
        probe.close()
        again.close()
    finally:
        server.execute("DROP USER plain@'%'")


def test_commit_of_a_probe_meets_no_mark_of_the_capture(mysql_database: MySQLDatabase) -> None:
    """It is a separate row, so that neither waits for the other's lock."""
    database = mysql_database
    database.execute(
        "CREATE TABLE marks (slot VARCHAR(64) NOT NULL PRIMARY KEY, token VARCHAR(255) NOT NULL, "
        "at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))",
        "INSERT INTO marks (slot, token) VALUES ('slot', '1/1/low')",
    )
    settings = MySQL(
        kind=database.server.flavor, url=database.server.url(), tables=("*.*",), marks_table=f"{database.name}.marks"
    )
    probe = source_probe(
        settings.model_copy(update={"tls": settings.tls.model_copy(update={"mode": "off"})}),
        lambda: None,
        LoadLimits(commit_latency_ratio=1.1),
        "slot",
    )
    with contextlib.closing(database.connect(autocommit=False)) as holder, holder.cursor() as cursor:
        cursor.execute("SELECT * FROM marks WHERE slot = 'slot' FOR UPDATE")
        assert probe.commit() > 0
        holder.rollback()
    assert database.execute("SELECT slot, token FROM marks ORDER BY slot")[0] == ("slot", "1/1/low")
    probe.close()


@pytest.fixture
def primary(flavor: Flavor) -> Iterator[MySQLServer]:
    settings = {} if flavor == "mariadb" else {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}
    with MySQLServer(flavor, settings) as server:
        yield server


@pytest.fixture
def replica(primary: MySQLServer, flavor: Flavor) -> Iterator[MySQLServer]:
    """A replica that executes everything three seconds later."""
    settings = {} if flavor == "mariadb" else {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}
    where = f"HOST='127.0.0.1', {{0}}_PORT={primary.port}, {{0}}_USER='replica', {{0}}_DELAY=3"
    with MySQLServer(flavor, {"server_id": "2", **settings}) as server:
        if flavor == "mysql":
            primary.execute(
                "CREATE USER replica@'127.0.0.1' IDENTIFIED BY 'x'", "GRANT ALL ON *.* TO replica@'127.0.0.1'"
            )
            of = "SOURCE_" + where.format("SOURCE")
            more = "SOURCE_PASSWORD='x', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1"
            server.execute(f"CHANGE REPLICATION SOURCE TO {of}, {more}", "START REPLICA")
        else:
            primary.execute("CREATE USER replica@'127.0.0.1'", "GRANT ALL ON *.* TO replica@'127.0.0.1'")
            of = "MASTER_" + where.format("MASTER")
            server.execute(f"CHANGE MASTER TO {of}, MASTER_USE_GTID=slave_pos", "START SLAVE")
        yield server


def test_replica_that_executes_later_lags_and_one_that_stopped_is_unknown(
    primary: MySQLServer, replica: MySQLServer, flavor: Flavor
) -> None:
    """A replica without a running thread reports no lag, or 0, however old its rows are."""
    probe = probe_of(primary, LoadLimits(replica_lag=10.0), replicas=[replica.url()])
    database = primary.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    numbers = iter(range(10_000))

    def lag() -> float:
        database.execute(f"INSERT INTO t VALUES ({next(numbers)})")
        return probe.load().values.get("replica_lag", -1.0)

    wait_until(lambda: lag() >= 2, "the replica to lag by its delay")
    replica.execute("STOP REPLICA SQL_THREAD" if flavor == "mysql" else "STOP SLAVE SQL_THREAD")
    assert "does not replicate" in probe.load().unknown["replica_lag"]
    replica.execute("START REPLICA SQL_THREAD" if flavor == "mysql" else "START SLAVE SQL_THREAD")
    replica.execute("STOP REPLICA IO_THREAD" if flavor == "mysql" else "STOP SLAVE IO_THREAD")
    assert "does not replicate" in probe.load().unknown["replica_lag"]
    probe.close()
    nowhere = probe_of(primary, LoadLimits(replica_lag=10.0), replicas=[primary.url()])
    assert "is no replica" in nowhere.load().unknown["replica_lag"]
    nowhere.close()
