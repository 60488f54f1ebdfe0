"""The log in Kafka passes the public suite for sinks, on a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.servers.kafka import KafkaBroker

from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OFFSET, TableId
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.topics import Topics
from cdcflow.testing.sinks import OpenedLog, Place, Row, SinkContract

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running


class KafkaPlace:
    """A topic. `topic_ranges`: a new one begins at each poll, so that the promises are checked across its bounds."""

    def __init__(self, topics: Topics, *, topic_ranges: bool) -> None:
        self.topics = topics
        self._topic_ranges = topic_ranges
        self.opened: list[KafkaLog] = []

    def open(self) -> KafkaLog:
        log = KafkaLog.open(self.topics, IDENTITY)
        self.opened.append(log)
        return log

    def crash(self, log: OpenedLog) -> None:
        """Nothing is left to do: the next process that opens it fences it."""

    def rows(self) -> list[tuple[TableId, Row]]:
        if self._topic_ranges and self.opened[-1].roll():
            self.opened[-1].sync()
        self.topics.wait_until_shown()
        found = [(t.id, row) for t, _, rows in KafkaReader(self.topics).read_rows() for row in rows.to_pylist()]
        return sorted(found, key=lambda entry: entry[1][OFFSET])

    def seal(self, log: OpenedLog) -> None:
        assert log.roll()
        log.sync()

    def expire(self, log: OpenedLog) -> None:
        """The brokers delete everything before the latest topic range."""
        topic_offset = KafkaReader(self.topics).topic_ranges()[-1].topic_offset
        admin = AdminClient({"bootstrap.servers": self.topics.brokers})
        for future in admin.delete_records([TopicPartition(self.topics.name, 0, topic_offset)]).values():
            future.result()


@pytest.fixture(params=[False, True], ids=["one topic range", "topic ranges"])
def place(broker: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[Place]:
    made = KafkaPlace(Topics(broker.address, f"log{next(_numbers)}", message_bytes=2000), topic_ranges=request.param)
    yield made
    for log in made.opened:
        log.close()


class TestKafka(SinkContract):
    """Every test of the suite; small records, so that frames are in pieces."""
