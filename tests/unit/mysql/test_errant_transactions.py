"""Which transactions of a promoted replica are errant, by the order in which its binary log has them."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass

import pytest
from tests.support.mysql.binlog_bytes import Log, TestTable, simple

from cdcflow.model.table import TableId
from cdcflow.sources.engine.buffers import PAD
from cdcflow.sources.mysql.dump import Packets
from cdcflow.sources.mysql.errant import Gtid, KnownTransactions, MariadbScan, MysqlScan, Scan
from cdcflow.sources.mysql.gtids import Flavor

T, OTHER = simple("t"), simple("other")
CAPTURED = frozenset((TableId("shop", "t"), TableId("shop", "u")))
SERVERS = {1: "11111111-1111-1111-1111-111111111111", 2: "22222222-2222-2222-2222-222222222222"}


@dataclass
class ReplicaLog(Log):
    """The binary log of a replica: transactions of several servers."""

    def add(self, server: int, number: int, what: TestTable | str = T, domain: int = 0) -> None:
        """A transaction with a row of a table, or with a statement."""
        self.stamp += 1
        is_statement = isinstance(what, str)
        if self.flavor == "mariadb":
            self.event(162, struct.pack("<QIB", number, domain, is_statement) + bytes(6), server_id=server)
        else:
            times = (self.stamp * 1_000_000).to_bytes(7, "little")
            counted = struct.pack("<Bqq", 2, 1, 2) + times + b"\x10" + struct.pack("<I", 90704)
            self.event(33, b"\0" + uuid.UUID(SERVERS[server]).bytes + struct.pack("<q", number) + counted)
        if isinstance(what, str):
            self.query(what)
            return
        if self.flavor == "mysql":
            self.query("BEGIN", "")
        self.insert(what, (number, "x", "y")[: len(what.columns)])
        self.commit()


def scanned(log: ReplicaLog, ours: str, step: int, times: dict[Gtid, int] | None = None) -> Scan:
    """The scan of a replica's log, which arrives in pieces of `step` bytes."""
    kind = MysqlScan if log.flavor == "mysql" else MariadbScan
    made: Scan = kind(KnownTransactions(ours, CAPTURED, times or {}))
    packets, data, left = Packets(made, flavor=log.flavor, pos=4), log.dump(), b""
    for at in range(0, len(data), step):
        left += data[at : at + step]
        _, taken = packets.take(left + bytes(PAD), len(left))
        left = left[taken:]
    return made


def errant_numbers(scan: Scan) -> list[int]:
    return sorted({number for (_, number), _ in scan.errant})


MYSQL = f"{SERVERS[1]}:1-3"


@pytest.mark.parametrize("step", [37, 1 << 20])
@pytest.mark.parametrize("what", [T, "TRUNCATE TABLE t", "DROP DATABASE shop", "ALTER TABLE shop.t ADD c int"])
@pytest.mark.parametrize(("flavor", "ours"), [("mysql", MYSQL), ("mariadb", "0-1-3")])
def test_write_to_a_replica_before_a_change_of_the_log_is_errant(
    flavor: Flavor, ours: str, what: TestTable | str, step: int
) -> None:
    """Whatever the write was, if it may concern a captured table."""
    log = ReplicaLog(flavor)
    log.add(1, 1)
    log.add(1, 2)
    log.add(2, 3, what)
    log.add(1, 3)
    log.add(2, 4)
    assert errant_numbers(scanned(log, ours, step)) == [3]


@pytest.mark.parametrize(("flavor", "ours"), [("mysql", MYSQL), ("mariadb", "0-1-3")])
def test_writes_after_the_promotion_are_not_errant(flavor: Flavor, ours: str) -> None:
    """They arrive in their order; so does what the primary had committed and the log did not get."""
    log = ReplicaLog(flavor)
    for server, number in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)):
        log.add(server, number)
    assert errant_numbers(scanned(log, ours, 1 << 20)) == []


@pytest.mark.parametrize("what", [OTHER, "CREATE USER visitor", "ANALYZE TABLE t", "FLUSH TABLES"])
@pytest.mark.parametrize(("flavor", "ours"), [("mysql", MYSQL), ("mariadb", "0-1-3")])
def test_errant_transactions_without_captured_tables_do_not_matter(
    flavor: Flavor, ours: str, what: TestTable | str
) -> None:
    """Operators create accounts on replicas, and analyze tables there."""
    log = ReplicaLog(flavor)
    log.add(1, 2)
    log.add(2, 3, what)
    log.add(1, 3)
    assert errant_numbers(scanned(log, ours, 1 << 20)) == []


def test_applier_threads_may_change_the_order_of_one_servers_transactions() -> None:
    """MySQL: the log lacks number 3, which the replica applied before number 2: they do not depend on each other."""
    log = ReplicaLog("mysql")
    for number in (1, 3, 2):
        log.add(1, number)
    assert errant_numbers(scanned(log, f"{SERVERS[1]}:1-2", 1 << 20)) == []


def test_former_primary_in_the_same_domain_is_no_errant_writer() -> None:
    """MariaDB: its numbers are below those that follow."""
    log = ReplicaLog("mariadb")
    for server, number in ((2, 1), (2, 2), (1, 3), (1, 4)):
        log.add(server, number)
    assert errant_numbers(scanned(log, "0-1-4", 1 << 20)) == []


def test_domain_that_the_log_does_not_know_is_errant_before_its_end() -> None:
    """MariaDB would send it after what the log has."""
    log = ReplicaLog("mariadb")
    log.add(1, 1)
    log.add(2, 1, domain=5)
    log.add(1, 2)
    log.add(2, 2, domain=5)
    assert errant_numbers(scanned(log, "0-1-2", 1 << 20)) == [1]


def test_gtid_must_be_found_itself() -> None:
    """MariaDB: server 1 was the primary, then 2, then 1 again: that it has number 5 does not prove number 3."""
    log = ReplicaLog("mariadb")
    for server, number in ((1, 1), (1, 2), (2, 3), (2, 4), (1, 5)):
        log.add(server, number)
    found = scanned(log, "0-1-3", 1 << 20)
    assert isinstance(found, MariadbScan)
    assert found.missing == {"0-1": 3}


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_gtid_of_another_transaction_differs_by_its_time(flavor: Flavor) -> None:
    log = ReplicaLog(flavor)
    log.add(1, 1)
    own = (SERVERS[1] if flavor == "mysql" else "0-1", 1)
    ours = f"{SERVERS[1]}:1" if flavor == "mysql" else "0-1-1"
    committed = log.stamp * 1_000_000
    assert scanned(log, ours, 1 << 20, {own: committed}).differing is None
    assert scanned(log, ours, 1 << 20, {own: committed + 1_000_000}).differing == own
