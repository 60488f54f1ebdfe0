"""The publishing loop: whole transactions of the log into the topics, a group of them in one Kafka transaction.

    position ──▶ next group of whole transactions ──▶ rows, table by table ──▶ messages ──┐
       ▲                                                                                  ▼
       └────────────── one Kafka transaction: messages, transaction topic, position ◀─────┘

A `read_committed` reader sees each change once: the messages and the position after them are committed together, and
after any interruption publishing continues at the committed position.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import pyarrow as pa
import tenacity

from cdcflow.errors import ConfigurationError, InvariantViolated, OutcomeUnknown, SinkUnavailable
from cdcflow.log.fold.completeness import TableBackfill
from cdcflow.log.read.reader import LogRows
from cdcflow.model.table import Table, TableId, word
from cdcflow.publish import gaps
from cdcflow.publish.events import Messages, Rules, TableEvents, TransactionEvents, TransactionGroup
from cdcflow.publish.formats import MessageFormat
from cdcflow.publish.position import Published
from cdcflow.publish.producer import Cluster, TableProducer, looked_at
from cdcflow.publish.sources import HeaderBatch, SourceBlocks
from cdcflow.publish.tail import GrowingLog

NO_FRAME = (b"", b"")
SLICE_ROWS = 4096
SLICE_BYTES = 8 << 20
Part = TypeVar("Part")
OnEvent = Callable[[str, Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits of groups and pauses. `group_rows_max`: a group ends with the transaction that reaches it.

    `idle_s`: the polling interval of a quiet log.

    After a group the next poll follows after `prompt_s`, then after twice that, and so on up to `idle_s`.
    """

    group_rows_max: int = 50_000
    prompt_s: float = 0.004
    idle_s: float = 0.1
    backoff_s_max: float = 30.0


class Publisher:
    """Publishes a log until it is stopped. `run` belongs to one thread; any thread may call `stop`."""

    def __init__(
        self,
        open_tail: Callable[[], GrowingLog | None],
        cluster: Callable[[], Cluster],
        form: Callable[[], MessageFormat],
        rules: Rules,
        on_event: OnEvent,
        pace: GroupLimits | None = None,
    ) -> None:
        self._open_tail = open_tail
        self._make_cluster = cluster
        self._make_form = form
        self._rules = rules
        self._tell = on_event
        self._pace = pace or GroupLimits()
        self._stop = threading.Event()
        self._rows_max = self._pace.group_rows_max
        self._known_progress: Mapping[str, object] | None = None
        self._lacking: set[str] = set()
        self.is_connecting = False
        """Whether the publisher is connecting. Then no transaction is open, and nothing is lost if it is interrupted.
        """
        self.has_begun = False
        """Whether the log and the brokers of the topics were reached."""
        self.waits_for: Literal["log", "publish"] = "log"
        """The side that the publisher is connecting to, or connected to last: the log, or the brokers of the topics.
        """

    def stop(self) -> None:
        """End now. Nothing of the current group becomes visible; it is published when publishing continues."""
        self._stop.set()

    def check(self) -> None:
        """Check that this publisher could publish, without affecting a publisher that runs.

        Raises:
            SinkUnavailable: the log or the brokers do not answer.
            ConfigurationError: they refuse, or the topics hold another log.
        """
        cluster = self._make_cluster()
        self._make_form()
        published = looked_at(cluster)
        tail = self._open_tail()
        if tail is not None:
            _check_position(published, tail, cluster)

    def run(self, *, once: bool = False, wait: bool = True) -> None:
        """Publish until `stop`; with `once`, until the current end of the log.

        `wait` False: end if the log or the brokers cannot be reached at the first try.

        Raises:
            HistoryLost: the next rows have expired from the log.
            SinkUnavailable: no answer at the first try, and `wait` is False.
            ConfigurationError, InvariantViolated: see their messages.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: self._is_tried_again(error, wait=wait)),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=self._pace.backoff_s_max),
            stop=tenacity.stop_when_event_set(self._stop),
            sleep=tenacity.sleep_using_event(self._stop),
            before_sleep=self._tell_retry,
            reraise=True,
        )
        for attempt in retrying:
            with attempt:
                try:
                    self._attempt(once=once)
                except (SinkUnavailable, OutcomeUnknown) as error:
                    # Nothing of it is visible, and it is published when publishing continues.
                    if not self._stop.is_set():
                        raise
                    reason = str(error).split("\n")[0]
                    self._tell("stopped while it was interrupted", {"kind": type(error).__name__, "reason": reason})

    def _is_tried_again(self, error: BaseException, *, wait: bool) -> bool:
        return isinstance(error, SinkUnavailable | OutcomeUnknown) and (wait or self.has_begun)

    def _tell_retry(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        self._tell("publishing waits", {"attempt": state.attempt_number, "reason": str(error)})

    def _attempt(self, *, once: bool) -> None:
        if self._stop.is_set():
            return
        self.is_connecting, self.waits_for = True, "log"
        tail = self._tail()
        if tail is None:
            return
        self.waits_for = "publish"
        cluster = self._make_cluster()
        producer = TableProducer.open(cluster)
        self.has_begun, self.is_connecting = True, False
        try:
            published = _check_position(producer.published, tail, cluster)
            session = _PublishSession(tail, producer, self._make_form(), self._rules, cluster, self._stop.is_set)
            self._tell("publishing begun", {"prefix": cluster.prefix, "offset": published.next_offset})
            until = tail.next_offset() if once else None
            self._tell_lacking(tail.progress)
            pause_s = self._pace.idle_s
            while not self._stop.is_set():
                newest = tail.ready(published.next_offset)
                self._tell_lacking(tail.progress)
                published = session.notify(published)
                if until is not None and published.next_offset >= until:
                    break
                # A group ends at a gap, so that its notification precedes what follows it.
                newest = min(newest, until or newest, gaps.next_gap(tail.progress, published) or newest)
                if published.next_offset < newest:
                    begun = time.monotonic()
                    rows = newest - published.next_offset
                    published = self._publish(session, producer, published, min(rows, self._rows_max))
                    seconds = round(time.monotonic() - begun, 3)
                    self._tell("published", {"offset": published.next_offset - 1, "seconds": seconds})
                    pause_s = self._pace.prompt_s
                else:
                    self._stop.wait(pause_s)
                    pause_s = min(2 * pause_s, self._pace.idle_s)
        except _Stopped:
            pass
        finally:
            producer.close()

    def _tell_lacking(self, progress: Mapping[str, object]) -> None:
        """Report the tables whose topics get no more messages, because the log lacks their changes."""
        if progress is self._known_progress:
            return
        self._known_progress = progress
        tables = progress.get("tables", {})
        entries = tables if isinstance(tables, Mapping) else {}
        lacking = {name for name, entry in entries.items() if TableBackfill.of(entry).lacks_changes}
        for name in sorted(lacking - self._lacking):
            offset, _ = TableBackfill.of(entries[name]).missed[-1]
            remedy = f"cdcflow backfill {word(name)}"
            self._tell("table not published", {"table": name, "missing_since_offset": offset, "remedy": remedy})
        for name in sorted(self._lacking - lacking):
            self._tell("table published again", {"table": name})
        self._lacking = lacking

    def _publish(self, session: _PublishSession, producer: TableProducer, after: Published, rows: int) -> Published:
        """Publish one group, and return the position after it. If the group exceeds Kafka's transaction timeout, a
        smaller one is tried.

        Raises:
            ConfigurationError: a single transaction of the source exceeds the timeout.
        """
        try:
            return session.publish(after, rows)
        except (SinkUnavailable, OutcomeUnknown, InvariantViolated) as error:
            if not producer.overdue:
                raise
            group = session.group
            text = (
                f"publishing offsets {after.next_offset} to {group.last_offset}: Kafka's transaction was open for "
                f"longer than its transaction.timeout.ms of {producer.timeout_ms}"
            )
            if group.count > 1:
                self._rows_max = max(1, min(rows, group.last_offset + 1 - after.next_offset) // 2)
                raise SinkUnavailable(f"{text}; it is tried again in groups of {self._rows_max} rows") from error
            raise ConfigurationError(
                f"{text}, and that is one transaction of the source, which is published whole or not at all",
                remedy="raise transaction.timeout.ms in publish.kafka.options, and the brokers' "
                "transaction.max.timeout.ms with it",
                runbook="message-too-large",
            ) from error

    def _tail(self) -> GrowingLog | None:
        """Return the log's tail; `None` as long as the log does not exist."""
        while (tail := self._open_tail()) is None:
            if self._stop.wait(self._pace.idle_s):
                return None
        return tail


def _check_position(found: Published | None, tail: GrowingLog, cluster: Cluster) -> Published:
    if found is None:
        return Published(tail.log_id)
    if found.log_id != tail.log_id:
        raise ConfigurationError(
            f"publishing under {cluster.prefix}: its topics hold the changes of another log ({found.log_id})",
            remedy="publish this log under another publish.kafka.topic_prefix, or delete the topics of this one",
            runbook="other-log",
        )
    if found.next_offset > tail.next_offset():
        raise ConfigurationError(
            f"publishing under {cluster.prefix}: the topics have more than the log, so the log is an older copy",
            remedy="restore the newer log, or publish this one under another publish.kafka.topic_prefix",
            runbook="other-log",
        )
    return found


class _Stopped(Exception):
    """Raised when a stop is requested while a group is being published."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The bounds of the group that is being published: its last offset, and how many of the source's transactions it
    has."""

    last_offset: int
    count: int


class _PublishSession:
    """Publishes groups through one producer."""

    def __init__(
        self,
        tail: GrowingLog,
        producer: TableProducer,
        form: MessageFormat,
        rules: Rules,
        cluster: Cluster,
        stopping: Callable[[], bool],
    ) -> None:
        prefix = cluster.prefix
        self._cluster = cluster
        self._stopping = stopping
        self.group = _Bounds(0, 0)
        self._tail = tail
        self._producer = producer
        self._form = form
        self._rules = rules
        self._blocks = SourceBlocks(tail.identity, prefix)
        self._tables: dict[Table, TableEvents] = {}
        self._transactions = TransactionEvents(prefix, form) if rules.transactions else None
        if self._transactions is not None:
            producer.make_topics([self._transactions.topic])

    def publish(self, after: Published, rows: int) -> Published:
        """Publish one group, and return the position after it. The group has the next transactions, through the one
        that reaches this many rows."""
        first = after.next_offset
        headers = pa.concat_tables(self._until_stopped(self._tail.transactions(first, first + rows - 1)))
        transactions = HeaderBatch(headers, after.position)
        self.group = _Bounds(transactions.last_offset, headers.num_rows)
        group = TransactionGroup(transactions, self._blocks, time.time_ns())
        self._producer.begin()
        for table, found in gather_rows(self._until_stopped(self._tail.rows(first, transactions.last_offset))):
            events = self._events(table)
            for piece in self._until_stopped(_pieces(found)):
                self._producer.send(events.messages(piece, group))
        if self._transactions is not None:
            self._producer.send(self._transactions.messages(group))
        last = str(headers.column("position")[-1].as_py())
        done = replace(after, next_offset=transactions.last_offset + 1, position=last)
        self._producer.commit(done)
        return done

    def notify(self, published: Published) -> Published:
        """Publish the notifications of gaps that are due, in one Kafka transaction with the position that they change;
        return that position."""
        now_ms = time.time_ns() // 1_000_000
        found, after = gaps.notices(self._tail.progress, self._tail.progress_at, published, now_ms)
        if not found:
            return published
        topic, prefix = self._cluster.gap_topic, self._cluster.prefix
        self._producer.make_topics([topic])
        keys = [one.table.encode() for one in found]
        values = [one.to_json(published.log_id, prefix) for one in found]
        self._producer.begin()
        self._producer.send(Messages(topic, keys, values, NO_FRAME, NO_FRAME))
        self._producer.commit(after)
        return after

    def _until_stopped(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield the parts, but raise `_Stopped` as soon as a stop is requested."""
        for part in parts:
            if self._stopping():
                raise _Stopped
            yield part

    def _events(self, table: Table) -> TableEvents:
        found = self._tables.get(table)
        if found is None:
            found = self._tables[table] = TableEvents(table, self._blocks, self._rules, self._form)
            self._producer.make_topics([found.topic])
        return found


def gather_rows(parts: Iterable[LogRows]) -> Iterator[tuple[Table, pa.Table]]:
    """Yield the rows in fewer, larger parts, ascending within a table as before.

    A log that is written change by change is read in parts of a row or two, and a part's fixed cost is a hundred times
    that of a row.
    """
    waiting: dict[TableId, _WaitingRows] = {}
    for table, _, rows in parts:
        found = waiting.get(table.id)
        if found is not None and found.table != table:  # the rows of the earlier shape are yielded first
            yield found.table, found.whole()
            found = None
        if found is None:
            found = waiting[table.id] = _WaitingRows(table)
        found.add(rows)
        if found.is_large:
            del waiting[table.id]
            yield table, found.whole()
    for found in waiting.values():
        yield found.table, found.whole()


@dataclass(slots=True)
class _WaitingRows:
    """Rows of a table's shape that wait for more of them."""

    table: Table
    parts: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, part: pa.Table) -> None:
        self.parts.append(part)
        self.rows += part.num_rows
        self.bytes += part.nbytes

    @property
    def is_large(self) -> bool:
        return self.rows >= SLICE_ROWS or self.bytes >= SLICE_BYTES

    def whole(self) -> pa.Table:
        return pa.concat_tables(self.parts).combine_chunks()


def _pieces(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield slices of the rows, each small enough for memory when its rows are rendered."""
    for batch in rows.to_batches():
        at_once = max(1, min(SLICE_ROWS, SLICE_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, at_once):
            yield batch.slice(start, at_once)
