"""The log writer in Kafka alone: batches in memory, into topics, committed.

Argument: `brokers`, `topic`, `rows`, `rows_each` (a cut's rows, in transactions of 100), `mode`:
    log       cdcflow: one thread appends and cuts, a second one syncs, as in the pipeline
    produce   confluent-kafka: the same records, prepared beforehand, in as many Kafka transactions as there are cuts

`bytes` is the size of the records' keys and values.
"""

from __future__ import annotations

import threading

from confluent_kafka import Producer

from bench.children.usage import Clock, given, tell
from bench.children.writing import appended, runs
from cdcflow.model.change import Run
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.producer import OnDelivery, Sender
from cdcflow.sinks.kafka.topics import Topics

AHEAD_MAX = 8
"""This many cuts may wait for a sync."""
Records = list[tuple[str, bytes, bytes]]


def opened(topics: Topics) -> KafkaLog:
    return KafkaLog.open(topics, SourceIdentity("postgres", "1", "bench"))


def through_log(topics: Topics, made: list[Run]) -> dict[str, object]:
    log = opened(topics)
    clock = Clock()
    asked, synced = threading.Semaphore(0), threading.Semaphore(AHEAD_MAX)
    last = made[-1]

    def sync() -> None:
        while log.sync().position != last.last_position:
            asked.acquire()
            synced.release()

    thread = threading.Thread(target=sync)
    thread.start()
    for _ in appended(log, made):
        asked.release()
        synced.acquire()
    thread.join()
    figures = clock.stop()
    log.close()
    return figures


def recorded(topics: Topics, made: list[Run]) -> list[Records]:
    """The records that a log sends in each transaction."""
    found: list[Records] = []
    put = Sender.put

    def noted(
        sender: Sender, topic: str, key: bytes, value: bytes | None, on_delivery: OnDelivery | None = None
    ) -> None:
        found[-1].append((topic, key, value or b""))
        put(sender, topic, key, value, on_delivery)

    log = opened(topics)
    Sender.put = noted  # type: ignore[method-assign]
    for _ in appended(log, made):
        found.append([])
        log.sync()
    Sender.put = put  # type: ignore[method-assign]
    log.close()
    return found


def through_producer(topics: Topics, transactions: list[Records]) -> dict[str, object]:
    producer = Producer(
        {
            "bootstrap.servers": topics.brokers,
            "transactional.id": f"bench-{topics.name}",
            "linger.ms": 1,
            "queue.buffering.max.kbytes": 128 << 10,
        }
    )
    producer.init_transactions(30)
    clock = Clock()
    for records in transactions:
        producer.begin_transaction()
        for topic, key, value in records:
            producer.produce(topic, value, key, 0)
        producer.commit_transaction(30)
    return clock.stop()


def main() -> None:
    asked = given()
    topics = Topics(asked["brokers"], asked["topic"])
    made = runs(asked["rows"], asked["rows_each"])
    if asked["mode"] == "log":
        figures = through_log(topics, made)
    else:
        transactions = recorded(topics, made)
        figures = through_producer(topics, transactions)
        figures["bytes"] = sum(len(key) + len(value) for records in transactions for _, key, value in records)
    tell({**figures, "rows": asked["rows"]})


if __name__ == "__main__":
    main()
