"""to-kafka: a backlog in PostgreSQL's slot into one broker, by cdcflow and by Debezium.

cdcflow writes the log's topic, as `cdcflow run` does: with its catch-up in windows, as by default, and by streaming
alone. Then with `cdcflow publish` alongside it, which turns the log into the messages that Debezium would send.
Debezium hands its records, as JSON without schemas, to a KafkaProducer. cdcflow's records come in transactions;
Debezium's are acknowledged, and may come again after a crash.

Afterwards a consumer that reads committed records checks that everything arrived: of the log every value, of the
tables' topics every key.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from tests.servers.kafka import KafkaBroker

from bench import brokers, contents, peers
from bench.drain import US
from bench.harness import Budget, Child, Outcome, Party, rounds, tell
from bench.parties import DEBEZIUM
from bench.results import Line, alone, compared
from bench.server import KEPT, Backlog, Server, prepared, settings
from bench.shapes import NARROW
from cdcflow import wiring
from cdcflow.config import Config

ROWS = 200_000
PER_TRANSACTION = 100
STREAMED, PUBLISHED = "cdcflow, streamed", "cdcflow, published"
INTO = {US: "log topic", STREAMED: "log topic, streamed alone", PUBLISHED: "run and publish"}
"""The lines of each of cdcflow's own parties."""
FIGURES: Mapping[str, Callable[[Outcome], float]] = {
    "rows/s": lambda outcome: outcome.rate,
    "client CPU s/M rows": lambda outcome: outcome.cpu_s_per_million,
    "server CPU s/M rows": lambda outcome: outcome.server_cpu_s_per_million,
    "peak RSS MB": lambda outcome: (outcome.rss_bytes or 0) / 1e6,
}

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Bench:
    """The state that the parties share. `source`: the table's rows."""

    backlog: Backlog
    broker: KafkaBroker
    source: pa.Table


def run(budget: Budget, transport: str) -> list[Line]:
    rows = budget.rows // PER_TRANSACTION * PER_TRANSACTION
    case = f"narrow, {PER_TRANSACTION} a transaction, {rows:,} rows"
    tell(f"  to-kafka: {case}, {transport}")
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(transport) as server,
        KafkaBroker(java_options=("-Xmx1g",)) as broker,
    ):
        backlog = prepared(server, Path(folder), NARROW, rows, PER_TRANSACTION)
        bench = Bench(backlog, broker, contents.source_rows(server, NARROW))
        taking: dict[str, Party] = {
            US: lambda: logged(bench, "auto"),
            STREAMED: lambda: logged(bench, "never"),
            PUBLISHED: lambda: published(bench),
        }
        if peers.debezium_classes() is not None and transport == "tcp":
            taking[DEBEZIUM] = lambda: produced(bench)
        fewer = {DEBEZIUM: 1 if budget.quick else budget.rounds}
        measured = rounds(taking, budget.rounds, postmaster=server.postmaster, fewer=fewer)
    return list(_lines(case, measured))


def _lines(case: str, measured: Mapping[str, list[Outcome]]) -> Iterator[Line]:
    for name, into in INTO.items():
        for unit, figure in FIGURES.items():
            ours, theirs = ([figure(o) for o in measured.get(party, [])] for party in (name, DEBEZIUM))
            if theirs:
                yield compared("to-kafka", f"{case}, {into}", unit, ours, theirs, DEBEZIUM)
            else:
                yield alone("to-kafka", f"{case}, {into}", unit, ours)


# ── the parties ─────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _log(bench: Bench, catch_up: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Settings for a log in a new topic, which begins where the backlog does, and the topic."""
    server, template = bench.backlog.server, bench.backlog.template
    server.copy_slot(KEPT)
    topic = f"bench{next(_numbers)}"
    before = settings(server, template, catch_up)
    config = brokers.logged(before, bench.broker, topic, template.parent)
    wiring.copy_log(Config.model_validate(before), Config.model_validate(config), lambda first, last: None)
    try:
        yield topic, config
    finally:
        brokers.forget(bench.broker, topic)


def _verify(bench: Bench, config: Mapping[str, object]) -> None:
    log = wiring.log_reader(Config.model_validate(config))
    contents.verify(log, NARROW, bench.source, bench.backlog.rows)


def logged(bench: Bench, catch_up: str) -> Outcome:
    """`cdcflow run`, until the brokers have the last row and the checkpoint."""
    with _log(bench, catch_up) as (_, config):
        outcome = Child.of("capture", {"config": config, "until_rows": bench.backlog.rows}).outcome()
        _verify(bench, config)
    return outcome


def published(bench: Bench) -> Outcome:
    """`cdcflow run` and `cdcflow publish` at once, until the last row is in the table's topic."""
    rows = bench.backlog.rows
    with _log(bench, "auto") as (topic, config):
        asked = brokers.published(config, bench.broker, f"{topic}-tables")
        children = [
            Child.of("capture", {"config": asked, "until_rows": rows}),
            Child.of("publisher", {"config": asked, "until_offset": rows}),
        ]
        outcome = as_one([child.outcome() for child in children])
        _verify(bench, config)
        brokers.verify(bench.broker, f"{topic}-tables.public.{NARROW.name}", rows)
    return outcome


def produced(bench: Bench) -> Outcome:
    """Debezium's engine and a KafkaProducer, until the brokers have acknowledged the last row."""
    backlog, prefix = bench.backlog, f"bench{next(_numbers)}"
    backlog.server.copy_slot(KEPT)
    topic = brokers.made(bench.broker, f"{prefix}.public.{NARROW.name}")
    options = {**peers.spelled(peers.TUNED), **brokers.produced(bench.broker, brokers.LARGE), "topic_prefix": prefix}
    command = peers.debezium_command(backlog.server.port, backlog.rows, "json-plain", **options)
    assert command is not None
    try:
        outcome = Child(command).outcome()
        brokers.verify(bench.broker, topic, backlog.rows)
    finally:
        brokers.forget(bench.broker, prefix)
    return outcome


def as_one(outcomes: list[Outcome]) -> Outcome:
    """Processes that ran side by side: from the first one's start to the last one's end, and their total costs."""
    ends = [int(str(o.found["ended_ns"])) / 1e9 for o in outcomes]
    begins = [end - o.seconds for end, o in zip(ends, outcomes, strict=True)]
    return replace(
        outcomes[0],
        seconds=max(ends) - min(begins),
        cpu_s=sum(o.cpu_s for o in outcomes),
        rss_bytes=sum(o.rss_bytes or 0 for o in outcomes),
    )
