"""What benches request from a broker: settings, topics, and which keys have arrived in one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic
from tests.servers.kafka import KafkaBroker

from bench.harness import Child, Failed
from bench.peers import spelled

WAIT_S = 60.0

Settings = Mapping[str, object]
Keys = npt.NDArray[np.int64]

# What its own documentation gives for throughput: large compressed batches that wait a little for more; and none of
# the waiting where each record counts. Acknowledged by all copies, idempotent, as Kafka Connect has it.
PRODUCER: Mapping[str, str] = {"acks": "all", "enable.idempotence": "true", "buffer.memory": "67108864"}
LARGE = {**PRODUCER, "linger.ms": "20", "batch.size": "524288", "compression.type": "lz4"}
PROMPT = {**PRODUCER, "linger.ms": "0"}


def logged(settings: Settings, broker: KafkaBroker, topic: str, folder: Path) -> dict[str, object]:
    """These settings, with the log in a topic."""
    return {**settings, "log": {"kafka": {"brokers": broker.address, "topic": topic, "work": str(folder / topic)}}}


def published(settings: Settings, broker: KafkaBroker, prefix: str) -> dict[str, object]:
    """These settings, with the log published under a prefix."""
    return {**settings, "publish": {"kafka": {"brokers": broker.address, "topic_prefix": prefix}}}


def produced(broker: KafkaBroker, how: Mapping[str, str]) -> dict[str, str]:
    """Options of Debezium's runner for a producer to this broker."""
    producer = {"bootstrap.servers": broker.address, **how}
    return spelled({f"bench.producer.{name}": value for name, value in producer.items()})


def made(broker: KafkaBroker, topic: str) -> str:
    """A new topic with one partition, as the log's is."""
    admin = _admin(broker)  # its futures complete only while it exists
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(WAIT_S)
    return topic


def forget(broker: KafkaBroker, prefix: str) -> None:
    """Delete the topics whose names begin so: the next round finds the broker as this one did."""
    admin = _admin(broker)
    found = [name for name in admin.list_topics(timeout=WAIT_S).topics if name.startswith(prefix)]
    for future in admin.delete_topics(found).values() if found else ():
        future.result(WAIT_S)


def keys(broker: KafkaBroker, topic: str) -> Keys:
    """The `id` of each committed record's key (JSON), in the order of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[int] = []
    try:
        while True:
            message = consumer.poll(WAIT_S)
            if message is None:
                raise Failed(f"topic {topic} has {len(found)} records, and no end")
            error = message.error()
            if error is None:
                found.append(json.loads(message.key() or b"")["id"])
            elif error.code() == KafkaError._PARTITION_EOF:
                return np.array(found, np.int64)
            else:
                raise Failed(f"reading topic {topic}: {error}")
    finally:
        consumer.close()


def verify(broker: KafkaBroker, topic: str, rows: int) -> None:
    """That a topic has the keys 1 to `rows`, each once.

    Raises:
        Failed: it has not; nothing may be printed of this run.
    """
    check(keys(broker, topic), topic, rows)


def check(found: Keys, topic: str, rows: int) -> None:
    """Check that these are the keys 1 to `rows`, each once, in any order; raise `Failed` otherwise."""
    if not np.array_equal(np.sort(found), np.arange(1, rows + 1)):
        once = len(np.unique(found))
        raise Failed(f"topic {topic} has {len(found)} records of {once} keys, not the keys 1 to {rows}")


def until_there(broker: KafkaBroker, topic: str, records: int, child: Child) -> None:
    """Wait until a child has written a number of records into a topic.

    Raises:
        Failed: it ended instead.
    """
    admin = _admin(broker)
    partition = TopicPartition(topic, 0)
    newest = {partition: OffsetSpec.latest()}  # type: ignore[no-untyped-call]  # the library's
    while admin.list_offsets(newest)[partition].result(WAIT_S).offset < records:
        if not child.is_alive:
            child.outcome()
            raise Failed(f"there are no {records} records in topic {topic} yet, and no producer writes")
        time.sleep(0.1)


def _admin(broker: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
