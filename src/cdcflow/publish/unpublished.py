"""Common to both kinds of tails: holds the rows that were read and are not published yet.

The cursor stays at the publisher's position: new rows are read from there, decoded once, and held until they are
published. Only the beginning skips over earlier data.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from cdcflow.errors import SinkUnavailable
from cdcflow.log.format.journal import CutMark
from cdcflow.log.format.rows import ShapeRows
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.log.read.reader import LogRows
from cdcflow.model.table import OFFSET
from cdcflow.sinks.kafka.reader import Context, headers_of

TURN_S = 0.5
"""After reading for this long, the rows read so far are passed on, at a cut."""
HELD_BYTES_MAX = 64 << 20
"""The limit on bytes read ahead, up to the next cut.

If twice as much arrives before a cut, nothing is held: that group is read from the log twice, once for its headers and
once for its rows.
"""
CursorT = TypeVar("CursorT")


@dataclass(slots=True)
class _HeldRun:
    """A run of transactions, with the rows read for it."""

    transactions: TransactionHeaders
    rows: list[LogRows] = field(default_factory=list)
    bytes: int = 0


class HeldTail(ABC, Generic[CursorT]):
    """A tail that reads its log with a cursor. Used by one thread.

    The cursor is `None` if there currently cannot be one: the log is then read as any other reader reads it.
    """

    wait_s: float

    def __init__(self, held_bytes_max: int, turn_s: float) -> None:
        self._held_bytes_max = held_bytes_max
        self._turn_s = turn_s
        self._next_offset = 1
        self._cursor: CursorT | None = None
        self._held: deque[_HeldRun] = deque()
        self._bytes = 0
        self._from = 1
        self.progress: Mapping[str, object] = {}
        self.progress_at = 1
        self._unheld = 0
        """The first offset of a group that is too large to be held."""

    # ── specific to a kind of log ───────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def next_offset(self) -> int: ...

    @abstractmethod
    def _cursor_from(self, first: int) -> CursorT | None:
        """Return a cursor that returns at least everything starting at this offset."""

    @abstractmethod
    def _records(self, cursor: CursorT) -> Iterator[tuple[object, Context]]:
        """Yield the records that were added since, up to a cut. Raises FileNotFoundError if the cursor must be
        restarted."""

    @abstractmethod
    def _settle(self) -> None:
        """Prepare for passing on the rows that were read last; for a log in files, make them durable."""

    @abstractmethod
    def _headers(self, first: int, last: int) -> Iterator[pa.Table]: ...

    @abstractmethod
    def _rows(self, first: int, last: int) -> Iterator[LogRows]: ...

    @abstractmethod
    def _silent(self) -> SinkUnavailable:
        """Return the error for expected data that does not arrive."""

    # ── the tail ────────────────────────────────────────────────────────────────────────────────────────────

    def ready(self, first: int) -> int:
        if first != self._unheld and (self._cursor is None or first < self._from):
            self._begin(first)
        self._let_go(first)
        if self._cursor is not None and self._bytes < self._held_bytes_max:
            self._read_on(self._cursor)
        if self._cursor is None:
            return max(first, self.next_offset())
        return self._next_offset if self._held else first

    def transactions(self, first: int, last: int) -> Iterator[pa.Table]:
        self._hold(first)
        if self._cursor is None:
            yield from self._headers(first, last)
            return
        wanted = [run.transactions for run in self._held if run.transactions.first_offset <= last]
        yield headers_of(wanted, first, last)

    def rows(self, first: int, last: int) -> Iterator[LogRows]:
        if self._cursor is None:
            yield from self._rows(first, last)
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
        """Hold the rows from this offset onward, or as many of them as may be held."""
        if first != self._unheld and (self._cursor is None or first < self._from):
            self._begin(first)
        self._let_go(first)
        deadline = time.monotonic() + self.wait_s
        while self._cursor is not None and not self._held:
            self._read_on(self._cursor)
            if self._cursor is not None and not self._held:
                if time.monotonic() > deadline:
                    raise self._silent()
                time.sleep(0.005)

    def _begin(self, first: int) -> None:
        self._forget()
        self._from = first
        self._cursor = self._cursor_from(first)

    def _forget(self) -> None:
        self._cursor = None
        self._held.clear()
        self._bytes = 0

    def _let_go(self, first: int) -> None:
        """Release the rows before this offset."""
        self._from = max(self._from, first)
        while self._held and self._held[0].transactions.next_offset <= self._from:
            self._bytes -= self._held.popleft().bytes

    def _read_on(self, cursor: CursorT) -> None:
        """Hold the rows that were added since. If the log was changed in the meantime, restart the cursor with the next
        call."""
        before = self._next_offset
        try:
            self._take(cursor)
        except FileNotFoundError:
            self._forget()
        if self._next_offset != before:
            self._settle()

    def _take(self, cursor: CursorT) -> None:
        """Hold the rows that were added since, up to a cut; after a short time, only up to the next cut."""
        until = time.monotonic() + self._turn_s
        coming: list[_HeldRun] = []
        for record, context in self._records(cursor):
            match record:
                case TransactionHeaders():
                    coming.append(_HeldRun(record))
                case ShapeRows():
                    found = context.log_rows(record, self._from, coming[-1].transactions.next_offset)
                    if found is not None:
                        coming[-1].rows.append(found)
                        coming[-1].bytes += found[2].nbytes
                        self._bytes += found[2].nbytes
                case CutMark():
                    self._held += [run for run in coming if run.transactions.next_offset > self._from]
                    coming = []
                    self._next_offset = int(record.checkpoint.next_offset)
                    self.progress, self.progress_at = record.checkpoint.progress, self._next_offset
                    if self._bytes >= self._held_bytes_max or time.monotonic() >= until:
                        return
                case _:
                    pass
            if self._bytes >= 2 * self._held_bytes_max:
                self._forget()
                self._unheld = self._from
                return
