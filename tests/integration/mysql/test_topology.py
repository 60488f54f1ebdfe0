"""Which other servers have the same data is seen before it matters: replicas, a replication group, a Galera cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from tests.servers import debian
from tests.servers.mysql import Flavor, MySQLServer
from tests.support.mysql import replication
from tests.support.mysql.controlled_source import MakeMySQLCapture
from tests.support.polling import wait_until

from cdcflow.capture.ports.findings import Finding
from cdcflow.demo.servers.processes import free_port
from cdcflow.errors import ConfigurationError, HistoryLost

pytestmark = pytest.mark.mysql

OFF = {"mariadb": {"log_slave_updates": "OFF"}, "mysql": {"log_replica_updates": "OFF"}}
ON = {"mariadb": {"log_slave_updates": "ON"}, "mysql": {"log_replica_updates": "ON"}}


def found(server: MySQLServer, make_capture: MakeMySQLCapture, *subjects: str) -> list[Finding]:
    """What doctor finds about these."""
    capture = make_capture(server.create_database(f"d{uuid.uuid4().hex[:8]}"))
    return [f for f in capture.source.doctor() if f.subject in subjects]


@pytest.mark.spread(1)
def test_replica_whose_log_lacks_what_it_replicates_is_no_source(
    own_mysql: MySQLServer, flavor: Flavor, make_capture: MakeMySQLCapture
) -> None:
    """MariaDB's default: a capture would run for years without one change of the primary."""
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with replication.replica_of(own_mysql, OFF[flavor]) as replica:
        replication.follow(replica, own_mysql)
        replication.wait_until_caught_up(replica, own_mysql)
        there = type(database)(replica, "shop")
        with pytest.raises(ConfigurationError, match=r"(slave|replica)_updates is OFF(.|\n)*updates = ON"):
            make_capture(there, fence="read-only").prepare()
        replica.restart(**ON[flavor])
        wait_until(lambda: replication.is_running(replica), "replication to begin again")
        capture = make_capture(there, fence="read-only")
        capture.prepare()
        database.execute("INSERT INTO t VALUES (1)")
        replication.wait_until_caught_up(replica, own_mysql)
        assert [row["id"] for row in capture.changes()] == [1]


def test_promoted_replica_without_the_log_of_its_primary_is_recognized(
    own_mysql: MySQLServer, flavor: Flavor, make_capture: MakeMySQLCapture
) -> None:
    """Its rows are right, its log is empty: the message names the setting, not a wrong server."""
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    capture.prepare()
    database.execute("INSERT INTO t VALUES (1)")
    with replication.replica_of(own_mysql, OFF[flavor]) as replica:
        replication.follow(replica, own_mysql)
        replication.wait_until_caught_up(replica, own_mysql)
        capture.close()
        replication.promote(replica)
        said = "log_slave_updates is OFF" if flavor == "mariadb" else "has purged binary log"
        with pytest.raises(HistoryLost, match=said):
            make_capture(type(database)(replica, "shop")).prepare(capture.checkpoint)


@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)
def test_lax_replicas_are_named_by_doctor(own_mysql: MySQLServer, make_capture: MakeMySQLCapture) -> None:
    """Only where there are any; the statement that doctor prints ends it."""
    assert not found(own_mysql, make_capture, "gtid_strict_mode")
    with replication.replica_of(own_mysql) as replica:
        replication.follow(replica, own_mysql)
        wait_until(lambda: replication.is_running(replica), "replication to begin")
        for server in (own_mysql, replica):
            (finding,) = found(server, make_capture, "gtid_strict_mode")
            assert finding.level == "warning"
            server.execute(*finding.sql)
            assert not found(server, make_capture, "gtid_strict_mode")


@pytest.mark.parametrize("flavor", ["mysql"], indirect=True)
def test_member_of_a_replication_group_is_recognized(own_mysql: MySQLServer, make_capture: MakeMySQLCapture) -> None:
    """A real group, of one member."""
    assert not found(own_mysql, make_capture, "group replication")
    name, place = str(uuid.uuid4()), f"127.0.0.1:{free_port()}"
    own_mysql.execute(
        "INSTALL PLUGIN group_replication SONAME 'group_replication.so'",
        f"SET GLOBAL group_replication_group_name = '{name}'",
        f"SET GLOBAL group_replication_local_address = '{place}'",
        f"SET GLOBAL group_replication_group_seeds = '{place}'",
        "SET GLOBAL group_replication_bootstrap_group = ON",
        "START GROUP_REPLICATION",
    )
    (finding,) = found(own_mysql, make_capture, "group replication")
    assert finding.level == "warning"
    assert f"a member of group {name}" in finding.text


@contextmanager
def galera_member(settings: Mapping[str, str]) -> Iterator[MySQLServer]:
    """A real cluster, of one member."""
    provider = debian.unpacked("galera-4", "stable") / "usr/lib/galera/libgalera_smm.so"
    options = f'"gmcast.listen_addr=tcp://127.0.0.1:{free_port()};gcache.size=8M"'
    cluster = {
        "wsrep_on": "ON",
        "wsrep_provider": str(provider),
        "wsrep_cluster_address": "gcomm://",
        "wsrep_cluster_name": "shop",
        "wsrep_node_address": "127.0.0.1",
        "wsrep_provider_options": options,
        "innodb_autoinc_lock_mode": "2",
    }
    with MySQLServer("mariadb", {**cluster, **settings}) as server:
        yield server


@pytest.mark.long
def test_member_of_a_galera_cluster_is_recognized(make_capture: MakeMySQLCapture) -> None:
    """What another member commits reaches its log only with log_slave_updates, and GTIDs may mean something else."""
    with galera_member({"log_slave_updates": "ON"}) as member:
        (finding,) = found(member, make_capture, "Galera")
        assert "cluster shop" in finding.text
        assert "different GTIDs" in finding.text
        capture = make_capture(member.create_database("shop"))
        capture.prepare()
    with galera_member({"log_slave_updates": "ON", "wsrep_gtid_mode": "ON"}) as member:
        (finding,) = found(member, make_capture, "Galera")
        assert "different GTIDs" not in finding.text
    with galera_member({"log_slave_updates": "OFF"}) as member:
        (finding,) = found(member, make_capture, "log_slave_updates")
        assert finding.level == "error"


@pytest.mark.long
@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)
def test_galera_member_with_own_gtids_takes_nobodys_place(
    own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """It has GTIDs of the same names, which are other transactions."""
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    capture.prepare()
    capture.close()
    with galera_member({"log_slave_updates": "ON", "server_id": "2", "gtid_domain_id": "0"}) as member:
        there = member.create_database("shop")
        there.execute("CREATE TABLE t (id int PRIMARY KEY)")
        # As if it had replicated from the other server once.
        there.execute(*(f"INSERT INTO t VALUES ({n})" for n in range(20)))
        member.execute("SET SESSION server_id = 1", *(f"INSERT INTO shop.t VALUES ({n})" for n in range(20, 40)))
        with pytest.raises(HistoryLost, match="Galera cluster without wsrep_gtid_mode"):
            make_capture(there).prepare(capture.checkpoint)
