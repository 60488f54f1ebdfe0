"""A broker and a PostgreSQL server for the daemon's tests on a log in Kafka, and a bank for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"wal_sender_timeout": "10s"}) as server:
        yield server


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}) as running:
        yield running


@pytest.fixture
def bank(kafka_server: PostgresServer, broker: KafkaBroker, tmp_path: Path) -> Iterator[Bank]:
    name = f"bank_{next(_numbers)}"
    database = kafka_server.create_database(name)
    log = {"kafka": {"brokers": broker.address, "topic": name, "message_bytes": "20kB"}}
    made = Bank(database, tmp_path, log=log)
    yield made
    made.stop_writing()
    database.drop()
