"""What a `read_committed` consumer finds in topics."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

Settings = dict[str, str | int | float | bool]


@dataclass(frozen=True)
class Found:
    """One message, in the order of its partition."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int


def committed(address: str, topic: str) -> list[Found]:
    """All committed messages of a topic, partition by partition."""
    settings: Settings = {
        "bootstrap.servers": address,
        "group.id": "tests",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    found: list[Found] = []
    try:
        for partition in sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(30)
                assert message is not None, f"no answer for {topic}"
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    break
                if error is not None:
                    raise KafkaException(error)
                headers = tuple((str(h[0]), bytes(h[1])) for h in message.headers() or ())  # type: ignore[arg-type]
                found.append(Found(message.key(), message.value(), headers, partition))
    finally:
        consumer.close()
    return found
