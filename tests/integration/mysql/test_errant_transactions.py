"""A promoted replica has what its primary had, and perhaps what was written to it: that is found, not mixed in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.support.mysql import replication
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture, seen

from cdcflow.capture.ports.source import SourceHistory
from cdcflow.errors import HistoryLost
from cdcflow.sources.mysql import errant

pytestmark = pytest.mark.mysql


@pytest.fixture
def replica(own_mysql: MySQLServer) -> Iterator[MySQLServer]:
    with replication.replica_of(own_mysql) as server:
        replication.follow(server, own_mysql)
        yield server


@pytest.fixture
def shop(own_mysql: MySQLServer, replica: MySQLServer) -> MySQLDatabase:
    """Two tables with a row each."""
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE u (id int PRIMARY KEY, v int)")
    database.execute("INSERT INTO t VALUES (1, 0)", "INSERT INTO u VALUES (1, 0)")
    replication.wait_until_caught_up(replica, own_mysql)
    return database


def begun(shop: MySQLDatabase, make_capture: MakeMySQLCapture) -> MySQLCapture:
    capture = make_capture(shop, tables=["shop.t"])
    capture.prepare()
    return capture


def written_to_the_replica(replica: MySQLServer, primary: MySQLServer, *statements: str) -> MySQLDatabase:
    """These are written to the replica before its primary's next transaction."""
    replication.wait_until_caught_up(replica, primary)
    replication.stop(replica)
    there = MySQLDatabase(replica, "shop")
    there.execute(*statements)
    replication.start(replica)
    return there


def check_refused(
    capture: MySQLCapture, there: MySQLDatabase, primary: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """The primary's next transaction is captured; then the replica takes its place."""
    MySQLDatabase(primary, "shop").execute("UPDATE t SET v = 5 WHERE id = 1")
    assert [row["v"] for row in seen(capture)] == [5]
    replication.wait_until_caught_up(there.server, primary)
    capture.close()
    primary.kill()
    replication.promote(there.server)
    again = make_capture(there, tables=["shop.t"])
    with pytest.raises(
        HistoryLost, match=r"before ones that it has(.|\n)*shop\.t(.|\n)*accept-history-loss"
    ) as refused:
        again.prepare(capture.checkpoint)
    assert refused.value.runbook == "errant-transactions"
    again.prepare(capture.checkpoint, accept_history_loss=True)
    assert again.history is SourceHistory.LOST


def test_row_written_to_a_replica_is_found_when_the_replica_is_promoted(
    shop: MySQLDatabase, replica: MySQLServer, own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """MySQL would send it after the change that followed it, MariaDB never: the copy would silently differ."""
    capture = begun(shop, make_capture)
    there = written_to_the_replica(replica, own_mysql, "UPDATE t SET v = -1 WHERE id = 1")
    check_refused(capture, there, own_mysql, make_capture)


@pytest.mark.long
def test_table_emptied_at_a_replica_is_found(
    shop: MySQLDatabase, replica: MySQLServer, own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """A statement has no rows. Replication continues, since the row is written again there."""
    capture = begun(shop, make_capture)
    there = written_to_the_replica(replica, own_mysql, "TRUNCATE TABLE t", "INSERT INTO t VALUES (1, 0)")
    check_refused(capture, there, own_mysql, make_capture)


@pytest.mark.long
def test_transaction_of_a_separate_domain_is_found(
    shop: MySQLDatabase, replica: MySQLServer, own_mysql: MySQLServer, flavor: Flavor, make_capture: MakeMySQLCapture
) -> None:
    """MariaDB: domains have an order each. One that the change log does not have would arrive late. MySQL: a tag."""
    capture = begun(shop, make_capture)
    own = "SET gtid_domain_id = 7" if flavor == "mariadb" else "SET gtid_next = 'AUTOMATIC:errant'"
    there = written_to_the_replica(replica, own_mysql, own, "UPDATE t SET v = -1 WHERE id = 1")
    check_refused(capture, there, own_mysql, make_capture)


def test_other_writes_to_a_replica_do_not_matter(
    shop: MySQLDatabase, replica: MySQLServer, own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """Accounts, statistics and tables that are not captured; and everything after the change log's last transaction."""
    capture = begun(shop, make_capture)
    there = written_to_the_replica(
        replica, own_mysql, "CREATE USER visitor", "ANALYZE TABLE t", "UPDATE u SET v = -1", "CREATE DATABASE other"
    )
    shop.execute("UPDATE t SET v = 5 WHERE id = 1", "INSERT INTO t VALUES (2, 0)")
    assert [row["v"] for row in seen(capture)] == [5, 0]
    shop.execute("INSERT INTO t VALUES (3, 0)")
    replication.wait_until_caught_up(replica, own_mysql)
    capture.close()
    own_mysql.kill()
    replication.promote(replica)
    there.execute("INSERT INTO t VALUES (4, 0)")
    replica.execute("FLUSH BINARY LOGS")
    there.execute("INSERT INTO t VALUES (5, 0)")
    again = make_capture(there, tables=["shop.t"])
    again.prepare(capture.checkpoint, back=capture.back)
    assert [row["id"] for row in again.changes()] == [3, 4, 5]


@pytest.mark.long
def test_files_of_the_replica_are_read_as_far_as_needed(
    shop: MySQLDatabase, replica: MySQLServer, own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """The errant transaction is in one file, the change log's end in a later one."""
    capture = begun(shop, make_capture)
    there = written_to_the_replica(replica, own_mysql, "UPDATE t SET v = -1 WHERE id = 1", "FLUSH BINARY LOGS")
    shop.execute("INSERT INTO t VALUES (2, 0)")
    replication.wait_until_caught_up(replica, own_mysql)
    replica.execute("FLUSH BINARY LOGS")
    assert [row["id"] for row in seen(capture)] == [2]
    check_refused(capture, there, own_mysql, make_capture)


@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)
def test_another_server_with_the_same_ids_is_not_taken_for_a_replica(
    own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """MariaDB: the server_id is 1 unless it is set, so a server with a restored dump has GTIDs of the same names."""
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    capture = make_capture(database)
    capture.prepare()
    database.execute(*(f"INSERT INTO t VALUES ({n}, 0)" for n in range(3)))
    assert len(seen(capture)) == 3
    capture.close()
    with MySQLServer("mariadb") as other:
        restored = other.create_database("shop")
        restored.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
        restored.execute(*(f"INSERT INTO t VALUES ({n}, 1)" for n in range(20)))
        with pytest.raises(HistoryLost, match=r"differs from the one in the change log(.|\n)*accept-history-loss"):
            make_capture(restored).prepare(capture.checkpoint, back=capture.back)


def test_commit_times_belong_to_the_gtids_of_their_transactions(
    own_mysql: MySQLServer, flavor: Flavor, make_capture: MakeMySQLCapture
) -> None:
    """The change log has sets of GTIDs; a wrong one would refuse a good failover."""
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE u (id int PRIMARY KEY)")
    capture = make_capture(database, tables=["shop.t"])
    capture.prepare()
    database.execute("INSERT INTO t VALUES (1, 0)", "INSERT INTO t VALUES (2, 0)")
    database.execute("INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (3, 0)")
    assert len(seen(capture)) == 3
    found = errant.commit_times(flavor, capture.back)
    # MySQL: what is between the second and the third may be either's.
    assert len(found) == (1 if flavor == "mysql" else 2)
