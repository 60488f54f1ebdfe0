"""publish: a change log to a topic in Debezium's envelope, and the library that only produces prepared messages.

The limit is confluent-kafka's `produce` of the same messages in the same transactions to the same broker.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

from tests.servers.kafka import KafkaBroker

from bench.children.writing import runs, written
from bench.drain import US
from bench.harness import Budget, Child, Outcome, Party, rounds, tell
from bench.results import Line, compared

ROWS = 300_000
LIMIT = "produce of ready messages"


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    numbers = itertools.count(1)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        rows = budget.rows // 10_000 * 10_000
        steps = written(log, runs(rows, 10_000))
        next(steps)
        next(steps).close()
        for form in ("json", "json-schema"):
            case = f"narrow, {rows:,} rows, {form}"
            tell(f"  publish: {case}")
            with KafkaBroker() as broker:

                def party(mode: str, form: str = form, address: str = broker.address) -> Party:
                    def publish() -> Outcome:
                        prefix = f"bench{next(numbers)}"
                        asked = {"path": str(log), "brokers": address, "prefix": prefix, "format": form, "mode": mode}
                        return Child.of("publishing", asked).outcome()

                    return publish

                measured = rounds({LIMIT: party("produce"), US: party("publish")}, budget.rounds, postmaster=None)
            lines += _lines(case, measured)
        shutil.rmtree(log, ignore_errors=True)
    return lines


def _lines(case: str, measured: dict[str, list[Outcome]]) -> list[Line]:
    ours, theirs = measured[US], measured[LIMIT]
    cpu, their_cpu = [o.cpu_s_per_million for o in ours], [o.cpu_s_per_million for o in theirs]
    each = [int(str(o.found["bytes"])) / o.rows for o in theirs]
    return [
        compared("publish", case, "rows/s", [o.rate for o in ours], [o.rate for o in theirs], LIMIT),
        compared("publish", case, "CPU s/M rows", cpu, their_cpu, LIMIT),
        compared("publish", case, "bytes/message", each, each, LIMIT),
    ]
