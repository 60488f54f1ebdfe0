"""Alerts about leases, peers of a log, budgets and limits: real daemons fire them, and their ends.

`make alerts` plays the rules against series; these tests show that daemons have such series.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.ops.prometheus import Prometheus
from tests.servers.journal_peers import JournalPeers
from tests.servers.objects import ObjectServer
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank
from tests.support.daemon.governed import closed_hours
from tests.support.daemon.lease_takeovers import Member, Pair
from tests.support.daemon.running_shop import DaemonFolder
from tests.support.polling import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.long]

BUDGET = 64 << 20


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def bank(own_postgres: PostgresServer, tmp_path: Path) -> Iterator[Bank]:
    made = Bank(own_postgres.create_database("bank"), tmp_path)
    yield made
    made.stop_writing()


def test_alerts_of_a_lease(bank: Bank, own_postgres: PostgresServer, tmp_path: Path) -> None:
    """Without a standby the next failure is an outage; without an active daemon it has begun."""
    addresses = free_address(), free_address()
    first, second = ({"service": {"listen": address}} for address in addresses)
    with (
        Pair(bank, {"at": "source", "name": "shop"}, changed=second, changed_first=first) as pair,
        Prometheus(tmp_path / "prometheus", *addresses) as watching,
    ):
        standby = pair.other(pair.active())
        watching.until("CdcflowNoStandby", fires=False)
        standby.end()
        watching.until("CdcflowNoStandby", fires=True)
        standby.start()
        watching.until("CdcflowNoStandby", fires=False)
        own_postgres.stop()
        watching.until("CdcflowNoActiveDaemon", fires=True)
        own_postgres.start()
        watching.until("CdcflowNoActiveDaemon", fires=False)


def test_alerts_of_peers(bank: Bank, object_server: ObjectServer, tmp_path: Path) -> None:
    """One of three may fail for a while; without two nothing is acknowledged."""
    objects = object_server.objects("peers", "shop").model_dump(mode="json")
    with JournalPeers(tmp_path) as peers:
        bank.log_settings |= {
            "objects": {name: value for name, value in objects.items() if value is not None},
            "replicate": {"quorum": peers.addresses, "timeout": "5s"},
        }
        address = free_address()
        bank.other_settings = {**bank.other_settings, "service": {"listen": address}}
        bank.configure()
        daemon = Member(bank.config_path, bank.folder / "daemon.out")
        daemon.start()
        try:
            wait_until(lambda: bank.has_reached(""), "the first backfill", more=daemon.text)
            with Prometheus(tmp_path / "prometheus", address) as watching:
                _lose_and_regain_peers(bank, peers, watching)
        finally:
            daemon.end()


def _lose_and_regain_peers(bank: Bank, peers: JournalPeers, watching: Prometheus) -> None:
    watching.until("CdcflowHalted", fires=False)
    bank.start_writing(seed=1)
    peers[0].kill()
    watching.until("CdcflowJournalPeerAway", fires=True)
    assert "CdcflowQuorumLost" not in watching.alerts
    peers[1].kill()
    watching.until("CdcflowQuorumLost", fires=True)
    peers[0].start()
    peers[1].start()
    watching.until("CdcflowQuorumLost", fires=False)
    watching.until("CdcflowJournalPeerAway", fires=False)


def _kill_during_repair(shop: DaemonFolder) -> None:
    """The repair, which waits for the allowed hours, ends with a daemon that is killed; the next one begins another."""

    def repairs() -> list[str]:
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        return [c.decode() for c in commands if b"repair" in c and str(shop.file).encode() in c]

    wait_until(repairs, "a repair")
    shop.kill()
    wait_until(lambda: not repairs(), "the repair to end")
    shop.start_again()
    wait_until(repairs, "another repair")


def test_alerts_of_a_budget_and_of_limits(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """The budget is nearly used, then released: tables are unverified until the source may be read again. A limit that
    cannot be measured is a backfill that waits."""
    database = own_postgres.create_database("shop")
    database.execute("CREATE ROLE cdc LOGIN REPLICATION; GRANT CREATE ON DATABASE shop TO cdc")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); ALTER TABLE orders OWNER TO cdc")
    database.execute("INSERT INTO orders SELECT generate_series(1, 1000)")
    address = free_address()
    budget = {"log_budget": BUDGET, "log_budget_then": "release"}
    source = {"kind": "postgres", "url": database.url_as("cdc"), **budget}
    shop = DaemonFolder(tmp_path, source, "public.orders")
    shop.rest["service"] = {"listen": address}
    shop.write()
    write = "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20)) FROM generate_series(1, {})"
    try:
        shop.start()
        with Prometheus(tmp_path / "prometheus", address) as watching:
            watching.until("CdcflowLogBudget", fires=False)
            shop.write(backfill={"hours": closed_hours(datetime.now(UTC))})
            shop.ask("reload")
            shop.ask("pause-capture")
            database.execute(write.format(56))
            watching.until("CdcflowLogBudget", fires=True)
            database.execute(write.format(16))
            shop.ask("resume-capture")
            watching.until("CdcflowTablesInDoubt", fires=True)
            _kill_during_repair(shop)
            shop.write(backfill={"limits": {"cpu_used": 0.9}})
            shop.ask("reload")
            watching.until("CdcflowReadingUnmeasured", fires=True)
            shop.write(backfill={})
            shop.ask("reload")
            watching.until("CdcflowReadingUnmeasured", fires=False)
            watching.until("CdcflowTablesInDoubt", fires=False)
            watching.until("CdcflowLogBudget", fires=False)
    finally:
        shop.kill()
