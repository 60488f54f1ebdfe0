"""Reading a log in Kafka without being its writer. Committed records only, and whole cuts only.

The state says where each stretch of the topic begins; from there on its frames are read as those of a journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdcflow.changelog.checking import Report
from cdcflow.changelog.framing import FrameKind
from cdcflow.changelog.journal import JournalHeader, Owners
from cdcflow.changelog.reader import LogRows
from cdcflow.changelog.rows import Rows, Shape
from cdcflow.changelog.transactions import Transactions
from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId
from cdcflow.sinks.kafka.checking import check
from cdcflow.sinks.kafka.frames import frames, read_state
from cdcflow.sinks.kafka.state import State, Stretch
from cdcflow.sinks.kafka.topics import Admin, Reader, Topics

_END = (FrameKind.TRANSACTIONS, FrameKind.CUT)
_NO_OFFSET = 1 << 62


@dataclass(slots=True)
class _Place:
    """Where a reader stands in the topic: whose rows come, and what was announced."""

    owners: Owners | None = None
    run: Transactions | None = None
    versions: dict[Table, int] = field(default_factory=dict)


class KafkaReader:
    """Reads a log in Kafka. Implements `cdcflow.ports.LogReader`; may be used beside the daemon."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.name = f"topic {topics.name}"

    def exists(self) -> bool:
        """There is a log in this topic."""
        there = Admin(self._topics, f"reading the log in {self.name}").partitions()
        return {self._topics.name, self._topics.state} <= there.keys() and bool(read_state(self._topics).log_id)

    def newest_checkpoint(self) -> Checkpoint:
        """The checkpoint of the newest durable cut (`cut` 0: none yet)."""
        return self.state().checkpoint

    def table_shapes(self) -> dict[TableId, dict[int, Table]]:
        """Every table's shapes by version number, oldest first."""
        return self.state().shapes.shapes()

    def stretches(self) -> list[Stretch]:
        """The parts of the topic that can still be read, oldest first."""
        with self._topics.reader(self._topics.name) as reader:
            return _readable(self.state(), reader.bounds()[0])

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]:
        """The log's rows from one offset to another (both inclusive; None: up to the newest cut), run by run.

        Raises:
            HistoryLost: the brokers have let go of `from_offset`.
            InvariantViolated: something is missing, or cdcflow did not write it.
        """
        to = _NO_OFFSET if to_offset is None else to_offset
        with self._from(from_offset) as found:
            for record, place in found:
                if isinstance(record, Transactions) and record.first_offset > to:
                    return
                if not isinstance(record, Rows) or place.owners is None:
                    continue
                table = record.shape.table
                if tables is not None and table.id not in tables:
                    continue
                a, b = np.searchsorted(record.offsets, (from_offset, to + 1))
                if a < b:
                    batch = place.owners.log_rows(table, record.offsets[a:b], record.rows.slice(a, b - a))
                    yield table, place.versions[table], pa.Table.from_batches([batch])

    def read_transactions(self, from_offset: int = 1, to_offset: int | None = None) -> Iterator[pa.Table]:
        """The headers (`TRANSACTIONS_SCHEMA`) of the transactions with a row from one offset to another, in order."""
        to = _NO_OFFSET if to_offset is None else to_offset
        with self._from(from_offset, _END) as found:
            for record, _ in found:
                if not isinstance(record, Transactions) or record.next_offset <= from_offset:
                    continue
                if record.first_offset > to:
                    return
                headers = pa.Table.from_batches([record.headers])
                first, last = headers.column("first_offset").to_numpy(), headers.column("last_offset").to_numpy()
                yield headers.filter(pa.array((last >= max(from_offset, 1)) & (last >= first) & (first <= to)))

    def check(self, *, deep: bool = False) -> Report:
        """Read the log through and report what is wrong with it."""
        return check(self._topics, deep=deep)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> State:
        """What the checkpoint's topic says. ConfigurationError: there is no log."""
        if not self.exists():
            raise ConfigurationError(f"reading the log in {self.name}: there is no log there")
        return read_state(self._topics)

    @contextmanager
    def _from(
        self, offset: int, wanted: Iterable[FrameKind] | None = None
    ) -> Iterator[Iterator[tuple[object, _Place]]]:
        state = self.state()
        with self._topics.reader(self._topics.name) as reader:
            low, end = reader.bounds()
            readable = _readable(state, low)
            if not readable:
                yield iter(())
                return
            begin = [s for s in readable if s.first_offset <= max(offset, 1)]
            if not begin:
                raise HistoryLost(
                    f"reading the log in {self.name} from offset {offset}: the brokers have let go of it, the first "
                    f"that is there is {readable[0].first_offset}",
                    remedy="read the current-state tables anew, or start from the first offset that is there",
                )
            yield self._walked(reader, begin[-1], end, wanted)

    def _walked(
        self, reader: Reader, begin: Stretch, end: int, wanted: Iterable[FrameKind] | None
    ) -> Iterator[tuple[object, _Place]]:
        place = _Place()
        next_offset = begin.first_offset
        for placed in frames(reader, begin.place, end, wanted):
            match placed.record:
                case Shape():
                    place.versions[placed.record.table] = placed.record.version
                case Transactions() | JournalHeader():
                    if placed.record.first_offset != next_offset:
                        raise InvariantViolated(
                            f"reading the log in {self.name}: offset {placed.record.first_offset} comes at place "
                            f"{placed.place}, expected was {next_offset}"
                        )
                    if isinstance(placed.record, Transactions):
                        next_offset = placed.record.next_offset
                        place.run, place.owners = placed.record, Owners.of(placed.record.headers)
                case _:
                    pass
            yield placed.record, place


def _readable(state: State, low: int) -> list[Stretch]:
    return [s for s in state.stretches if s.place >= low]


__all__ = ["KafkaReader"]
