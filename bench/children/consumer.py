"""A consumer that reads committed records as they come, and notes when it had each row.

Argument: `brokers`, `topic`, `rows` (it ends when it has this many with an id above 0), `times` (a file with one line
`id nanoseconds` per row), `form`:
    log     a log's topic; rows are those of tables with a column `id`
    json    keys are JSON objects with an `id`
    bytes   keys are ids, eight bytes each

The topic must exist. Prints a line once it reads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.children.usage import Clock, given, tell
from cdcflow.log.format.records import Message, RangeDecoder
from cdcflow.log.format.rows import ShapeRows

PATIENCE_S = 60.0

Ids = Callable[[int, bytes, bytes], list[int]]
"""The ids of the rows in a record, given its offset, key and value."""


def ids_of_log(topic: str) -> Ids:
    decoder = RangeDecoder(topic)

    def ids(offset: int, key: bytes, value: bytes) -> list[int]:
        placed = decoder.take(Message(offset, key, value))
        if placed is None or not isinstance(placed.record, ShapeRows) or "id" not in placed.record.rows.schema.names:
            return []
        found: list[int] = placed.record.rows.column("id").to_pylist()
        return found

    return ids


def ids_of_json(_offset: int, key: bytes, _value: bytes) -> list[int]:
    return [json.loads(key)["id"]]


def ids_of_bytes(_offset: int, key: bytes, _value: bytes) -> list[int]:
    return [int.from_bytes(key, "big")]


def consumed(consumer: Consumer, rows: int, ids: Ids) -> list[tuple[int, int]]:
    """Ids and when they arrived here."""
    arrived: list[tuple[int, int]] = []
    while len(arrived) < rows:
        found = consumer.poll(PATIENCE_S)
        if found is None or found.error() is not None:
            raise SystemExit(f"{len(arrived)} of {rows} rows came: {found and found.error()}")
        now = time.monotonic_ns()
        arrived += [(i, now) for i in ids(found.offset() or 0, found.key() or b"", found.value() or b"") if i > 0]
    return arrived


def main() -> None:
    asked = {name: str(value) for name, value in given().items()}
    topic = asked["topic"]
    consumer = Consumer(
        {
            "bootstrap.servers": asked["brokers"],
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
    consumer.assign([partition])
    consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)
    ids = {"log": ids_of_log(topic), "json": ids_of_json, "bytes": ids_of_bytes}[asked["form"]]
    print("{}", flush=True)
    clock = Clock()
    arrived = consumed(consumer, int(asked["rows"]), ids)
    figures = clock.stop()
    Path(asked["times"]).write_text("".join(f"{i} {ns}\n" for i, ns in arrived))
    tell({**figures, "rows": len(arrived)})


if __name__ == "__main__":
    main()
