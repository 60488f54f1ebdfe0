"""Policies with everything that takes rows from the log or reads them for it: tables of both formats by both engines, a
log in Kafka, executors."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer
from tests.support.daemon.reader_processes import assert_equal_after_all, run_backfill
from tests.support.privacy.canaries import CANARY, canaries_in
from tests.support.privacy.private_bank import ENCRYPT, POLICIES, SECRETS, PrivateBank

from cdcflow import wiring
from cdcflow.config import load

pytestmark = [pytest.mark.postgres, pytest.mark.long]
_numbers = itertools.count(1)


def cdcflow(bank: PrivateBank, *words: str) -> None:
    """Run a command in a separate process, as a user does: another Spark may run in this one."""
    command = [sys.executable, "-m", "cdcflow.cli", *words, "--config", str(bank.config_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def capture_some(bank: PrivateBank) -> None:
    with bank.capturing():
        bank.wait_until(lambda: bank.reader.exists() and bank.has_reached(""), "the backfill")
        bank.write(seed=7, transactions=60)
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence")


@pytest.mark.parametrize(
    ("engine", "table_format"),
    [("local", "delta"), ("local", "iceberg"), ("spark", "delta"), ("spark", "iceberg")],
)
def test_tables_equal_the_source_under_its_policies(bank: PrivateBank, engine: str, table_format: str) -> None:
    """Merged twice, the second time with rows that changed after their table was read, and read again under another
    policy."""
    warehouse = {"engine": engine, "format": table_format, "warehouse": str(bank.folder / "warehouse")}
    bank.other_settings["merge"] = warehouse
    bank.configure()
    wiring.capture(load(bank.config_path), backfill=(), once=True).run()
    cdcflow(bank, "merge")
    bank.other_settings["tables"] = {**POLICIES, "public.visits": {"columns": {"email": ENCRYPT, "path": "mask"}}}
    bank.configure()
    capture_some(bank)
    cdcflow(bank, "merge")
    with bank.capturing():
        cdcflow(bank, "verify", "--against", "tables")
    assert canaries_in(bank.folder) == []


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def in_kafka(
    private_server: PostgresServer, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PrivateBank]:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    database = private_server.create_database(f"in_kafka_{next(_numbers)}")
    made = PrivateBank(database, tmp_path)
    made.log_settings = {"kafka": {"brokers": broker.address, "topic": database.name, "work": str(tmp_path / "work")}}
    made.configure()
    yield made
    made.stop_writing()
    database.drop()


@pytest.mark.kafka
def test_log_in_kafka_has_no_protected_value(in_kafka: PrivateBank, broker: KafkaBroker) -> None:
    """Neither in the topics' files, nor in the folder of the daemon's own."""
    capture_some(in_kafka)
    in_kafka.assert_log_equals_source()
    assert canaries_in(in_kafka.folder) == []
    assert [p for p in broker.directory.rglob("*") if p.is_file() and CANARY.encode() in p.read_bytes()] == []


@pytest.mark.spark
def test_executors_of_spark_apply_the_policies(bank: PrivateBank) -> None:
    """They have neither the settings nor the environment of this machine, and write rows into files by themselves."""
    bank.configure(backfill={"chunk_rows_max": 400})
    run_backfill(bank, "local[2]")
    assert_equal_after_all(bank)
    assert canaries_in(bank.folder) == []
