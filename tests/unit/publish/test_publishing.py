"""The publisher's loop: when it notices a stop, and what it does where Kafka's transaction lasts too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.log.read.reader import LogRows
from cdcflow.model.change import commit_clock
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OFFSET
from cdcflow.publish import publisher as publishing
from cdcflow.publish.events import Messages, Rules
from cdcflow.publish.formats import format_of
from cdcflow.publish.position import Published
from cdcflow.publish.producer import Cluster, TableProducer
from cdcflow.publish.publisher import GroupLimits, Publisher
from cdcflow.sinks.memory import Memory, MemoryLog
from cdcflow.testing.sinks import Writer, orders


class MemoryTail:
    """A log in memory, of this many transactions with this many rows each."""

    log_id = "memory"
    identity = SourceIdentity("postgres", "7301", "shop", "1")

    def __init__(self, transactions: int, rows: int) -> None:
        self.progress: Mapping[str, object] = {}
        self.progress_at = 1
        self._memory = Memory()
        self._runs: list[TransactionHeaders] = []
        writer = Writer.of(MemoryLog(self._memory))
        for number in range(transactions):
            run = orders(*range(number * rows, (number + 1) * rows), xid=number + 1)
            first, at = writer.checkpoint.next_offset, writer.checkpoint.next_transaction
            clock = commit_clock(writer.checkpoint.commit_clock, run.commit_ts)
            self._runs.append(TransactionHeaders.of(run, first, at, clock))
            writer.put(run)
        self.end = int(writer.checkpoint.next_offset)

    def next_offset(self) -> int:
        return self.end

    def ready(self, first: int) -> int:
        return self.end

    def transactions(self, first: int, last: int) -> Iterator[pa.Table]:
        for run in self._runs:
            if run.next_offset > first and run.first_offset <= last:
                yield pa.Table.from_batches([run.headers])

    def rows(self, first: int, last: int) -> Iterator[LogRows]:
        for table, rows in self._memory.rows():
            if first <= rows.column(OFFSET)[0].as_py() <= last:
                yield table, 1, pa.Table.from_batches([rows])


class SlowBrokers:
    """Aborts each transaction in which more than this many messages are sent."""

    timeout_ms = 1000

    def __init__(self, messages_max: int) -> None:
        self.messages_max = messages_max
        self.published = Published("memory")
        self.overdue = False
        self.sent = 0
        self.groups: list[int] = []
        self.stop: Callable[[], None] = lambda: None

    def make_topics(self, names: object) -> None:
        """The topics exist already."""

    def begin(self) -> None:
        self.sent, self.overdue = 0, False

    def send(self, messages: Messages) -> None:
        self.sent += len(messages.values)
        self.stop()
        self.overdue = self.sent > self.messages_max

    def commit(self, published: Published) -> None:
        if self.overdue:
            raise SinkUnavailable("committing: the transaction was given up")
        self.groups.append(published.next_offset - self.published.next_offset)
        self.published = published

    def close(self) -> None:
        """No transaction is open."""


def publisher(
    tail: MemoryTail,
    brokers: SlowBrokers,
    monkeypatch: pytest.MonkeyPatch,
    events: list[tuple[str, Mapping[str, object]]] | None = None,
) -> Publisher:
    told = [] if events is None else events
    monkeypatch.setattr(TableProducer, "open", lambda cluster: brokers)
    return Publisher(
        lambda: tail,
        lambda: Cluster("nowhere", "shop"),
        lambda: format_of("json"),
        Rules(),
        lambda event, fields: told.append((event, fields)),
        GroupLimits(backoff_s_max=0.01),
    )


def test_group_that_lasts_too_long_is_published_as_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was retried unchanged, endlessly."""
    brokers = SlowBrokers(5)
    publisher(MemoryTail(8, 2), brokers, monkeypatch).run(once=True)
    assert sum(brokers.groups) == 16
    assert max(brokers.groups) <= 5


def test_source_transaction_that_lasts_too_long_stops_with_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers see a transaction of the source whole or not at all, so it cannot be split."""
    brokers = SlowBrokers(5)
    tail = MemoryTail(3, 6)
    with pytest.raises(ConfigurationError, match=r"offsets 1 to 6: .*one transaction of the source.*\n.*raise transac"):
        publisher(tail, brokers, monkeypatch).run(once=True)
    assert brokers.groups == []
    # The remedy: a longer time for a transaction.
    brokers.messages_max = 100
    publisher(tail, brokers, monkeypatch).run(once=True)
    assert sum(brokers.groups) == 18


def test_stop_takes_effect_inside_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may take longer than a service manager waits; what is not committed is published at the next start."""
    brokers = SlowBrokers(1 << 30)
    tail = MemoryTail(4, publishing.SLICE_ROWS)
    running = publisher(tail, brokers, monkeypatch)
    brokers.stop = running.stop
    running.run()
    assert brokers.groups == []
    assert brokers.sent < 4 * publishing.SLICE_ROWS
    brokers.stop = lambda: None
    publisher(tail, brokers, monkeypatch).run(once=True)
    assert sum(brokers.groups) == 4 * publishing.SLICE_ROWS


# ── brokers that do not answer ──────────────────────────────────────────────────────────────────────────────


class Away:
    """Brokers that fail to answer this many times, and are called after `run` has begun to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, after: SlowBrokers) -> None:
        self.tail = MemoryTail(1, 1)
        self.publisher = publisher(self.tail, after, monkeypatch)
        self.left = times
        self.asked = 0
        self.stop_at = 0

        def opened(cluster: Cluster) -> SlowBrokers:
            self.asked += 1
            if self.asked == self.stop_at:
                self.publisher.stop()
            if self.asked <= self.left:
                raise SinkUnavailable("nobody answers")
            return after

        monkeypatch.setattr(TableProducer, "open", opened)


def test_brokers_that_never_answered_end_it_unless_they_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped name is retried endlessly, and looks like slow brokers."""
    away = Away(monkeypatch, 2, SlowBrokers(9))
    with pytest.raises(SinkUnavailable):
        away.publisher.run(once=True, wait=False)
    assert (away.asked, away.publisher.has_begun, away.publisher.waits_for) == (1, False, "publish")
    away.publisher.run(once=True, wait=True)
    assert (away.asked, away.publisher.has_begun) == (3, True)


def test_brokers_that_answered_once_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers restart, and publishing continues."""
    brokers = SlowBrokers(9)
    away = Away(monkeypatch, 0, brokers)

    def breaks() -> None:
        brokers.stop = lambda: None
        away.left = 3
        raise SinkUnavailable("cut off")

    brokers.stop = breaks
    away.publisher.run(once=True, wait=False)
    assert (away.asked, brokers.groups) == (4, [1])


def test_a_stop_while_it_waits_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be sent is sent at the next start; no broker is contacted after the stop."""
    away = Away(monkeypatch, 9, SlowBrokers(9))
    away.stop_at = 2
    away.publisher.run()
    assert away.asked == 2
    away.publisher.run()
    assert away.asked == 2


def test_table_without_further_messages_is_named_once_and_again_when_it_has_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its topic would lack changes silently."""
    events: list[tuple[str, Mapping[str, object]]] = []
    tail = MemoryTail(8, 2)
    brokers = SlowBrokers(100)
    gap = {"offset": 7, "generation": 1, "epoch": 1, "before": "p", "after": "", "proven": None, "until": None}
    failed = {"state": "failed", "generation": 1, "since": 1, "gap": gap, "missed": [[7, 1]]}
    tail.progress = {"tables": {"shop.orders": failed, "shop.users": {"state": "done", "generation": 1, "since": 1}}}
    one = publisher(tail, brokers, monkeypatch, events)
    one.run(once=True)
    one.run(once=True)
    tail.progress = {"tables": {"shop.orders": {**failed, "state": "waiting", "generation": 2}}}
    one.run(once=True)
    named = [(event, dict(fields)) for event, fields in events if event.startswith("table")]
    assert named == [
        (
            "table not published",
            {"table": "shop.orders", "missing_since_offset": 7, "remedy": "cdcflow backfill shop.orders"},
        ),
        ("table published again", {"table": "shop.orders"}),
    ]
