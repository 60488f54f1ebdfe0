"""The tail of a log in Kafka.

Where the publisher stands, this stands too: what has come since is read on from there, decoded once, and held until it
is published. Only the beginning looks for the stretch that has the first offset, and reads over what is before it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdcflow.changelog.journal import CutMark
from cdcflow.changelog.reader import LogRows
from cdcflow.changelog.rows import Rows
from cdcflow.changelog.transactions import Transactions
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OFFSET
from cdcflow.sinks.kafka.frames import last_cut, read_state
from cdcflow.sinks.kafka.reading import KafkaReader, Walk, headers_of
from cdcflow.sinks.kafka.state import State
from cdcflow.sinks.kafka.topics import Topics

TURN_S = 0.5
"""After reading for so long, what has come up to then is given out, at a cut."""
HELD_BYTES_MAX = 64 << 20
"""So much is read ahead, up to the next cut. Where twice as much comes before a cut, nothing is held: that group is
read from its stretch's beginning, once for its headers and once for its rows."""


@dataclass(slots=True)
class _Run:
    """A run of transactions, with the rows that came of it."""

    transactions: Transactions
    rows: list[LogRows] = field(default_factory=list)
    bytes: int = 0


class KafkaTail:
    """The tail of a log in Kafka, for `publisher`. Works beside the daemon that writes it. Used by one thread."""

    def __init__(self, topics: Topics, held_bytes_max: int = HELD_BYTES_MAX, turn_s: float = TURN_S) -> None:
        self._topics = topics
        self._log = KafkaReader(topics)
        state = read_state(topics)
        if state.identity is None:
            raise ConfigurationError(f"publishing the log in {self._log.name}: there is no log there")
        self.log_id: str = state.log_id
        self.identity: SourceIdentity = state.identity
        self._held_bytes_max = held_bytes_max
        self._turn_s = turn_s
        self._reader = topics.reader(topics.name)
        self._state = topics.reader(topics.state)
        self._said = (-1, 1)
        self._next_offset = 1
        self._walk: Walk | None = None
        self._held: deque[_Run] = deque()
        self._bytes = 0
        self._from = 1
        self._unheld = 0
        """The offset that a group begins with which is too large to be held."""

    def next_offset(self) -> int:
        return self._next_in_state()

    def ready(self, first: int) -> int:
        if first != self._unheld and (self._walk is None or first < self._from):
            self._begin(first)
        self._let_go(first)
        if self._walk is not None and self._bytes < self._held_bytes_max:
            self._read_on(self._walk)
        if self._walk is None:
            return max(first, self._next_in_state())
        return self._next_offset if self._held else first

    def transactions(self, first: int, last: int) -> Iterator[pa.Table]:
        self._hold(first)
        if self._walk is None:
            yield from self._log.read_transactions(first, last)
            return
        wanted = [run.transactions for run in self._held if run.transactions.first_offset <= last]
        yield headers_of(wanted, first, last)

    def rows(self, first: int, last: int) -> Iterator[LogRows]:
        if self._walk is None:
            yield from self._log.read_rows(first, last)
            return
        for run in self._held:
            if run.transactions.first_offset > last:
                break
            for table, version, rows in run.rows:
                a, b = np.searchsorted(rows.column(OFFSET).to_numpy(), (first, last + 1))
                if a < b:
                    yield table, version, rows.slice(a, b - a)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _hold(self, first: int) -> None:
        """Have what begins with this offset, or as much of it as may be held."""
        if first != self._unheld and (self._walk is None or first < self._from):
            self._begin(first)
        self._let_go(first)
        deadline = time.monotonic() + self._topics.wait_s
        while self._walk is not None and not self._held:
            self._read_on(self._walk)
            if self._walk is not None and not self._held:
                if time.monotonic() > deadline:
                    raise self._silent()
                time.sleep(0.005)

    def _begin(self, first: int) -> None:
        self._forget()
        self._from = first
        begin = self._log.stretch_of(first, self._reader.bounds()[0])
        self._walk = None if begin is None else Walk(self._topics, begin, before=first)

    def _forget(self) -> None:
        self._walk = None
        self._held.clear()
        self._bytes = 0

    def _let_go(self, first: int) -> None:
        """What is before this offset is not asked for again."""
        self._from = max(self._from, first)
        while self._held and self._held[0].transactions.next_offset <= self._from:
            self._bytes -= self._held.popleft().bytes

    def _read_on(self, walk: Walk) -> None:
        """Hold what has come since, up to a cut; after a moment up to the first one that comes."""
        until = time.monotonic() + self._turn_s
        end = self._reader.bounds()[1]
        if end < walk.place:
            raise SinkUnavailable(
                f"publishing the log in {self._log.name}: it was read up to place {walk.place}, and ends at {end} now"
            )
        coming: list[_Run] = []
        for record, context in walk.read(self._reader, end):
            match record:
                case Transactions():
                    coming.append(_Run(record))
                case Rows():
                    found = context.log_rows(record, self._from, coming[-1].transactions.next_offset)
                    if found is not None:
                        coming[-1].rows.append(found)
                        coming[-1].bytes += found[2].nbytes
                        self._bytes += found[2].nbytes
                case CutMark():
                    self._held += [run for run in coming if run.transactions.next_offset > self._from]
                    coming = []
                    self._next_offset = int(record.checkpoint.next_offset)
                    if self._bytes >= self._held_bytes_max or time.monotonic() >= until:
                        return
                case _:
                    pass
            if self._bytes >= 2 * self._held_bytes_max:
                self._forget()
                self._unheld = self._from
                return

    def _next_in_state(self) -> int:
        end = self._state.bounds()[1]
        if end != self._said[0]:
            state = read_state(self._topics)
            self._wait_for_rows(state)
            self._said = (end, int(state.checkpoint.next_offset))
        return self._said[1]

    def _wait_for_rows(self, state: State) -> None:
        # A commit comes to be seen in each topic by itself: a cut may be told a moment before its rows can be read.
        deadline = time.monotonic() + self._topics.wait_s
        while (shown := last_cut(self._topics, state)) is not None and shown < state.checkpoint.cut:
            if time.monotonic() > deadline:
                raise self._silent()
            time.sleep(0.005)

    def _silent(self) -> SinkUnavailable:
        return SinkUnavailable(f"publishing the log in {self._log.name}: the rows of its newest cut do not come")


__all__ = ["HELD_BYTES_MAX", "KafkaTail"]
