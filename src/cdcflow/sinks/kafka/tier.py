"""A log in Kafka and its history: finds what to seal next, and reads both as one log.

history    segment ─ segment ─ segment │ sealed so far
topic                 topic range ─ topic range ─ topic range ─ … latest cut
readers    ◀── from the files ─────────│── from the brokers ──▶
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from cdcflow.errors import ConfigurationError, HistoryLost, SinkUnavailable
from cdcflow.log.disk.lease import Lease
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.records import Message
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.format.segment import Segment
from cdcflow.log.format.topic_tail import SEGMENT_BYTES_MAX, TopicAddress, TopicTail
from cdcflow.log.read import check, reader
from cdcflow.log.read.check import CheckReport, Fault
from cdcflow.log.read.reader import LogRows
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sinks.files.history import FolderHistory
from cdcflow.sinks.kafka.frames import last_cut
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.state import TopicRange, TopicState
from cdcflow.sinks.kafka.topics import Topics


class OpenHistory(Protocol):
    """A history opened for adding to it: `FolderHistory` of `sinks.files`, `StoredHistory` of `sinks.objects`."""

    @property
    def layout(self) -> Layout: ...
    @property
    def lease(self) -> Lease: ...
    @property
    def newest(self) -> Segment | None: ...
    @property
    def checkpoint(self) -> Checkpoint | None: ...
    def sealer(self, topic: str, bytes_max: int) -> Callable[[Iterable[Message]], Iterator[str]]: ...
    def put(self, directory: str, shapes: SchemaHistory | None = None) -> Segment: ...
    def origin(self) -> Mapping[str, Any]: ...


OpeningHistory = Callable[[str, SourceIdentity, int, int], AbstractContextManager[OpenHistory]]
"""A function that opens the history of a log, given the log's id, its source, the first offset of a new history, and
the log's next offset."""


class KafkaTier:
    """A log in Kafka with its history, in a folder or where `layout` specifies. Implements `cdcflow.ports.Tier`.

    A segment ends at the first cut after `segment_bytes` of the topic. `open_history`: for a history that is not in a
    folder.
    """

    def __init__(
        self,
        topics: Topics,
        history: Path | Layout,
        segment_bytes: int = SEGMENT_BYTES_MAX,
        open_history: OpeningHistory | None = None,
    ) -> None:
        self.topics = topics
        self.layout = Layout.of(history)
        self._segment_bytes = segment_bytes
        self._open_history = open_history or self._open_folder

    def topic(self) -> TopicAddress:
        """Return the address of the log's topic."""
        return TopicAddress(self.topics.brokers, self.topics.name, self.topics.options)

    @contextmanager
    def open(self) -> Iterator[OpenedTier]:
        """Find out which part is to be sealed, and hold the history's lock until the end of the context.

        Raises:
            ConfigurationError: there is no log, the history is another log's, or it is ahead of the topic.
            HistoryLost: the brokers have deleted the next part.
            SinkUnavailable: the brokers do not answer, or another process is adding to the history.
        """
        state = KafkaReader(self.topics).state()
        _wait_until_shown(self.topics, state)
        with self.topics.reader(self.topics.name) as found:
            low, end = found.bounds()
        readable = [s for s in state.topic_ranges if s.topic_offset >= low]
        first = readable[0].first_offset if readable else state.checkpoint.next_offset
        if state.identity is None:
            raise ConfigurationError(
                f"sealing topic {self.topics.name}: it has a log id and no source", runbook="log-damaged"
            )
        with self._open_history(state.log_id, state.identity, first, state.checkpoint.next_offset) as history:
            begin = self._begin(state, history, readable)
            tail = None
            if begin is not None:
                tail = TopicTail(self.topic(), begin.topic_offset, end)
            yield OpenedTier(history, state, tail, history.sealer(self.topics.name, self._segment_bytes))

    def _open_folder(self, log_id: str, source: SourceIdentity, first: int, next_offset: int) -> FolderHistory:
        return FolderHistory.open(self.layout.root, log_id, source, first)

    def _begin(self, state: TopicState, history: OpenHistory, readable: list[TopicRange]) -> TopicRange | None:
        """The topic range that contains what follows the history; None if no row follows."""
        at, newest = history.checkpoint, state.checkpoint
        where = f"sealing topic {self.topics.name} into the history {self.layout.name}"
        if at is not None and (at.next_offset, at.cut) > (newest.next_offset, newest.cut):
            raise ConfigurationError(
                f"{where}: the history ends with cut {at.cut} (offset {at.next_offset - 1}), and the topic with cut "
                f"{newest.cut} (offset {newest.next_offset - 1}), so the topic is an older copy of the log",
                remedy="name the latest topic, or another folder in log.kafka.history and another warehouse",
                runbook="other-log",
            )
        next_offset = history.layout.log_file().first_offset if at is None else at.next_offset
        if next_offset >= newest.next_offset:
            return None
        exact = next((s for s in readable if s.first_offset == next_offset), None)
        before = [s for s in readable if s.first_offset < next_offset]
        if exact is not None or before:
            return exact or before[-1]
        there = f"the first one left is {readable[0].first_offset}" if readable else "nothing is left"
        raise HistoryLost(
            f"{where}: offset {next_offset} is next, and the brokers have removed it ({there})",
            remedy="move the history away, run `cdcflow backfill`, then merge again; keep records in the topic "
            "for longer",
            runbook="topic-expired",
        )


class OpenedTier:
    """A tier while its history is held. `tail` is None if nothing is to be sealed; `sealer` is for one reading."""

    def __init__(
        self,
        history: OpenHistory,
        state: TopicState,
        tail: TopicTail | None,
        sealer: Callable[[Iterable[Message]], Iterator[str]],
    ) -> None:
        self.history = history
        self.state = state
        self.tail = tail
        self.sealer = sealer

    @property
    def newest(self) -> Checkpoint:
        """The latest checkpoint that the log had when this was opened."""
        return self.state.checkpoint

    def put(self, directory: str) -> None:
        """Add one segment that the sealer wrote to the history."""
        self.history.put(directory, self.state.shapes)

    def origin(self) -> Mapping[str, Any]:
        """Return where the history ends in the topic."""
        return self.history.origin()


def _wait_until_shown(topics: Topics, state: TopicState) -> None:
    """Wait until the log's topic shows the latest cut of the state: a commit does not appear in both at once."""
    deadline = time.monotonic() + topics.wait_s
    while (cut := last_cut(topics, state)) is not None and cut < state.checkpoint.cut:
        if time.monotonic() > deadline:
            raise SinkUnavailable(f"reading topic {topics.name}: cut {state.checkpoint.cut} does not become visible")
        time.sleep(0.01)


class TieredReader:
    """Reads a log in Kafka that has a history: what is sealed from files, only the rest from the brokers.

    Implements `cdcflow.ports.LogReader`; may be used while the daemon and a merge run. While there is no history it
    reads the topic.
    """

    def __init__(self, topics: Topics, history: Path | Layout) -> None:
        self._tail = KafkaReader(topics)
        self._layout = Layout.of(history)
        self.name = self._tail.name

    def exists(self) -> bool:
        return self._tail.exists()

    def newest_checkpoint(self) -> Checkpoint:
        return self._tail.newest_checkpoint()

    def table_shapes(self) -> dict[TableId, dict[int, Table]]:
        return self._tail.table_shapes()

    def topic_ranges(self) -> list[TopicRange]:
        """The parts of the topic that can still be read, oldest first."""
        return self._tail.topic_ranges()

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]:
        """The log's rows between two offsets (both inclusive; `to_offset` None: up to the latest cut)."""
        sealed = self._history_end()
        if from_offset < sealed:
            last = sealed - 1 if to_offset is None else min(to_offset, sealed - 1)
            yield from reader.read_rows(self._layout, from_offset, last, tables)
        if to_offset is None or to_offset >= sealed:
            yield from self._tail.read_rows(max(from_offset, sealed), to_offset, tables)

    def read_transactions(self, from_offset: int = 1, to_offset: int | None = None) -> Iterator[pa.Table]:
        """The headers of the transactions with a row between two offsets, in order."""
        sealed = self._history_end()
        if from_offset < sealed:
            last = sealed - 1 if to_offset is None else min(to_offset, sealed - 1)
            yield from reader.read_transactions(self._layout, from_offset, last)
        if to_offset is None or to_offset >= sealed:
            yield from self._tail.read_transactions(max(from_offset, sealed), to_offset)

    def check(self, *, deep: bool = False) -> CheckReport:
        """Read the whole history and topic and report what is wrong with either, or between them."""
        if not self._layout.exists():
            return self._tail.check(deep=deep)
        self._history_end()
        history, topic = check.check(self._layout, deep=deep), self._tail.check(deep=deep, history=self._layout)
        faults = [*history.faults, *topic.faults]
        if topic.first_offset > history.next_offset:
            text = f"offsets {history.next_offset} to {topic.first_offset - 1} are in neither"
            faults.append(Fault(f"{self._layout.name} and {self.name}", text))
        return replace(
            topic,
            faults=tuple(faults),
            segments=history.segments,
            transactions=history.transactions + topic.transactions,
            rows=history.rows + topic.rows,
            bytes=history.bytes + topic.bytes,
            first_offset=min(history.first_offset, topic.first_offset),
            next_offset=max(history.next_offset, topic.next_offset),
        )

    def _history_end(self) -> int:
        """The offset after the history."""
        if not self._layout.exists():
            return 0
        file = self._layout.log_file()
        state = self._tail.state()
        if file.log_id != state.log_id:
            raise ConfigurationError(
                f"reading the log in {self.name}: the history {self._layout.name} belongs to another log "
                f"({file.log_id}, the topic has {state.log_id})",
                remedy="set log.kafka.history to another place, or move that one away",
                runbook="other-log",
            )
        offsets = self._layout.segments_behind(state.checkpoint.next_offset)
        return offsets[-1][1] + 1 if offsets else file.first_offset
