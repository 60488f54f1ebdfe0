"""kafka-latency: from a commit's answer at the writer to the row in the hands of a consumer of committed records.

The writer commits single-row transactions at a fixed pace. cdcflow's rows are read from the log's topic, and from the
table's topic that `cdcflow publish` fills alongside the daemon. The limit has no database at all: a transactional
producer that sends a record when it is due, one a transaction as long as that keeps up with the pace. Debezium's
records go to a KafkaProducer that never waits for more of them, without transactions. The same consumer reads the
records of all parties.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.kafka import KafkaBroker

from bench import brokers, peers
from bench.drain import US
from bench.harness import Budget, Child, Outcome, Party, rounds, tell
from bench.latency import DEBEZIUM_WARM_ROWS, Bench, pairs, timed
from bench.parties import DEBEZIUM
from bench.results import Line, compared
from bench.server import Server, settings
from bench.shapes import NARROW

ROWS = 10_000
RATES = (100, 1_000)
SECONDS = 10.0  # of each run, at `ROWS`
SETTLED_S = 2.0  # after the rows that warm Debezium up
LIMIT = "transactional producer alone"
PUBLISHED = "cdcflow, published"
OURS = {US: "log topic", PUBLISHED: "published topic"}
"""The lines of each of cdcflow's own parties."""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class RateSetup:
    """The state that the parties of one rate share."""

    bench: Bench
    broker: KafkaBroker

    @contextmanager
    def topic(self) -> Iterator[str]:
        """A name for a round's topics, which are deleted afterwards."""
        name = f"bench{next(_numbers)}"
        try:
            yield name
        finally:
            brokers.forget(self.broker, name)

    def consumer(self, topic: str, form: str) -> Child:
        """The consumer of a topic, reading already."""
        asked = {"brokers": self.broker.address, "topic": topic, "form": form}
        child = Child.of("consumer", {**asked, "rows": self.bench.rows, "times": str(self.bench.arrived)})
        child.line()
        return child

    def timed(self, consumer: Child) -> Outcome:
        """The outcome, once the consumer has every row. Those that were committed must be those that came."""
        outcome = consumer.outcome()
        arrived = pairs(self.bench.arrived)
        return timed(self.bench, outcome, arrived)


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(transport) as server,
        KafkaBroker(java_options=("-Xmx1g",)) as broker,
    ):
        server.execute(NARROW.create)
        for rate in RATES[:1] if budget.quick else RATES:
            case = f"{rate:,} single-row commits/s"
            tell(f"  kafka-latency: {case}, {transport}")
            rows = round(rate * SECONDS * budget.rows / ROWS)
            lines += _lines(case, _measured(RateSetup(Bench(server, Path(folder), rate, rows), broker), budget))
    return lines


def _measured(setup: RateSetup, budget: Budget) -> dict[str, list[Outcome]]:
    taking: dict[str, Party] = {
        LIMIT: lambda: paced(setup),
        US: lambda: logged(setup),
        PUBLISHED: lambda: published(setup),
    }
    if peers.debezium_classes() is not None and setup.bench.server.transport == "tcp":
        taking[DEBEZIUM] = lambda: produced(setup)
    fewer = {DEBEZIUM: 1 if budget.quick else budget.rounds}
    return rounds(taking, budget.rounds, postmaster=setup.bench.server.postmaster, fewer=fewer)


def _lines(case: str, measured: Mapping[str, list[Outcome]]) -> Iterator[Line]:
    for name, into in OURS.items():
        for part in ("p50", "p99"):
            ours = [float(str(o.found[part])) for o in measured[name]]
            for peer in (party for party in measured if party not in OURS):
                theirs = [float(str(o.found[part])) for o in measured[peer]]
                yield compared("kafka-latency", f"{case}, {into}", f"ms {part}", ours, theirs, peer)


# ── the parties ─────────────────────────────────────────────────────────────────────────────────────────────


def paced(setup: RateSetup) -> Outcome:
    """The limit: the time that the broker itself needs for a transaction, and a consumer to see it."""
    bench = setup.bench
    with setup.topic() as name:
        brokers.made(setup.broker, name)
        consumer = setup.consumer(name, "bytes")
        asked = {"brokers": setup.broker.address, "topic": name, "rows": bench.rows, "rate": bench.rate}
        Child.of("producer", {**asked, "times": str(bench.committed)}).outcome()
        return setup.timed(consumer)


def logged(setup: RateSetup) -> Outcome:
    """`cdcflow run` into the log's topic."""
    with setup.topic() as name, _daemon(setup, name):
        consumer = setup.consumer(name, "log")
        setup.bench.writer().outcome()
        return setup.timed(consumer)


def published(setup: RateSetup) -> Outcome:
    """`cdcflow run`, and `cdcflow publish` alongside it."""
    bench = setup.bench
    with setup.topic() as name, _daemon(setup, name) as config:
        prefix = f"{name}-tables"
        topic = brokers.made(setup.broker, f"{prefix}.public.{NARROW.name}")
        asked = {"config": brokers.published(config, setup.broker, prefix), "until_offset": bench.rows}
        publisher = Child.of("publisher", asked)
        publisher.line()
        consumer = setup.consumer(topic, "json")
        bench.writer().outcome()
        publisher.outcome()
        return setup.timed(consumer)


def produced(setup: RateSetup) -> Outcome:
    """Debezium's engine and a KafkaProducer, both as prompt as they get; the compiler warmed up by negative ids."""
    bench = setup.bench
    with setup.topic() as name:
        topic = brokers.made(setup.broker, f"{name}.public.{NARROW.name}")
        how = {**peers.spelled(peers.PROMPT), **brokers.produced(setup.broker, brokers.PROMPT), "topic_prefix": name}
        rows = DEBEZIUM_WARM_ROWS + bench.rows
        command = peers.debezium_command(bench.server.port, rows, "json-plain", **how)
        assert command is not None
        bench.with_slot()
        engine = Child(command)
        bench.server.until_read(engine)
        consumer = setup.consumer(topic, "json")
        bench.server.execute(NARROW.insert(str(-DEBEZIUM_WARM_ROWS), "-1"))
        brokers.until_there(setup.broker, topic, DEBEZIUM_WARM_ROWS, engine)
        time.sleep(SETTLED_S)
        bench.writer().outcome()
        engine.outcome()
        return setup.timed(consumer)


@contextmanager
def _daemon(setup: RateSetup, topic: str) -> Iterator[dict[str, object]]:
    """A daemon that captures into a new topic, reading its slot already; its settings."""
    bench = setup.bench
    bench.empty()
    config = brokers.logged(settings(bench.server, bench.folder), setup.broker, topic, bench.folder)
    daemon = Child.of("capture", {"config": config})
    try:
        bench.server.until_read(daemon)
        yield config
        daemon.ask_to_end()
        daemon.outcome(bench.rows)
    except BaseException:
        daemon.kill()
        raise
