"""A transactional producer at a fixed pace, and nothing else: what Kafka itself needs from hand to hand.

Argument: `brokers`, `topic`, `rows`, `rate` (records a second, whatever the answers take), `times` (a file with one
line `id nanoseconds` per record, the time at which it was due). Each transaction has the records that are due: one,
unless a commit took longer than the time between two. Keys are the ids, eight bytes each.
"""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Producer

from bench.children.usage import Clock, given, tell

VALUE = b"a narrow row has about so many bytes, as text or in binary, with its names left out"
WAIT_S = 30.0


def produced(producer: Producer, topic: str, due_ns: list[int]) -> int:
    """Sends each record when it is due. Returns the number of transactions."""
    done = transactions = 0
    while done < len(due_ns):
        now = time.monotonic_ns()
        if now < due_ns[done]:
            time.sleep((due_ns[done] - now) / 1e9)
            continue
        producer.begin_transaction()
        while done < len(due_ns) and due_ns[done] <= now:
            producer.produce(topic, VALUE, (done + 1).to_bytes(8, "big"), 0)
            done += 1
        producer.commit_transaction(WAIT_S)
        transactions += 1
    return transactions


def main() -> None:
    asked = {name: str(value) for name, value in given().items()}
    producer = Producer(
        {"bootstrap.servers": asked["brokers"], "transactional.id": f"bench-{asked['topic']}", "linger.ms": 0}
    )
    producer.init_transactions(WAIT_S)
    clock = Clock()
    begun = time.monotonic_ns()
    due_ns = [begun + round(i / float(asked["rate"]) * 1e9) for i in range(int(asked["rows"]))]
    transactions = produced(producer, asked["topic"], due_ns)
    figures = clock.stop()
    Path(asked["times"]).write_text("".join(f"{i} {ns}\n" for i, ns in enumerate(due_ns, 1)))
    tell({**figures, "rows": len(due_ns), "transactions": transactions})


if __name__ == "__main__":
    main()
