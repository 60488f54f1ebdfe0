"""A real failover: the primary dies, its standby is promoted, and the capture continues there with the slot it kept."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.servers.proxy import TcpProxy
from tests.support.daemon.bank import Bank

from cdcflow.capture.interleave.progress import Progress

pytestmark = [pytest.mark.postgres, pytest.mark.long]

NAME = "failover_bank"


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    """The latest that is installed: 17 and later carry slots over."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """Follows `primary`, and keeps its failover slots; the primary sends nothing that it does not have yet."""
    address = f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"
    follows = {
        "primary_conninfo": address,
        "primary_slot_name": "standby",
        "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
        "wal_receiver_status_interval": "1s",
    }
    server = PostgresServer(settings=follows)
    primary.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    server._user.own(server.directory)
    program, *options = server.bin_directory / "pg_basebackup", "-X", "stream", "-c", "fast"
    subprocess.run(
        [program, "-d", address, "-D", server.data, *options],
        check=True,
        capture_output=True,
        cwd="/",
        **server._user.process(),
    )
    (server.data / "standby.signal").touch()
    with server:
        primary.reload(synchronized_standby_slots="standby")
        yield server


def is_synchronised(standby: PostgresServer) -> bool:
    """The standby has its own copy of the capture's slot: one that is no longer temporary."""
    return standby.execute("SELECT count(*) FROM pg_replication_slots WHERE failover AND synced AND NOT temporary") == [
        (1,)
    ]


def test_capture_continues_at_the_promoted_standby(
    primary: PostgresServer, standby: PostgresServer, tmp_path: Path
) -> None:
    """P44: killed in the middle of writing. The new primary has everything that the log has, once each, and the log has
    everything that the new primary has. No operator has to accept a loss of history.
    """
    with TcpProxy(primary.port) as address:
        bank = Bank(primary.create_database(NAME), tmp_path)
        bank.configure(url=f"postgresql://postgres@127.0.0.1:{address.port}/{NAME}", failover=True)
        events: list[str] = []
        with bank.capturing(on_event=lambda event, _: events.append(event)):
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the backfill")
            bank.write(seed=1, transactions=50)
            bank.wait_until(lambda: is_synchronised(standby), "the slot on the standby")
            bank.write(seed=2, transactions=200)
            primary.kill()
            standby.execute("SELECT pg_promote()")
            bank.database = Database(standby, NAME)
            address.target = standby.port
            bank.write(seed=3, transactions=100)
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence at the new primary")
        assert events.count("capture started") >= 2
        bank.assert_log_equals_source()
        headers = pa.concat_tables(bank.reader.read_transactions())
        ends = headers.filter(pc.equal(headers.column("kind"), "source")).column("position").to_pylist()
        assert len(set(ends)) == len(ends), "a transaction came twice"
        read = Progress.from_json(bank.reader.newest_checkpoint().progress).tables.values()
        assert {t.generation for t in read} == {1}, "a table was read again"
