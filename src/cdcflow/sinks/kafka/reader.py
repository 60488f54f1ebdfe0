"""Reads a log in Kafka without being its writer. Committed records only, and whole cuts only.

The state records where each range of the topic begins; its frames are read like those of a journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.log.format.framing import FrameKind
from cdcflow.log.format.journal import CutMark, JournalHeader, Owners
from cdcflow.log.format.records import RangeDecoder
from cdcflow.log.format.rows import ShapeEntry, ShapeRows
from cdcflow.log.format.transactions import TransactionHeaders, join_headers
from cdcflow.log.read.check import CheckReport
from cdcflow.log.read.reader import LogLocation, LogRows
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId
from cdcflow.sinks.kafka.check import check
from cdcflow.sinks.kafka.frames import read_state
from cdcflow.sinks.kafka.state import TopicRange, TopicState
from cdcflow.sinks.kafka.topics import Admin, PartitionReader, Topics

_END = (FrameKind.TRANSACTIONS, FrameKind.CUT)
_NO_OFFSET = 1 << 62


@dataclass(slots=True)
class Context:
    """The facts that a row's frame does not contain: the preceding transactions and shapes."""

    run: TransactionHeaders | None = None
    versions: dict[Table, int] = field(default_factory=dict)
    _owners: Owners | None = None

    def begin(self, run: TransactionHeaders) -> None:
        self.run, self._owners = run, None

    def has(self, rows: ShapeRows) -> bool:
        """Whether the rows have offsets of the run that was announced last."""
        run, offsets = self.run, rows.offsets
        return run is not None and run.first_offset <= offsets[0] and int(offsets[-1]) < run.next_offset

    def log_rows(self, rows: ShapeRows, first: int, last: int) -> LogRows | None:
        """The rows between two offsets (both inclusive), in the log's columns; None if there are no such rows."""
        a, b = np.searchsorted(rows.offsets, (first, last + 1))
        if self.run is None or a >= b:
            return None
        if self._owners is None:
            self._owners = Owners.of(self.run.headers)
        table = rows.shape.table
        batch = self._owners.log_rows(table, rows.offsets[a:b], rows.rows.slice(a, b - a))
        return table, self.versions[table], pa.Table.from_batches([batch])


class TopicCursor:
    """Reads a log's topic starting at the head of a range, in any number of steps, and misses no offset.

    `topic_offset` is where the next step begins. Rows of offsets below `before` need not be returned.
    """

    def __init__(
        self, topics: Topics, begin: TopicRange, wanted: Iterable[FrameKind] | None = None, before: int = 0
    ) -> None:
        self._name = f"topic {topics.name}"
        self._decoder = RangeDecoder(self._name, wanted, before)
        self._next_offset = begin.first_offset
        self._context = Context()
        self.topic_offset = begin.topic_offset

    def read(self, reader: PartitionReader, end: int) -> Iterator[tuple[object, Context]]:
        """The contents of the frames up to the offset `end` of the topic.

        Raises:
            InvariantViolated: something is missing, or cdcflow did not write it.
        """
        for message in reader.messages(self.topic_offset, end):
            self.topic_offset = message.topic_offset + 1
            found = self._decoder.take(message)
            if found is None:
                continue
            match found.record:
                case ShapeEntry():
                    self._context.versions[found.record.table] = found.record.version
                case TransactionHeaders() | JournalHeader():
                    if found.record.first_offset != self._next_offset:
                        raise InvariantViolated(
                            f"reading the log in {self._name}: topic offset {found.topic_offset} has offset "
                            f"{found.record.first_offset} instead of {self._next_offset}",
                            runbook="log-damaged",
                        )
                    if isinstance(found.record, TransactionHeaders):
                        self._next_offset = found.record.next_offset
                        self._context.begin(found.record)
                case ShapeRows() if not self._context.has(found.record):
                    raise InvariantViolated(
                        f"reading the log in {self._name}: the rows at topic offset {found.topic_offset} have offsets "
                        f"{found.record.offsets[0]} to {found.record.offsets[-1]}, which are not those of their run",
                        runbook="log-damaged",
                    )
                case CutMark() if found.record.checkpoint.next_offset != self._next_offset:
                    raise InvariantViolated(
                        f"reading the log in {self._name}: cut {found.record.checkpoint.cut} at topic offset "
                        f"{found.topic_offset} is at offset {found.record.checkpoint.next_offset}, and the rows "
                        f"before it end at {self._next_offset}",
                        runbook="log-damaged",
                    )
                case _:
                    pass
            yield found.record, self._context


class KafkaReader:
    """Reads a log in Kafka. Implements `cdcflow.ports.LogReader`; may be used while the daemon runs."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.name = f"topic {topics.name}"

    def exists(self) -> bool:
        """Whether a log is in this topic."""
        return self.find_state() is not None

    def find_state(self) -> TopicState | None:
        """The current state in the checkpoint's topic; None if no log is in this topic."""
        there = Admin(self._topics, f"reading the log in {self.name}").partitions()
        if not {self._topics.name, self._topics.state} <= there.keys():
            return None
        found = read_state(self._topics)
        return found if found.log_id else None

    def newest_checkpoint(self) -> Checkpoint:
        """The checkpoint of the latest durable cut (`cut` is 0 before the first one)."""
        return self.state().checkpoint

    def table_shapes(self) -> dict[TableId, dict[int, Table]]:
        """Every table's shapes by version number, oldest first."""
        return self.state().shapes.shapes()

    def topic_ranges(self) -> list[TopicRange]:
        """The parts of the topic that can still be read, oldest first."""
        with self._topics.reader(self._topics.name) as reader:
            return _readable(self.state(), reader.bounds()[0])

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]:
        """The log's rows between two offsets (both inclusive; `to_offset` None: up to the latest cut), run by run.

        Raises:
            HistoryLost: the brokers have deleted `from_offset`.
            InvariantViolated: something is missing, or cdcflow did not write it.
        """
        to = _NO_OFFSET if to_offset is None else to_offset
        with self._from(from_offset) as found:
            for record, context in found:
                if isinstance(record, TransactionHeaders) and record.first_offset > to:
                    return
                if not isinstance(record, ShapeRows) or not (tables is None or record.shape.table.id in tables):
                    continue
                rows = context.log_rows(record, from_offset, to)
                if rows is not None:
                    yield rows

    def read_transactions(self, from_offset: int = 1, to_offset: int | None = None) -> Iterator[pa.Table]:
        """The headers (`TRANSACTIONS_SCHEMA`) of the transactions with a row between two offsets, in order."""
        to = _NO_OFFSET if to_offset is None else to_offset
        with self._from(from_offset, _END) as found:
            for record, _ in found:
                if not isinstance(record, TransactionHeaders) or record.next_offset <= from_offset:
                    continue
                if record.first_offset > to:
                    return
                yield headers_of([record], from_offset, to)

    def check(self, *, deep: bool = False, history: LogLocation | None = None) -> CheckReport:
        """Read the whole log and report what is wrong with it. `history`: where the log is sealed."""
        return check(self._topics, deep=deep, history=history)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> TopicState:
        """The current state in the checkpoint's topic. ConfigurationError: there is no log."""
        if (found := self.find_state()) is None:
            raise ConfigurationError(f"reading the log in {self.name}: there is no log there", runbook="no-log")
        return found

    @contextmanager
    def _from(
        self, offset: int, wanted: Iterable[FrameKind] | None = None
    ) -> Iterator[Iterator[tuple[object, Context]]]:
        with self._topics.reader(self._topics.name) as reader:
            low, end = reader.bounds()
            begin = self.range_of(offset, low)
            yield iter(()) if begin is None else TopicCursor(self._topics, begin, wanted).read(reader, end)

    def range_of(self, offset: int, low: int) -> TopicRange | None:
        """The topic range that has an offset (or will have it), of those starting at topic offset `low` or later.

        None if there is no range yet.

        Raises:
            HistoryLost: the brokers have deleted it.
        """
        readable = _readable(self.state(), low)
        if not readable:
            return None
        begin = [s for s in readable if s.first_offset <= max(offset, 1)]
        if not begin:
            raise HistoryLost(
                f"reading the log in {self.name} from offset {offset}: the brokers have removed it; the first one "
                f"left is {readable[0].first_offset}",
                remedy="start from the current-state tables instead, or from the first offset that is left",
                runbook="topic-expired",
            )
        return begin[-1]


def headers_of(runs: Sequence[TransactionHeaders], first: int, last: int) -> pa.Table:
    """The headers of those of some runs' transactions that have a row between two offsets."""
    headers = pa.Table.from_batches([join_headers(runs)])
    begins, ends = headers.column("first_offset").to_numpy(), headers.column("last_offset").to_numpy()
    return headers.filter(pa.array((ends >= max(first, 1)) & (ends >= begins) & (begins <= last)))


def _readable(state: TopicState, low: int) -> list[TopicRange]:
    return [s for s in state.topic_ranges if s.topic_offset >= low]
