"""Records that the brokers no longer have: found at the start, by doctor, status and `log check`, each with an error
that names them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.servers.kafka import KafkaBroker
from tests.support.daemon.bank import Bank
from tests.support.polling import PATIENCE_S, wait_until
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.errors import HistoryLost, InvariantViolated
from cdcflow.log.read.reader import LogRows
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import TableId
from cdcflow.sinks.kafka import log as kafka_log
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.tier import KafkaTier, TieredReader
from cdcflow.sinks.kafka.topics import Admin, Topics
from cdcflow.testing.sinks import Writer, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
_numbers = itertools.count(1)


@pytest.fixture
def topics(broker: KafkaBroker) -> Topics:
    return Topics(broker.address, f"lost{next(_numbers)}", wait_s=10)


def delete_records(topics: Topics) -> None:
    """All that the log's topic has, as retention would."""
    with topics.reader(topics.name) as reader:
        end = reader.bounds()[1]
    admin = AdminClient({"bootstrap.servers": topics.brokers})
    for future in admin.delete_records([TopicPartition(topics.name, 0, end)]).values():
        future.result(30)


def delete_topics(topics: Topics, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": topics.brokers})
    for future in admin.delete_topics(list(names)).values():
        future.result(30)
    wait_until(lambda: not set(names) & admin.list_topics(timeout=PATIENCE_S).topics.keys(), "the topics to be gone")


def seal(topics: Topics, history: Path) -> None:
    """All that is committed, into the history."""
    with KafkaTier(topics, history).open() as opened:
        assert opened.tail is not None
        with topics.reader(topics.name) as reader:
            for directory in list(opened.sealer(reader.messages(opened.tail.begin, opened.tail.end))):
                opened.put(directory)


class FromItsBeginning(KafkaReader):
    """Reads from the first offset that exists."""

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]:
        return super().read_rows(max(from_offset, self.topic_ranges()[0].first_offset), to_offset, tables)


def told(bank: Bank, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--config", str(bank.config_path)])
    return result.output + (result.stderr or "")


def assert_found_everywhere(bank: Bank, words: str) -> None:
    assert words in told(bank, "doctor")
    assert words in told(bank, "status")
    assert (
        words
        in json.loads(CliRunner().invoke(app, ["status", "--json", "--config", str(bank.config_path)]).stdout)[
            "log_problem"
        ]
    )


@pytest.mark.long
def test_log_whose_records_have_all_expired_is_not_continued(bank: Bank) -> None:
    """L19: its rows are out of every reader's reach, and the next daemon continued after them. The printed message
    helps: all tables are read again.
    """
    topics = wiring.topics(load(bank.config_path).log.kafka)  # type: ignore[union-attr]  # it is in Kafka
    bank.catch_up_and_stop(bank.daemon())
    assert "the log is whole" in told(bank, "log", "check")
    delete_records(topics)
    bank.write(seed=3, transactions=20)
    with pytest.raises(HistoryLost, match="have removed the rows up to offset") as caught:
        bank.capture_to_its_end()
    assert "run `cdcflow run --accept-history-loss`" in (caught.value.remedy or "")
    assert_found_everywhere(bank, "the brokers have removed the rows up to offset")
    assert "have removed the rows" in told(bank, "log", "check")
    fence = bank.fence()
    with bank.capturing(accept_history_loss=True):
        bank.wait_until(lambda: bank.has_reached(fence), "all tables to be read again")
    with bank.capturing():
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "a start without the word")
    bank.assert_log_equals_source(FromItsBeginning(topics))
    assert "log_problem" not in told(bank, "status", "--json")


def test_two_deleted_topics_are_not_recreated_silently(bank: Bank) -> None:
    """L05: with the checkpoint gone too, the brokers have no evidence that a log existed. This machine does."""
    topics = wiring.topics(load(bank.config_path).log.kafka)  # type: ignore[union-attr]  # it is in Kafka
    bank.catch_up_and_stop(bank.daemon())
    delete_topics(topics, topics.name, topics.state)
    with pytest.raises(HistoryLost, match="are gone") as caught:
        bank.capture_to_its_end()
    assert "run `cdcflow run --accept-history-loss`" in (caught.value.remedy or "")
    assert_found_everywhere(bank, "are gone")
    fence = bank.fence()
    with bank.capturing(accept_history_loss=True):
        bank.wait_until(lambda: bank.has_reached(fence), "a new log")
    with bank.capturing():
        pass
    bank.assert_log_equals_source()


@pytest.mark.long
def test_recreated_log_topic_is_reported_by_every_command(bank: Bank) -> None:
    """L05, L21: its checkpoint refers to rows that no longer exist."""
    topics = wiring.topics(load(bank.config_path).log.kafka)  # type: ignore[union-attr]  # it is in Kafka
    bank.catch_up_and_stop(bank.daemon())
    delete_topics(topics, topics.name)
    admin = AdminClient({"bootstrap.servers": topics.brokers})
    for future in admin.create_topics([NewTopic(topics.name, 1, 1)]).values():
        future.result(30)
    Admin(topics, "making topics").wait_for({topics.name})
    with pytest.raises(InvariantViolated, match="one of them was recreated"):
        bank.capture_to_its_end()
    assert_found_everywhere(bank, "one of them was recreated, or lost committed records")
    assert "is missing" in told(bank, "log", "check")


def test_what_its_history_has_is_not_lost(topics: Topics, tmp_path: Path) -> None:
    """With a merge that seals, the topic's retention may be short, and everything in it may have expired."""
    history = tmp_path / "history"
    writer = Writer.of(KafkaLog.open(topics, IDENTITY))
    writer.put(orders(1), orders(2))
    writer.log.close()
    seal(topics, history)
    delete_records(topics)
    assert not KafkaReader(topics).check().is_whole
    assert TieredReader(topics, history).check().is_whole
    with pytest.raises(HistoryLost, match="up to offset 2"):
        KafkaLog.open(topics, IDENTITY)
    KafkaLog.open(topics, IDENTITY, reopened=True).close()
    again = Writer.of(KafkaLog.open(topics, IDENTITY, history=history))
    again.put(orders(3))
    again.log.close()
    assert TieredReader(topics, history).check().is_whole
    KafkaLog.open(topics, IDENTITY).close()


def test_topic_range_ends_by_age(topics: Topics) -> None:
    """A topic range whose head has expired cannot be read, and a quiet source would never fill one."""
    writer = Writer.of(KafkaLog.open(topics, IDENTITY))
    writer.put(orders(1))
    assert not writer.log.seal_due(100.0)
    assert not writer.log.seal_due(99.0 + kafka_log.RANGE_AGE_S)
    assert writer.log.seal_due(100.0 + kafka_log.RANGE_AGE_S)
    assert isinstance(writer.log, KafkaLog)
    writer.log.roll()
    assert not writer.log.seal_due(1e6), "it has no row yet"
    writer.log.close()
