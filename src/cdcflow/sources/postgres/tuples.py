"""Decodes row messages of one table to columns: Insert, Update and Delete, thousands at a time.

A row message holds one or two tuples, and a tuple holds its cells one after another, each with its own length. So the
cells of a column are found for all tuples at once, and the next column's begin where they end:

    at ──▶ n │ u │ t len bytes │ b len bytes ──▶ next column

The contents of tuples become arrays with one row per column and one entry per tuple (`Tuples`). The rules about old
rows are arithmetic on those arrays:

- An Update whose old key differs from the new one is two changes, a delete and an insert (hard case P09).
- Under REPLICA IDENTITY FULL a value that the new row did not repeat is in the old one (P03).
- A Delete under DEFAULT carries the key; the other columns were not sent, which is not NULL (P04).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdcflow.errors import InvariantViolated
from cdcflow.model.change import Int64s
from cdcflow.model.table import Identity
from cdcflow.sources.engine.buffers import Bools, Buffer, Bytes, Cells, protocol_error
from cdcflow.sources.engine.changes import ShapedRows
from cdcflow.sources.engine.row_images import change_batch, changed_keys, old_rows, same_values, split_key_changes
from cdcflow.sources.engine.selection import CapturedTableRefused
from cdcflow.sources.postgres.types import DescribedTable, decode
from cdcflow.sources.postgres.types.describe import quote_name
from cdcflow.sources.postgres.wire import Frames

_NULL, _UNCHANGED, _TEXT, _BINARY = (ord(c) for c in "nutb")
_VALUES = (_TEXT, _BINARY)
_INSERT, _UPDATE, _DELETE = (ord(c) for c in "IUD")
_NEW, _OLD, _KEY = (ord(c) for c in "NOK")
_C, _U, _D = (ord(c) for c in "cud")


@dataclass(frozen=True, slots=True)
class Tuples:
    """Tuples of one table: arrays with one row per column and one entry per tuple."""

    buffer: Buffer
    kind: Bytes
    start: Int64s
    size: Int64s

    def cells(self, column: int, tuples: Int64s | None, present: Bools | None = None) -> tuple[Cells, bool]:
        """Return one column's cells of these tuples, and whether the server sent them in binary.

        `tuples`: None means all tuples, in their order. `present`: where it is False, the tuple does not exist, and its
        cell is NULL.
        """
        kind, start, size = self.kind[column], self.start[column], self.size[column]
        if tuples is not None:
            kind, start, size = kind[tuples], start[tuples], size[tuples]
        binary = kind == _BINARY
        as_binary = bool(binary.any())
        valid = binary if as_binary else kind == _TEXT
        if as_binary and (kind == _TEXT).any():
            raise InvariantViolated(
                "the server sent one column's values partly in binary, partly as text", runbook="stream-not-understood"
            )
        if present is not None:
            valid = valid & present
        return Cells(self.buffer, start, size, None if valid.all() else valid), as_binary


def tuples_at(buffer: Buffer, at: Int64s, end: Int64s, columns: int) -> tuple[Tuples, Int64s]:
    """Return the tuples that begin at `at`, and where each ends; none reaches beyond `end`.

    Raises:
        SourceUnavailable: a tuple has another number of columns than its relation, or does not fit its message.
    """
    count = len(at)
    if (at + 2 > end).any():
        raise protocol_error("a row message ends before its columns")
    if (buffer.int16(at) != columns).any():
        raise protocol_error(f"a row does not have the {columns} columns of its table")
    kinds, starts, sizes = np.empty((columns, count), np.uint8), *np.empty((2, columns, count), np.int64)
    at = at + 2
    for column in range(columns):
        kind = buffer.bytes[at]
        sized = (kind == _TEXT) | (kind == _BINARY)
        if sized.all():
            size = buffer.int32(at + 1)
            start = at + 5
        else:
            if not (sized | (kind == _NULL) | (kind == _UNCHANGED)).all():
                raise protocol_error("a column value of an unknown kind")
            size = np.where(sized, buffer.int32(at + 1), 0)
            start = at + np.where(sized, 5, 1)
        at = start + size
        if (at > end).any() or (size < 0).any():
            raise protocol_error("a column value reaches beyond its message")
        kinds[column], starts[column], sizes[column] = kind, start, size
    return Tuples(buffer, kinds, starts, sizes), at


def changes_of(
    frames: Frames, rows: Int64s, header: int, described: DescribedTable, in_identity: tuple[bool, ...]
) -> ShapedRows:
    """Return the row messages at `rows`, all of one table shape, as changes.

    `header` is the number of bytes between a message's type and its tuples' marker. `in_identity`: which columns an old
    key carries.

    Raises:
        CapturedTableRefused: an old row does not carry the table's key.
    """
    buffer, kind, end = frames.buffer, frames.kind[rows], frames.end[rows]
    columns = len(described.codecs)
    at = frames.start[rows] + 1 + header
    if (at + 1 > end).any():
        raise protocol_error("a row message ends before its rows")
    marker = buffer.bytes[at]
    tuples, at = tuples_at(buffer, at + 1, end, columns)
    inserted, deleted, new = kind == _INSERT, kind == _DELETE, marker == _NEW
    if not np.where(new, ~deleted, ~inserted & ((marker == _OLD) | (marker == _KEY))).all():
        raise protocol_error("a row message with a tuple that it cannot have")
    if new.all():
        _at_end(at, end)
        return ShapedRows(described.table, rows, _batch(described, tuples, None, None, np.where(inserted, _C, _U)))
    return _with_old_rows(frames, rows, described, in_identity, tuples, at, marker)


def _with_old_rows(
    frames: Frames,
    rows: Int64s,
    described: DescribedTable,
    in_identity: tuple[bool, ...],
    tuples: Tuples,
    at: Int64s,
    marker: Bytes,
) -> ShapedRows:
    """Return the changes if some messages carry an old row or key, which precedes the new one. See `changes_of`."""
    end, kind, count = frames.end[rows], frames.kind[rows], len(rows)
    is_full = described.table.identity is Identity.FULL
    old, deleted = marker != _NEW, kind == _DELETE
    keyed = (
        old if not is_full else marker == _KEY
    )  # a partition's old rows may carry less than its table's Relation says
    both = np.flatnonzero(old & ~deleted)
    _at_end(at[~old | deleted], end[~old | deleted])
    if len(both):
        if (at[both] >= end[both]).any() or (frames.buffer.bytes[at[both]] != _NEW).any():
            raise protocol_error("an update without its new row")
        second, at = tuples_at(frames.buffer, at[both] + 1, end[both], len(described.codecs))
        _at_end(at, end[both])
        tuples = Tuples(
            frames.buffer,
            np.concatenate([tuples.kind, second.kind], axis=1),
            np.concatenate([tuples.start, second.start], axis=1),
            np.concatenate([tuples.size, second.size], axis=1),
        )
    if keyed.any():
        _require_key(described, in_identity)
        # In a tuple that holds only a key, the other columns are marked as NULL, which here means that they were not
        # sent.
        outside = np.flatnonzero(~np.array(in_identity))
        tuples.kind[np.ix_(outside, np.flatnonzero(keyed))] = _UNCHANGED
    new_of = np.arange(count)
    new_of[both] = count + np.arange(len(both))
    _fill(tuples, both, new_of[both])
    changed = np.zeros(count, np.bool_)
    changed[both] = _key_changed(described, tuples, both, new_of[both])

    op = np.where(deleted, _D, np.where(kind == _INSERT, _C, _U))
    whole = old & ~deleted & ~keyed
    split = split_key_changes(changed, whole, new_of, op, _D, _C)
    message = np.repeat(rows, 1 + changed)
    return ShapedRows(described.table, message, _batch(described, tuples, split.value, split.before, split.op))


def _at_end(at: Int64s, end: Int64s) -> None:
    if (at != end).any():
        raise protocol_error("a row message continues after its row")


def _require_key(described: DescribedTable, in_identity: tuple[bool, ...]) -> None:
    table = described.table
    lacking = [c.name for c, sent in zip(table.columns, in_identity, strict=True) if c.name in table.key and not sent]
    if lacking or not table.key:
        why = f"table {table.id}: old rows in the server's log do not carry the key column(s) {', '.join(lacking)}"
        remedy = (
            f"ALTER TABLE {quote_name(table.id.schema)}.{quote_name(table.id.name)} REPLICA IDENTITY DEFAULT (or FULL)"
        )
        raise CapturedTableRefused(table.id, [(f"{why}; its replica identity is not its key", remedy)])


def _fill(tuples: Tuples, old: Int64s, new: Int64s) -> None:
    """Fill values that the new row did not repeat with those of the old row, if it has them."""
    missing = (tuples.kind[:, new] == _UNCHANGED) & (tuples.kind[:, old] != _UNCHANGED)
    if not missing.any():
        return
    column, which = np.nonzero(missing)
    for part in (tuples.kind, tuples.start, tuples.size):
        part[column, new[which]] = part[column, old[which]]


def _key_changed(described: DescribedTable, tuples: Tuples, old: Int64s, new: Int64s) -> Bools:
    def differs(column: int) -> Bools:
        start, size, kind = tuples.start[column], tuples.size[column], tuples.kind[column]
        a, b = (Cells(tuples.buffer, start[t], size[t], np.isin(kind[t], _VALUES)) for t in (old, new))
        changed: Bools = ~(same_values(a, b) & (kind[old] == kind[new]))
        return changed

    return changed_keys(described.table, len(old), differs)


def _batch(
    described: DescribedTable, tuples: Tuples, value: Int64s | None, before: Int64s | None, op: Int64s
) -> pa.RecordBatch:
    """Return changes as columns: row i has the values of tuple `value[i]` and the old row `before[i]` (-1 if it has
    none)."""

    def column(number: int, tuple_numbers: Int64s | None, present: Bools | None = None) -> pa.Array:
        cells, as_binary = tuples.cells(number, tuple_numbers, present)
        return decode(described.codecs[number], cells, as_binary=as_binary)

    columns = [column(number, value) for number in range(len(described.codecs))]
    omitted = tuples.kind == _UNCHANGED
    has_old = before is not None and (before >= 0).any()
    return change_batch(
        described.table,
        columns,
        op,
        omitted if value is None else omitted[:, value],
        old_rows(described.table, before, column) if before is not None and has_old else None,
    )
