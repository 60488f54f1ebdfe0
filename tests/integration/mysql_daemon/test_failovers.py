"""Real failovers between servers with real replication: the primary dies, its replica is promoted, and the capture
continues there, without a gap and without a double.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.servers.proxy import TcpProxy
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.mysql import replication

from cdcflow.capture.interleave.progress import Progress
from cdcflow.sources.mysql.gtids import gtid_set
from cdcflow.sources.mysql.position import BinlogPosition

pytestmark = [pytest.mark.mysql, pytest.mark.long]

NAME = "failover_bank"
RIGHTS = (
    "CREATE USER cdc@'127.0.0.1'",
    f"GRANT SELECT ON {NAME}.* TO cdc@'127.0.0.1'",
    "GRANT CREATE, SELECT, INSERT, UPDATE ON cdcflow.* TO cdc@'127.0.0.1'",
)


class ReplicatedBank(MySQLBank):
    """A bank on a server with a replica; its fences are GTIDs, which mean the same on both."""

    def fence(self) -> str:
        mysql = self.database.server.flavor == "mysql"
        name = "gtid_executed" if mysql else "gtid_binlog_pos"
        return str(self.database.execute(f"SELECT @@GLOBAL.{name}")[0][0])

    def is_past(self, position: str, fence: str) -> bool:
        flavor = self.database.server.flavor
        return gtid_set(flavor, BinlogPosition.parse(position).gtids).covers(gtid_set(flavor, fence))

    def assert_each_transaction_once(self) -> None:
        """No transaction came twice, and no table was read again."""
        headers = pa.concat_tables(self.reader.read_transactions())
        ends = headers.filter(pc.equal(headers.column("kind"), "source")).column("position").to_pylist()
        gtids = [BinlogPosition.parse(end).gtids for end in ends]
        assert len(set(gtids)) == len(gtids), "a transaction came twice"
        read = Progress.from_json(self.reader.newest_checkpoint().progress).tables.values()
        assert {t.generation for t in read} == {1}, "a table was read again"


@pytest.fixture
def primary(own_mysql: MySQLServer) -> MySQLServer:
    rights = "REPLICATION CLIENT" if own_mysql.flavor == "mysql" else "BINLOG MONITOR"
    own_mysql.execute(*RIGHTS, f"GRANT REPLICATION SLAVE, {rights} ON *.* TO cdc@'127.0.0.1'")
    return own_mysql


@pytest.fixture
def replica(primary: MySQLServer) -> Iterator[MySQLServer]:
    with replication.replica_of(primary) as server:
        replication.follow(server, primary)
        yield server


@pytest.fixture
def address(primary: MySQLServer) -> Iterator[TcpProxy]:
    """What a DNS name or a proxy is: it leads to the primary, and later to the replica."""
    with TcpProxy(primary.port) as address:
        yield address


@pytest.fixture
def bank(primary: MySQLServer, replica: MySQLServer, address: TcpProxy, tmp_path: Path) -> ReplicatedBank:
    url = f"mysql://cdc@127.0.0.1:{address.port}/"
    return ReplicatedBank(primary.create_database(NAME), tmp_path, url=url)


def continues_at(bank: ReplicatedBank, replica: MySQLServer) -> None:
    """Write at the new primary, and wait until the log has that."""
    bank.database = MySQLDatabase(replica, NAME)
    bank.write(seed=3, transactions=100)
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence at the new primary")


def test_name_leads_to_the_promoted_replica_while_the_daemon_runs(
    bank: ReplicatedBank, primary: MySQLServer, replica: MySQLServer, address: TcpProxy
) -> None:
    """M12, M65: the primary is killed in the middle of writing. The daemon is not restarted."""
    events: list[str] = []
    with bank.capturing(on_event=lambda event, _: events.append(event)):
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfill")
        bank.write(seed=2, transactions=300)
        replication.wait_until_caught_up(replica, primary)
        primary.kill()
        replication.promote(replica)
        address.target = replica.port
        continues_at(bank, replica)
    assert events.count("capture started") >= 2
    bank.assert_each_transaction_once()
    bank.assert_log_equals_source()


def test_settings_name_the_promoted_replica(bank: ReplicatedBank, primary: MySQLServer, replica: MySQLServer) -> None:
    """The daemon was stopped, and source.url has changed at its next start."""
    daemon = bank.daemon()
    bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfill", daemon)
    daemon.kill()
    daemon.wait()
    bank.write(seed=2, transactions=300)
    replication.wait_until_caught_up(replica, primary)
    primary.kill()
    replication.promote(replica)
    bank.database = MySQLDatabase(replica, NAME)
    bank.configure(url=replica.url("cdc"))
    with bank.capturing():
        continues_at(bank, replica)
    bank.assert_each_transaction_once()
    bank.assert_log_equals_source()


def test_acknowledged_commits_survive_with_semi_synchronous_replication(
    bank: ReplicatedBank, primary: MySQLServer, replica: MySQLServer, address: TcpProxy
) -> None:
    """The replica has received each commit before its session continued; the primary is killed without a wait."""
    make_semi_synchronous(primary, replica)
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfill")
        bank.write(seed=2, transactions=300)
        written = bank.fence()
        primary.kill()
        replication.promote(replica)
        bank.database = MySQLDatabase(replica, NAME)
        assert gtid_set(replica.flavor, bank.fence()).covers(gtid_set(replica.flavor, written))
        address.target = replica.port
        continues_at(bank, replica)
    bank.assert_each_transaction_once()
    bank.assert_log_equals_source()


def make_semi_synchronous(primary: MySQLServer, replica: MySQLServer) -> None:
    begin, _ = primary.holding_statements()
    if replica.flavor == "mysql":
        replica.execute("INSTALL PLUGIN rpl_semi_sync_replica SONAME 'semisync_replica.so'")
        replica.execute("SET GLOBAL rpl_semi_sync_replica_enabled = ON")
    else:
        replica.execute("SET GLOBAL rpl_semi_sync_slave_enabled = ON")
    replication.stop(replica)
    replication.start(replica)
    primary.execute(begin)


def test_switchover_with_the_old_primary_still_there(
    bank: ReplicatedBank, primary: MySQLServer, replica: MySQLServer, address: TcpProxy
) -> None:
    """The old primary becomes the new one's replica and takes no writes; open connections to it stay open. Chunks that
    are read from one server mean nothing in the log of the other.
    """
    events: list[str] = []
    with bank.capturing(on_event=lambda event, _: events.append(event)) as capture:
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfill")
        bank.write(seed=2, transactions=100)
        primary.execute("SET GLOBAL read_only = ON")
        replication.wait_until_caught_up(replica, primary)
        replication.promote(replica)
        replication.follow_in_turn(primary, replica)
        address.target = replica.port
        bank.database = MySQLDatabase(replica, NAME)
        bank.start_writing(seed=4)
        try:
            capture.request("backfill", [f"{NAME}.entries"])
            continues_at(bank, replica)
            bank.wait_until(lambda: read_again(bank), "the table to be read again")
        finally:
            bank.stop_writing()
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence")
    bank.assert_log_equals_source()


def read_again(bank: ReplicatedBank) -> bool:
    tables = Progress.from_json(bank.reader.newest_checkpoint().progress).tables
    return {str(t): p.generation for t, p in tables.items() if p.state == "done"}.get(f"{NAME}.entries") == 2
