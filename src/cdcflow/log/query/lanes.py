"""Merge the rows of several logs in the order of their transactions.

A round takes the transactions of every log up to a horizon, the smallest clock up to which the headers of all logs have
been read, and sorts them. Where the order switches to another log, the reading of rows stops: each log is read in
windows, ahead of the others, and its pieces are returned when it is their turn. So memory holds one window per log,
however often the order alternates between logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdcflow.log.query.batches import RowsPiece, pieces
from cdcflow.log.read.commit_order import COMMIT_CLOCK, in_commit_order
from cdcflow.log.read.log_reader import LogReader
from cdcflow.log.read.reader import LogRows
from cdcflow.model.change import Int64s
from cdcflow.model.table import OFFSET, TableId

HEADERS_AT_ONCE = 10_000
"""How many transactions of each log are ordered at a time, if it has that many. A small number would be slow for a
log in Kafka, which returns headers in small batches, because the rows are requested again for each round."""

_NONE: Int64s = np.empty(0, np.int64)
_FIELD = pa.field(COMMIT_CLOCK, pa.timestamp("us", "UTC"), nullable=False)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows to read. `tables`: those of each log (`None`: all tables of all logs); `ops`: see `batches.pieces`."""

    tables: Mapping[str, Collection[TableId]] | None
    ops: str | None
    rows_max: int


class Lane:
    """A log's transactions after an offset, up to another offset and to a commit clock (both inclusive). `at`: the last
    offset of the transactions that were taken."""

    def __init__(self, name: str, log: LogReader, after: int, last: int, clock: int) -> None:
        self.name = name
        self._log = log
        self.at = after
        self._clock = clock
        self._headers = log.read_transactions(after + 1, last) if after < last else iter(())
        self._clocks, self._ends = _NONE, _NONE
        self.is_done = False
        self._pieces: Iterator[RowsPiece] = iter(())
        self._next: RowsPiece | None = None
        self._taken = _NONE, _NONE

    @property
    def horizon(self) -> int | None:
        """The clock up to which all headers have been read, or None if all headers have been read."""
        while not self.is_done and not len(self._clocks):
            self._read()
        return None if self.is_done else int(self._clocks[-1])

    def _read(self) -> None:
        clocks, ends, count = [_NONE], [_NONE], 0
        while not self.is_done and count < HEADERS_AT_ONCE:
            headers = next(self._headers, None)
            if headers is None:
                self.is_done = True
                break
            found = self._clocks_of(headers)
            taken = int(np.searchsorted(found, self._clock, "right"))
            self.is_done = taken < len(found)
            clocks.append(found[:taken])
            ends.append(headers.column("last_offset").to_numpy()[:taken])
            count += taken
        self._clocks, self._ends = np.concatenate(clocks), np.concatenate(ends)

    @staticmethod
    def _clocks_of(headers: pa.Table) -> Int64s:
        clocks: Int64s = headers.column("commit_clock").cast(pa.int64()).to_numpy()
        return clocks

    def take(self, horizon: int | None) -> tuple[Int64s, Int64s]:
        """Return the clocks and last offsets of the transactions up to a horizon (inclusive; `None`: all that have been
        read)."""
        count = len(self._clocks) if horizon is None else int(np.searchsorted(self._clocks, horizon, "right"))
        self._taken = self._clocks[:count], self._ends[:count]
        self._clocks, self._ends = self._clocks[count:], self._ends[count:]
        return self._taken

    def begin(self, stops: Int64s, wanted: Wanted) -> None:
        """Start reading the rows of the transactions taken, in pieces that end at these stops."""
        tables = None if wanted.tables is None else wanted.tables[self.name]
        first, self._pieces, self._next = self.at + 1, iter(()), None
        if not len(stops):
            return
        self.at = int(stops[-1])
        if tables is None or tables:
            rows = _Clocked(self._log, *self._taken)
            self._pieces = pieces(rows, first, self.at, tables, wanted.ops, wanted.rows_max, stops)
            self._next = next(self._pieces, None)

    def upto(self, end: int) -> Iterator[RowsPiece]:
        """Yield the pieces up to an offset, which is a stop."""
        while self._next is not None and self._next.last <= end:
            piece, self._next = self._next, None
            yield piece
            self._next = next(self._pieces, None)


class _Clocked:
    """A log's rows with the commit clock of their transactions, given the clocks and last offsets of these
    transactions."""

    def __init__(self, log: LogReader, clocks: Int64s, ends: Int64s) -> None:
        self._clocks = clocks
        self._ends = ends
        self._log = log
        self.read_transactions = log.read_transactions

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]:
        for shape, version, rows in self._log.read_rows(from_offset, to_offset, tables):
            of_row = self._clocks[np.searchsorted(self._ends, rows.column(OFFSET).to_numpy())]
            yield shape, version, rows.append_column(_FIELD, pa.array(of_row).cast(_FIELD.type))


def merge_lanes(lanes: Sequence[Lane], wanted: Wanted) -> Iterator[tuple[Lane, RowsPiece]]:
    """Yield the pieces of all logs in one order. `lanes` must be in the order of their names.

    Raises:
        HistoryLost: the next rows have expired.
    """
    while True:
        horizons = [known for lane in lanes if (known := lane.horizon) is not None]
        horizon = min(horizons, default=None)
        taken = [lane.take(horizon) for lane in lanes]
        if not any(len(clocks) for clocks, _ in taken):
            return
        which, ends = in_commit_order([clocks for clocks, _ in taken], [last for _, last in taken])
        for number, lane in enumerate(lanes):
            lane.begin(ends[which == number], wanted)
        for number, end in zip(which.tolist(), ends.tolist(), strict=True):
            for piece in lanes[number].upto(end):
                yield lanes[number], piece
