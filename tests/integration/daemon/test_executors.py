"""Separate processes read a backfill's chunks while the tables are written to, and die at every step."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from tests.support.daemon.bank import Bank
from tests.support.daemon.reader_processes import (
    WITHIN_S,
    assert_equal_after_all,
    read_while_one_dies,
    reading,
    rows_in_files,
    run_backfill,
)

from cdcflow import wiring
from cdcflow.cli.backfill import backfill
from cdcflow.config import Config, load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError, SourceUnavailable

POINTS = [
    pytest.param("before:read", marks=pytest.mark.long),
    pytest.param("after:read", marks=pytest.mark.long),
    "before:write",
    pytest.param("after:write", marks=pytest.mark.long),
    "within:file",
]
"""In the default run the steps at which the rows have their offsets, and exist only in the process that dies; at the
last one part of a file was received from a process that does not see the log's folder.
"""


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.spread(2)
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_at_a_step_loses_and_doubles_nothing(bank: Bank, point: str) -> None:
    """W26, L15: with the rows unread, in its memory, with their offsets assigned, and in a file that no journal
    names.
    """
    # Even under heavy writes: chunks of a table that is written to are kept small, and read by the capture itself.
    bank.configure(backfill={"chunk_time_busy_ms": 1000, "chunk_rows_max": 4000})
    with bank.session() as session:
        session.execute("INSERT INTO accounts SELECT i, 'owner', i, NULL, now() FROM generate_series(20001, 44000) i")
    bank.start_writing(seed=len(point))
    read_while_one_dies(bank, point, away=point == "within:file")
    assert_equal_after_all(bank)


@pytest.mark.postgres
def test_capture_reads_by_itself_where_executors_are_gone_permanently(bank: Bank) -> None:
    """Spark aborts a job whose tasks fail again and again; the capture then reads the tables itself."""
    with reading(bank, 2) as (processes, _):
        processes.fail(SourceUnavailable("their tasks end without an answer"))
        capture = wiring.capture(load(bank.config_path), backfill=(), once=True, readers=processes)
        patience = threading.Timer(WITHIN_S, capture.stop)
        patience.start()
        capture.run()
        patience.cancel()
    assert bank.has_reached("")
    bank.assert_log_equals_source()


@pytest.mark.postgres
def test_a_daemon_that_runs_is_not_disturbed(bank: Bank) -> None:
    """One log cannot have two writers; the remedy is one that works."""
    daemon = subprocess.Popen([sys.executable, "-m", "cdcflow.cli", "run", "--config", str(bank.config_path)])
    bank.wait_until(lambda: ask(bank.log, {"op": "status"}) is not None, "the daemon to have begun", daemon)
    with pytest.raises(ConfigurationError, match="a daemon writes this log") as refused:
        backfill(["public.accounts"], config=bank.config_path, on="local[2]")
    assert "cdcflow ctl stop" in (refused.value.remedy or "")
    bank.catch_up_and_stop(daemon)


@pytest.mark.long
@pytest.mark.postgres
def test_local_executors_of_spark_read_a_backfill(bank: Bank) -> None:
    """`cdcflow backfill --on local[2]` as a user runs it, while a writer writes; the tables are read into files."""
    bank.configure(backfill={"chunk_time_busy_ms": 1000})
    bank.start_writing(seed=5)
    run_backfill(bank, "local[2]")
    read = rows_in_files(bank)
    assert read >= 2000, "the rows did not go by reference"
    assert_equal_after_all(bank)


@pytest.mark.postgres
def test_a_log_in_kafka_is_refused_with_a_remedy(bank: Bank) -> None:
    """It has no files that an executor could write."""
    source = {"kind": "postgres", "url": bank.database.url}
    kafka = {"brokers": "127.0.0.1:1", "topic": "t", "work": str(bank.folder / "work")}
    settings = Config.model_validate({"source": source, "log": {"kafka": kafka}})
    with (
        pytest.raises(ConfigurationError, match="a log in Kafka has none") as refused,
        wiring.readers(settings, "local"),
    ):
        pass
    assert "without --on" in (refused.value.remedy or "")


@pytest.mark.long
@pytest.mark.postgres
def test_daemon_has_local_executors_read_and_continues_without_them(bank: Bank) -> None:
    """`cdcflow run --on local[2]`: its first backfill, and one that is requested while it runs; then without."""
    bank.configure(backfill={"chunk_time_busy_ms": 1000})
    bank.start_writing(seed=7)
    command = [sys.executable, "-m", "cdcflow.cli", "run", "--on", "local[2]", "--config", str(bank.config_path)]
    daemon = subprocess.Popen(command)
    bank.wait_until(lambda: bank.has_reached(""), "the first backfill", daemon)
    bank.wait_until(lambda: rows_in_files(bank) >= 2000, "rows that went by reference", daemon)
    first = rows_in_files(bank)
    backfill(["public.accounts"], config=bank.config_path)
    bank.wait_until(lambda: rows_in_files(bank) > first, "more of them", daemon)
    bank.catch_up_and_stop(daemon)
    assert_equal_after_all(bank)
