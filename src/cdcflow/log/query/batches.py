"""Rows of a log in commit order, cut into batches of one table each.

window    a range of offsets that ends where a transaction ends, if the transaction is not larger than a window
batch     consecutive rows of one shape of a table; it is inside one transaction, or ends where one ends

offsets   1 2 3 │ 4 5 6 7 │ 8        │ : a transaction ends
tables    a a a │ a a b b │ b
batches   ────── ──── ──── ──        1-3, 4-5 (its transaction continues), 6-7, 8
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.log.read.reader import LogRows
from cdcflow.model.change import Int64s
from cdcflow.model.table import OFFSET, OP, TRANSACTION, Table, TableId

WINDOW_ROWS = 1 << 16
"""How many offsets of a log are read at a time. A larger transaction is read, and cut, in several pieces."""
NO_STOPS: Int64s = np.empty(0, np.int64)


class ReadsRows(Protocol):
    """The part of a log's interface that this module uses (`cdcflow.ports.LogReader`)."""

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]: ...
    def read_transactions(self, from_offset: int = 1, to_offset: int | None = None) -> Iterator[pa.Table]: ...


@dataclass(frozen=True, slots=True)
class RowsPiece:
    """Consecutive rows of one shape. `last`: with this piece, everything up to this offset has been returned.
    `ends_transaction`: no more rows of the last row's transaction follow."""

    shape: Table
    rows: pa.Table
    last: int
    ends_transaction: bool


def pieces(
    log: ReadsRows,
    first: int,
    last: int,
    tables: Collection[TableId] | None,
    ops: str | None,
    rows_max: int,
    stops: Int64s = NO_STOPS,
) -> Iterator[RowsPiece]:
    """Yield the log's rows from one offset to another (inclusive; the last one of a transaction), in commit order, at
    most `rows_max` in a piece. No piece extends past one of `stops` (ascending last offsets of transactions).

    Raises:
        HistoryLost: `first` has expired.
    """
    goes_on = False
    for begin, end, is_whole in windows(log, first, last, WINDOW_ROWS):
        parts = [(shape, _of_ops(rows, ops)) for shape, _, rows in log.read_rows(begin, end, tables)]
        found = [part for part in parts if part[1].num_rows]
        yield from _cut(found, end, rows_max, stops, goes_on=goes_on, is_whole=is_whole)
        goes_on = not is_whole


def windows(log: ReadsRows, first: int, last: int, rows_max: int) -> Iterator[tuple[int, int, bool]]:
    """Consecutive ranges of offsets from `first` to `last`, and whether each ends where a transaction ends."""
    at = first
    ends = np.empty(0, np.int64)
    for headers in log.read_transactions(first, last):
        found = np.minimum(headers.column("last_offset").to_numpy(), last)
        ends = np.concatenate([ends, found[found >= at]])
        while len(ends) and ends[-1] - at + 1 >= rows_max:
            end, is_whole = _end(ends, at, rows_max)
            yield at, end, is_whole
            at, ends = end + 1, ends[ends > end]
    while len(ends):
        end, is_whole = _end(ends, at, rows_max)
        yield at, end, is_whole
        at, ends = end + 1, ends[ends > end]
    if at <= last:
        yield at, last, True


def _end(ends: np.ndarray[tuple[int], np.dtype[np.int64]], at: int, rows_max: int) -> tuple[int, bool]:
    """Return where a window that starts at `at` ends, and whether a transaction ends there. A window has as many whole
    transactions as fit; if the first one does not fit, it ends in the middle of it."""
    fit = int(np.searchsorted(ends, at + rows_max - 1, "right"))
    return (int(ends[fit - 1]), True) if fit else (at + rows_max - 1, False)


def _of_ops(rows: pa.Table, ops: str | None) -> pa.Table:
    return rows if ops is None else rows.filter(pc.is_in(rows.column(OP), pa.array(list(ops))))


def _cut(
    parts: list[tuple[Table, pa.Table]], end: int, rows_max: int, stops: Int64s, *, goes_on: bool, is_whole: bool
) -> Iterator[RowsPiece]:
    """Yield the pieces of a window. `goes_on`: the window begins in the middle of a transaction; `is_whole`: it ends
    where a transaction ends."""
    by_shape: dict[Table, list[pa.Table]] = {}
    for shape, rows in parts:
        by_shape.setdefault(shape, []).append(rows)
    listed = [(shape, pa.concat_tables(rows)) for shape, rows in by_shape.items()]
    if not listed:
        return
    offsets = np.concatenate([rows.column(OFFSET).to_numpy() for _, rows in listed])
    order = np.argsort(offsets, kind="stable")
    offsets = offsets[order]
    owner = np.repeat(np.arange(len(listed)), [rows.num_rows for _, rows in listed])[order]
    transaction = np.concatenate([rows.column(TRANSACTION).to_numpy() for _, rows in listed])[order]
    count = len(order)
    ends = np.flatnonzero(transaction[1:] != transaction[:-1]) + 1
    ends = np.append(ends, count) if is_whole else ends
    taken = [0] * len(listed)
    changes = np.flatnonzero(np.diff(owner)) + 1
    if len(stops):
        within = stops[np.searchsorted(stops, offsets[0]) : np.searchsorted(stops, offsets[-1])]
        changes = np.union1d(changes, np.searchsorted(offsets, within, "right"))
    for begin, stop in _stretches(changes, ends, count, rows_max, goes_on=goes_on):
        which = int(owner[begin])
        shape, rows = listed[which]
        size = stop - begin
        place = int(np.searchsorted(ends, stop))
        ends_here = place < len(ends) and int(ends[place]) == stop
        is_end = stop == count and is_whole and not len(stops)
        last = end if is_end else int(offsets[stop - 1])
        yield RowsPiece(shape, rows.slice(taken[which], size), last, ends_here)
        taken[which] += size


def _stretches(
    changes: Iterable[int],
    ends: np.ndarray[tuple[int], np.dtype[np.int64]],
    count: int,
    rows_max: int,
    *,
    goes_on: bool,
) -> Iterator[tuple[int, int]]:
    """Yield the start and end (exclusive) of each piece. `changes`: where another table's rows begin, or a stop is;
    `ends`: where transactions end. A piece that begins in the middle of a transaction ends with it at the latest."""
    begin, is_inside = 0, goes_on
    for stop in (*(int(n) for n in changes), count):
        while begin < stop:
            limit = min(stop, begin + rows_max)
            after, before = int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(ends, limit, "right"))
            has_end = after < before
            at = int(ends[after if is_inside else before - 1]) if has_end else limit
            yield begin, at
            begin, is_inside = at, not has_end
