"""log, peers: reading every change of a table, compared with a Kafka consumer and Delta's change data feed.

    Python   a consumer of the log, and `changes` without one, in Arrow; and a Kafka consumer of the same changes as
             JSON in a topic of one partition: one that only takes the bytes, and one that parses them
    Spark    `read_log` as a feed, every column computed; and `readChangeFeed` of a Delta table that got the same
             changes, inserts first, then one MERGE

Half of the changes are inserts, the other half updates of the same rows. All parties' offsets, or rows, are counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from tests.servers.kafka import KafkaBroker

import cdcflow
from bench import brokers
from bench.harness import Budget, Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party, files_of, in_turn
from bench.results import Line, compared
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.schema_history import SchemaHistory

BENCH, NAME, TOPIC = "log", "shop.large", "changes"
ROWS_MAX, SEGMENT_ROWS, BATCH_ROWS = 2_000_000, 250_000, 10_000
Read = Callable[[], int]
"""Reads all changes; the sum of their offsets."""


def beside_peers(room: Path, budget: Budget) -> list[Line]:
    count = min(budget.rows, ROWS_MAX)
    log = _log(room / "peers", count)
    return [*_in_python(log, count, budget.rounds), *_in_spark(log, room, count, budget.rounds)]


def _log(root: Path, count: int) -> SealedLog:
    log, shape = SealedLog(root, has_transactions=True), table("large")
    for kind in "cu":
        for first in range(0, count // 2, SEGMENT_ROWS):
            ids = np.arange(first, min(first + SEGMENT_ROWS, count // 2))
            log.segment({shape: rows(ids, first)}, kind)
    schemas = SchemaHistory()
    schemas.learn(shape, 1)
    Layout(root).schemas.write_text(schemas.to_json())
    return log


def _files(log: SealedLog) -> list[str]:
    """Files of changes, without those of transactions."""
    return [file for file in files_of(log) if Path(file).name != "transactions.parquet"]


# ── Python ──────────────────────────────────────────────────────────────────────────────────────────────────


def _in_python(log: SealedLog, count: int, rounds: int) -> list[Line]:
    with KafkaBroker(java_options=("-Xmx1g",)) as broker:
        tell(f"  log: {count:,} changes into a topic")
        _produce(broker, log)
        readers: dict[str, Read] = {
            "consumer": lambda: _consumed(log),
            "changes": lambda: _read(log),
            "parsed": lambda: _polled(broker, lambda value: int(json.loads(value)["offset"])),
            "bytes": lambda: _polled(broker, lambda value: int(value[11:31])),
        }
        seconds: dict[str, list[float]] = {name: [] for name in readers}
        for number in range(rounds + 1):
            tell(f"  log: {count:,} changes read, round {number}")
            names = list(readers)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                begun = time.perf_counter()
                found = readers[name]()
                took = time.perf_counter() - begun
                if found != count * (count + 1) // 2:
                    raise Failed(f"{name} did not read the changes")
                tell(f"    {name}: {took:.2f} s")
                if number:
                    seconds[name].append(took)
    speed = {name: [count / took for took in found] for name, found in seconds.items()}
    case = f"{count:,} changes of a table read in Python"
    return [
        compared(BENCH, f"{case}, {ours}", "changes/s", speed[name], speed[peer], f"a Kafka consumer, {theirs}")
        for name, ours in (("consumer", "a consumer of the log"), ("changes", "`changes`"))
        for peer, theirs in (("parsed", "JSON parsed"), ("bytes", "values left as bytes"))
    ]


def _consumed(log: SealedLog) -> int:
    with cdcflow.open(log.root).consumer("bench", tables=[NAME], start="beginning") as consumer:
        found = sum(_offsets(batch.rows) for batch in consumer.read())
    cdcflow.open(log.root).consumers().drop("bench")
    return found


def _read(log: SealedLog) -> int:
    return sum(_offsets(part) for _, _, part in cdcflow.open(log.root).changes(NAME))


def _offsets(part: pa.Table) -> int:
    return int(pc.sum(part.column("_offset")).as_py())


def _produce(broker: KafkaBroker, log: SealedLog) -> None:
    """Each change as JSON, its offset first, in twenty digits."""
    brokers.made(broker, TOPIC)
    settings = {
        "bootstrap.servers": broker.address,
        "linger.ms": 20,
        "batch.size": 524288,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
    }
    producer = Producer(settings)
    for file in _files(log):
        for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS):
            for row in batch.to_pylist():
                offset, op, key = row["_offset"], row["_op"], row["id"]
                after = {name: value for name, value in row.items() if not name.startswith("_")}
                value = f'{{"offset": {offset:20d}, "op": "{op}", "after": {json.dumps(after, default=str)}}}'
                producer.produce(TOPIC, value.encode(), str(key).encode())
            producer.poll(0)
        producer.flush()


def _polled(broker: KafkaBroker, offset_of: Callable[[bytes], int]) -> int:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "bench", "enable.auto.commit": False})
    partition = TopicPartition(TOPIC, 0, OFFSET_BEGINNING)
    consumer.assign([partition])
    end = consumer.get_watermark_offsets(partition)[1]
    found = seen = 0
    while seen < end:
        messages = consumer.consume(BATCH_ROWS, timeout=brokers.WAIT_S)
        if not messages:
            raise Failed("the topic has no end")
        seen += len(messages)
        found += sum(offset_of(message.value() or b"") for message in messages)
    consumer.close()
    return found


# ── Spark ───────────────────────────────────────────────────────────────────────────────────────────────────


def _in_spark(log: SealedLog, room: Path, count: int, rounds: int) -> list[Line]:
    party = Party("this checkout", None, room / "scratch", "delta", module="tables")
    target, files = str(room / "feed"), _files(log)
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "delta": []}
    try:
        half = len(files) // 2
        party.ask("delta_with_feed", target=target, inserts=files[:half], updates=files[half:])
        for number in range(rounds + 1):
            tell(f"  log: {count:,} changes read by Spark, round {number}")
            asked = in_turn(
                number,
                ours=lambda: party.ask("log_plan", log=str(log.root), shape="feed", columns=""),
                delta=lambda: party.ask("delta_feed", target=target),
            )
            if {figures["rows"] for figures in asked.values()} != {count}:
                raise Failed("the feeds have not the same number of changes")
            for name, figures in asked.items() if number else ():
                found[name].append(figures)
    finally:
        party.close()
    ours, theirs = ([float(figures["seconds"]) for figures in found[name]] for name in ("ours", "delta"))
    case = f"{count:,} changes as a feed in Spark, `read_log`"
    return [compared(BENCH, case, "s", ours, theirs, "Delta's `readChangeFeed`")]


__all__ = ["beside_peers"]
