"""How busy a PostgreSQL server is, measured on real ones."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.polling import wait_until

from cdcflow.config import Config, Postgres
from cdcflow.model.source_load import LoadLimits
from cdcflow.sources.engine.load import SqlProbe
from cdcflow.sources.postgres.connection import Connection
from cdcflow.sources.postgres.load import source_probe
from cdcflow.wiring.source_load import reading_findings

pytestmark = [pytest.mark.postgres, pytest.mark.long]

LIMITS = LoadLimits(replica_lag=10.0, lock_waits=1, cpu_used=0.9)


def probe_of(url: str, limits: LoadLimits = LIMITS) -> SqlProbe[Connection]:
    return source_probe(Postgres(kind="postgres", url=url), lambda: None, limits)


def test_sessions_that_wait_for_a_lock_are_counted(database: Database) -> None:
    """A backfill must not add to a queue of sessions; one session that waits for two locks is one."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    probe = probe_of(database.url, LoadLimits(lock_waits=1))
    assert probe.load().values == {"lock_waits": 0}
    with database.connect() as holder:
        holder.execute("BEGIN; LOCK TABLE t")
        waiter = threading.Thread(target=database.execute, args=("DELETE FROM t",))
        waiter.start()
        wait_until(lambda: probe.load().values == {"lock_waits": 1}, "a session to wait")
        holder.execute("ROLLBACK")
        waiter.join()
    assert probe.load().values == {"lock_waits": 0}
    probe.close()


def test_hidden_measures_name_the_grants_that_show_them(database: Database, tmp_path: Path) -> None:
    """`cdcflow doctor` prints the remedy, which is followed to the letter: until then nothing is read, because unknown
    is not within a limit."""
    database.execute('CREATE ROLE "the Capturer" LOGIN REPLICATION')
    try:
        limits = {"cpu_used": 0.9, "lock_waits": 1_000}
        source = {"kind": "postgres", "url": database.url_as("the%20Capturer"), "backfill": {"limits": limits}}
        config = Config.model_validate({"source": source, "log": {"path": str(tmp_path / "log")}})
        cpu, waits = sorted(reading_findings(config), key=lambda finding: finding.subject)
        assert (cpu.level, waits.level) == ("error", "ok")
        assert cpu.remedy is not None
        grants = re.findall(r"GRANT [^;]+", cpu.remedy)
        assert len(grants) == 2
        database.execute("; ".join(grants))
        assert [finding.level for finding in reading_findings(config)] == ["ok", "ok"]
    finally:
        database.execute('DROP OWNED BY "the Capturer"; DROP ROLE "the Capturer"')


def test_commit_of_a_probe_waits_as_one_of_an_application_does(own_postgres: PostgresServer) -> None:
    """Where commits wait for a standby, those of applications do, so that a limit on commits must see it."""
    database = own_postgres.create_database("shop")
    probe = probe_of(database.url, LoadLimits(commit_latency_ratio=1.1))
    assert probe.commit() > 0
    took: list[float] = []
    with own_postgres.holding_commits():
        waiting = threading.Thread(target=lambda: took.append(probe.commit()))
        waiting.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_until(lambda: database.execute(waits) == [(1,)], "the probe's commit to wait")
        assert not took
    waiting.join()
    assert len(took) == 1
    probe.close()


@pytest.fixture
def standby(own_postgres: PostgresServer) -> Iterator[PostgresServer]:
    address = f"host=127.0.0.1 port={own_postgres.port} user=postgres dbname=postgres"
    server = PostgresServer(settings={"primary_conninfo": address, "wal_receiver_status_interval": "1s"})
    server._user.own(server.directory)
    program = own_postgres.bin_directory / "pg_basebackup"
    subprocess.run(
        [program, "-d", address, "-D", server.data, "-X", "stream", "-c", "fast"],
        check=True,
        capture_output=True,
        cwd="/",
        **server._user.process(),
    )
    (server.data / "standby.signal").touch()
    with server:
        yield server


def test_standby_that_replays_nothing_lags_more_and_more(own_postgres: PostgresServer, standby: PostgresServer) -> None:
    """The server's own `replay_lag` does not grow then, and a backfill would continue at full speed."""
    own_postgres.execute("CREATE TABLE t (id int)")
    probe = probe_of(own_postgres.url(), LoadLimits(replica_lag=10.0))

    def lag(written: int) -> float:
        own_postgres.execute(f"INSERT INTO t VALUES ({written})")
        return probe.load().values["replica_lag"]

    wait_until(lambda: own_postgres.execute("SELECT count(*) FROM pg_stat_replication") == [(1,)], "the standby")
    wait_until(lambda: lag(1) < 0.5, "a standby that replays to lag by little")
    standby.execute("SELECT pg_wal_replay_pause()")
    wait_until(lambda: lag(2) > 2, "a standby that was paused to lag by more than two seconds")
    standby.execute("SELECT pg_wal_replay_resume()")
    wait_until(lambda: lag(3) < 0.5, "the standby to catch up")

    own_postgres.execute("CREATE ROLE capturer LOGIN REPLICATION")
    other = probe_of(own_postgres.url().replace("postgres@", "capturer@"), LoadLimits(replica_lag=10.0))
    assert "GRANT pg_monitor" in other.load().unknown["replica_lag"]
    own_postgres.execute("GRANT pg_monitor TO capturer")
    assert "replica_lag" in other.load().values
    other.close()
    probe.close()
