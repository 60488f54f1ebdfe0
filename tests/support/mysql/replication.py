"""Pairs of servers with real replication: one follows the other, and is promoted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pymysql
from tests.servers.mysql import MySQLServer
from tests.support.polling import PATIENCE_S, wait_until

USER = "replica"
PASSWORD = "x"  # noqa: S105  a private server's


def replica_of(primary: MySQLServer, settings: Mapping[str, str] | None = None, *, server_id: int = 2) -> MySQLServer:
    """A server that will follow this one; not started yet."""
    always = {"server_id": str(server_id)} | ({"log_slave_updates": "ON"} if primary.flavor == "mariadb" else {})
    return MySQLServer(primary.flavor, {**always, **(settings or {})})


def follow(replica: MySQLServer, primary: MySQLServer) -> None:
    """Have a server replicate everything from another, by GTIDs."""
    user = f"{USER}@'127.0.0.1'"
    primary.execute(f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{PASSWORD}'", f"GRANT ALL ON *.* TO {user}")
    where = f"HOST='127.0.0.1', {{0}}PORT={primary.port}, {{0}}USER='{USER}', {{0}}PASSWORD='{PASSWORD}'"
    if replica.flavor == "mysql":
        there = "SOURCE_" + where.format("SOURCE_")
        replica.execute(f"CHANGE REPLICATION SOURCE TO {there}, SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1")
    else:
        replica.execute(f"CHANGE MASTER TO MASTER_{where.format('MASTER_')}, MASTER_USE_GTID=slave_pos")
    start(replica)


def start(replica: MySQLServer) -> None:
    replica.execute(f"START {_word(replica)}")


def stop(replica: MySQLServer) -> None:
    replica.execute(f"STOP {_word(replica)}")


def promote(replica: MySQLServer) -> None:
    """Have a replica apply what it has received, follow no server, and take writes."""
    replica.execute(f"STOP {_word(replica)} IO_THREAD", f"START {_word(replica)} SQL_THREAD")
    wait_until(lambda: _has_applied(replica), "the replica to apply what it received")
    replica.execute(f"STOP {_word(replica)}", f"RESET {_word(replica)} ALL")
    with contextlib.suppress(pymysql.Error):  # MariaDB before 12 has no such variable
        replica.execute("SET GLOBAL super_read_only = OFF")
    replica.execute("SET GLOBAL read_only = OFF")


def wait_until_caught_up(replica: MySQLServer, primary: MySQLServer) -> None:
    """Wait until a replica has everything that its primary has now."""
    if replica.flavor == "mysql":
        (have,) = primary.execute("SELECT @@GLOBAL.gtid_executed")[0]
        asked = f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{have}', {PATIENCE_S:.0f})"
    else:
        (have,) = primary.execute("SELECT @@GLOBAL.gtid_binlog_pos")[0]
        asked = f"SELECT MASTER_GTID_WAIT('{have}', {PATIENCE_S:.0f})"
    (outcome,) = replica.execute(asked)[0]
    assert outcome == 0, f"the replica did not reach {have}: {replica.execute(f'SHOW {_word(replica)} STATUS')}"


def _has_applied(replica: MySQLServer) -> bool:
    """Whether the applier waits for more. Its state is the same in both flavors, but for one word."""
    states = [str(row[6]) for row in replica.execute("SHOW FULL PROCESSLIST")]
    return any("has read all relay log" in state for state in states)


def _word(server: MySQLServer) -> str:
    return "REPLICA" if server.flavor == "mysql" else "SLAVE"


def follow_in_turn(old_primary: MySQLServer, new: MySQLServer) -> None:
    """Have the old primary replicate what its former replica writes from now on."""
    if new.flavor == "mariadb":
        (reached,) = old_primary.execute("SELECT @@GLOBAL.gtid_binlog_pos")[0]
        old_primary.execute(f"SET GLOBAL gtid_slave_pos = '{reached}'")
    follow(old_primary, new)


def is_running(replica: MySQLServer) -> bool:
    """Whether a replica is connected to its primary."""
    states = [str(row[6]) for row in replica.execute("SHOW FULL PROCESSLIST")]
    return any(state.startswith("Waiting for") and "to send event" in state for state in states)
