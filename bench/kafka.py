"""log in Kafka: batches in memory into the log's topic, each cut a Kafka transaction.

The limit is confluent-kafka producing the very same records, made beforehand, to the same broker, in as many
transactions.
"""

from __future__ import annotations

import itertools

from tests.servers.kafka import KafkaBroker

from bench.drain import US
from bench.harness import Budget, Child, Outcome, Party, rounds, tell
from bench.results import Line, at_least, compared

ROWS = 1_000_000
LIMIT = "confluent-kafka, the same records"
_numbers = itertools.count(1)


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    with KafkaBroker(java_options=("-Xmx1g",)) as broker:
        for rows_each in (1_000, 10_000):
            rows = budget.rows // rows_each * rows_each
            case = f"log topic, narrow, {rows:,} rows, {rows_each:,} a cut"
            tell(f"  kafka: {case}")
            lines += _lines(case, _measured(broker, rows, rows_each, budget))
    return lines


def _measured(broker: KafkaBroker, rows: int, rows_each: int, budget: Budget) -> dict[str, list[Outcome]]:
    def party(mode: str) -> Party:
        def write() -> Outcome:
            asked = {"brokers": broker.address, "topic": f"bench{next(_numbers)}", "mode": mode}
            return Child.of("kafka", {**asked, "rows": rows, "rows_each": rows_each}).outcome()

        return write

    return rounds({LIMIT: party("produce"), US: party("log")}, budget.rounds, postmaster=None)


def _lines(case: str, measured: dict[str, list[Outcome]]) -> list[Line]:
    ours, theirs = measured[US], measured[LIMIT]
    megabytes = [int(str(o.found["bytes"])) / 1e6 for o in theirs]
    speeds = [m / o.seconds for m, o in zip(megabytes, ours, strict=True)]
    limits = [m / o.seconds for m, o in zip(megabytes, theirs, strict=True)]
    cpu, their_cpu = [o.cpu_s_per_million for o in ours], [o.cpu_s_per_million for o in theirs]
    return [
        compared("kafka", case, "rows/s", [o.rate for o in ours], [o.rate for o in theirs], LIMIT, at_least(0.8)),
        compared("kafka", case, "MB/s", speeds, limits, LIMIT),
        compared("kafka", case, "CPU s/M rows", cpu, their_cpu, LIMIT),
    ]
