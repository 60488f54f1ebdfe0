"""A backfill by the executors of a standalone cluster: two workers of one core while a writer runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.servers.postgres import PostgresServer
from tests.servers.spark import SparkCluster
from tests.support.daemon.bank import Bank

import cdcflow.cli
from cdcflow.log.read.reader import list_segments

pytestmark = [pytest.mark.long, pytest.mark.postgres]

PASSWORD = "a-password-that-is-nowhere"  # noqa: S105  the server accepts every client; the test searches for it below


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    with PostgresServer() as server:
        database = server.create_database("bank")
        (tmp_path / "bank").mkdir()
        made = Bank(database, tmp_path / "bank")
        with made.session() as session:
            more = "INSERT INTO accounts SELECT i, 'owner', i, NULL, now() FROM generate_series(20001, 80000) i"
            session.execute(more)
        yield made
        made.stop_writing()


def backfill(bank: Bank, master: str, events: Path) -> subprocess.CompletedProcess[str]:
    """`cdcflow backfill --on` as a user runs it, with an event log."""
    written = yaml.safe_load(bank.config_path.read_text())
    written["source"]["backfill"] = {"chunk_time_busy_ms": 1000}
    written["source"]["password"] = "${env:BANK_PASSWORD}"  # noqa: S105  a reference
    source = str(Path(cdcflow.cli.__file__).parents[2])
    written["merge"] = {
        "warehouse": str(bank.folder / "warehouse"),
        "spark": {
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": source,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        },
    }
    bank.config_path.write_text(yaml.safe_dump(written))
    command = [sys.executable, "-m", "cdcflow.cli", "backfill", "--json", "--on", master]
    return subprocess.run(
        [*command, "--config", str(bank.config_path)],
        env={**os.environ, "BANK_PASSWORD": PASSWORD},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("sees", [True, False], ids=["executors that see the log", "executors that do not"])
def test_cluster_reads_a_backfill_while_the_daemon_writes(bank: Bank, tmp_path: Path, *, sees: bool) -> None:
    """W26, S03: the log is the source, most rows came in files from both workers, and no secret is in what Spark writes
    down or shows in process lists."""
    events = tmp_path / "events"
    events.mkdir()
    bank.log.mkdir()
    with SparkCluster(hidden=[events] if sees else [events, bank.log]) as up:
        bank.start_writing(seed=7)
        done = backfill(bank, up.url, events)
        assert done.returncode == 0, done.stderr[-4000:]
        assert {fields["state"] for fields in json.loads(done.stdout).values()} == {"done"}
        for number in range(2):
            assert list((up.directory / f"worker-{number}").glob("app-*/*/stderr")), "a worker had nothing to do"
        for path in [*events.rglob("*"), *up.directory.rglob("std*"), *up.directory.glob("*.log")]:
            assert not path.is_file() or PASSWORD not in path.read_text(errors="replace"), path
    assert PASSWORD not in done.stdout + done.stderr
    files = [f for s in list_segments(bank.log) for f in s.files if set(f.ops or ()) == {"r"}]
    assert sum(f.rows for f in files) > 30_000, "most rows did not come by reference"
    bank.stop_writing()
    os.environ["BANK_PASSWORD"] = PASSWORD
    try:
        bank.catch_up_and_stop(bank.daemon())
        bank.assert_log_equals_source()
    finally:
        del os.environ["BANK_PASSWORD"]
