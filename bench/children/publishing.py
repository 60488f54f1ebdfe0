"""A change log to a topic in Kafka, or messages that are ready into the same topic.

Argument: `path` (a log that `children.writing` wrote), `brokers`, `prefix`, `format` (json, json-schema), `mode`:
    publish   cdcflow: read, spell out, produce, a transaction every `group` rows
    produce   confluent-kafka alone: the same messages, made before the clock starts, in the same transactions

`bytes` is what keys and values hold together.
"""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa

from bench.children.usage import Clock, given, tell
from cdcflow.config import PublishKafka
from cdcflow.publish.assembly import publisher_of, rules_of
from cdcflow.publish.events import Messages, TableEvents, TransactionGroup
from cdcflow.publish.file_tail import FileTail
from cdcflow.publish.formats import format_of
from cdcflow.publish.position import Published
from cdcflow.publish.producer import Cluster, TableProducer
from cdcflow.publish.publisher import SLICE_ROWS
from cdcflow.publish.sources import HeaderBatch, SourceBlocks


def published(settings: PublishKafka, path: Path) -> dict[str, object]:
    publisher = publisher_of(settings, lambda: FileTail(path), "postgres", lambda event, fields: None)
    clock = Clock()
    publisher.run(once=True)
    return {**clock.stop()}


def made(settings: PublishKafka, path: Path) -> list[Messages]:
    """All messages of the log, spelled out."""
    tail = FileTail(path)
    blocks = SourceBlocks(tail.identity, settings.topic_prefix)
    end = tail.next_offset() - 1
    group = TransactionGroup(HeaderBatch(pa.concat_tables(tail.transactions(1, end))), blocks, time.time_ns())
    events: TableEvents | None = None
    found: list[Messages] = []
    for table, _, rows in tail.rows(1, end):
        events = events or TableEvents(table, blocks, rules_of(settings, "postgres"), format_of(settings.format))
        found += [events.messages(batch, group) for batch in rows.to_batches(max_chunksize=SLICE_ROWS)]
    return found


def ready(messages: list[Messages]) -> list[tuple[str, bytes, bytes]]:
    return [
        (m.topic, (key or b"").join(m.key_frame), (value or b"").join(m.value_frame))
        for m in messages
        for key, value in zip(m.keys or (), m.values, strict=True)
    ]


def produced(settings: PublishKafka, messages: list[tuple[str, bytes, bytes]]) -> dict[str, object]:
    """The limit: nothing but the library's calls."""
    producer = TableProducer.open(Cluster(settings.brokers, settings.topic_prefix))
    producer.make_topics({messages[0][0]})
    library = producer._producer  # the same settings as cdcflow's
    clock = Clock()
    for first in range(0, len(messages), settings.group_rows_max):
        producer.begin()
        for topic, key, value in messages[first : first + settings.group_rows_max]:
            while True:
                try:
                    library.produce(topic, value, key)
                    break
                except BufferError:
                    library.poll(0.05)
        producer.commit(Published("bench", first + 1))
    figures: dict[str, object] = {**clock.stop()}
    producer.close()
    return figures


def main() -> None:
    asked = {name: str(value) for name, value in given().items()}
    path = Path(asked["path"])
    settings = PublishKafka.model_validate(
        {"brokers": asked["brokers"], "topic_prefix": asked["prefix"], "format": asked["format"]}
    )
    if asked["mode"] == "publish":
        figures = published(settings, path)
        tell({**figures, "rows": FileTail(path).next_offset() - 1})
        return
    messages = ready(made(settings, path))
    size = sum(len(key) + len(value) for _, key, value in messages)
    tell({**produced(settings, messages), "rows": len(messages), "bytes": size})


if __name__ == "__main__":
    main()
