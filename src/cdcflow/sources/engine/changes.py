"""Changes of one table shape in columns: combining parts, truncates and deletes, the columns that the log adds. Pure.

Both a source's decoder and its chunks create such changes, and they must be alike in every dialect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.interleave.messages import Committed, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.model.change import DELETE, TRUNCATE, ChangeBatch, Int64s, Kind, Run
from cdcflow.model.table import OP, UNCHANGED, Table
from cdcflow.sources.buffers import Bools, Cells


def merge_batches(table: Table, parts: Sequence[tuple[Int64s, pa.RecordBatch]]) -> ChangeBatch:
    """One batch from parts, each with rows and their indices in the run; the indices may interleave."""
    if len(parts) == 1:
        return ChangeBatch(table, *parts[0])
    index, rows = np.concatenate([i for i, _ in parts]), pa.concat_batches([r for _, r in parts])
    if (np.diff(index) > 0).all():
        return ChangeBatch(table, index, rows)
    order = np.argsort(index)
    return ChangeBatch(table, index[order], rows.take(pa.array(order)))


def row_indices(message: Int64s, rows_before: Int64s) -> Int64s:
    """The indices of rows in a run. `message`: the number of the message that each row is from, ascending;
    `rows_before`: how many rows precede each message."""
    first = np.flatnonzero(np.diff(message, prepend=-1))
    nth = np.arange(len(message)) - np.repeat(first, np.diff(first, append=len(message)))
    return np.asarray(rows_before[message] + nth)


def counted_rows(messages: Iterable[Int64s], count: int) -> Int64s:
    """How many rows precede each of `count` messages, and all of them (one more). `messages`: see `row_indices`."""
    rows_before = np.zeros(count + 1, np.int64)
    for message in messages:
        rows_before[1:] += np.bincount(message, minlength=count)
    return np.cumsum(rows_before, out=rows_before)


def split_at_marks(run: Run, full: Int64s, marks: Iterable[tuple[int, MarkSeen]]) -> list[StreamEvent]:
    """A run, split where marks were seen. `full`: the numbers of its transactions among all that were received; each
    mark with the number of the last transaction before it."""
    events: list[StreamEvent] = []
    taken = 0
    for number, mark in marks:
        upto = int(np.searchsorted(full, number, side="right"))
        if upto > taken:
            part, run = run.split_at(upto - taken)
            events.append(Committed(part))
            taken = upto
        events.append(mark)
    return [*events, Committed(run)] if run.transactions else events


def truncation(table: Table) -> pa.RecordBatch:
    """The one row that records a truncate of a table."""
    schema = table.change_schema
    columns = [pa.array([TRUNCATE], pa.string()) if f.name == OP else pa.nulls(1, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def after_truncate(run: Run, table: Table) -> Run:
    """The same rows, after a truncate of the table."""
    truncate = ChangeBatch(table, np.zeros(1, np.int64), truncation(table))
    shifted = tuple(ChangeBatch(b.table, b.index + 1, b.rows) for b in run.batches)
    return Run(run.xid, run.position, run.commit_ts, run.ends + 1, (truncate, *shifted), Kind.READ)


def after_deletes(run: Run, table: Table, keys: pa.Table) -> Run:
    """The same rows, after a delete of each of these keys."""
    count = keys.num_rows
    if not count:
        return run
    others = [c.name for c in table.columns if c.name not in table.key]
    letters = pa.array(np.full(count, DELETE), pa.string())
    columns = []
    for field in table.change_schema:
        if field.name in table.key:
            columns.append(keys.column(field.name).combine_chunks().cast(field.type))
        elif field.name == UNCHANGED and others:
            ends = pa.array(np.arange(count + 1, dtype=np.int32) * len(others))
            columns.append(pa.ListArray.from_arrays(ends, pa.array(others * count, pa.string()), type=field.type))
        else:
            columns.append(letters if field.name == OP else pa.nulls(count, field.type))
    rows = pa.RecordBatch.from_arrays(columns, schema=table.change_schema)
    deletes = ChangeBatch(table, np.arange(count, dtype=np.int64), rows)
    shifted = tuple(ChangeBatch(b.table, b.index + count, b.rows) for b in run.batches)
    return Run(run.xid, run.position, run.commit_ts, run.ends + count, (deletes, *shifted), Kind.READ)


def absent(asked: pa.Table, found: Sequence[pa.RecordBatch]) -> pa.Table:
    """The keys of `asked` that none of these rows has, compared by value: 'A' is not 'a', however the server compares.

    Arrow cannot compare lists, so all keys are returned if a key column is one. A delete before the row itself does no
    harm.
    """
    there = [pa.Table.from_batches([rows]).select(asked.column_names).cast(asked.schema) for rows in found]
    keys = _comparable(pa.concat_tables([asked, *there]))
    if any(pa.types.is_nested(t) for t in keys.schema.types):
        return asked
    at = pa.array(np.arange(keys.num_rows))
    numbered = pa.table([*keys.columns, at], names=[*map(str, range(keys.num_columns)), "at"])
    groups = numbered.group_by(numbered.column_names[:-1], use_threads=False)
    seen = groups.aggregate([("at", "min"), ("at", "max")])
    return asked.take(seen.filter(pc.less(seen.column("at_max"), asked.num_rows)).column("at_min"))


def _comparable(keys: pa.Table) -> pa.Table:
    """The same table with the fields of structures as separate columns, and without dictionaries."""
    while any(pa.types.is_struct(t) for t in keys.schema.types):
        keys = keys.flatten()
    types = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in keys.schema]
    return pa.table([column.cast(t) for column, t in zip(keys.columns, types, strict=True)], keys.column_names)


def ops(letters: Int64s | npt.NDArray[np.uint8]) -> pa.Array:
    """The column `_op` for these letters (given as codes)."""
    offsets = np.arange(len(letters) + 1, dtype=np.int32)
    codes = np.ascontiguousarray(letters.astype(np.uint8, copy=False))
    return pa.Array.from_buffers(pa.string(), len(letters), [None, pa.py_buffer(offsets), pa.py_buffer(codes)])


def unchanged_names(table: Table, omitted: Bools, arrow: pa.DataType) -> pa.Array:
    """The column `_unchanged`: for each row the names of the columns that were not sent; NULL if all were sent.

    `omitted` has one row per column of the table, and one entry per change.
    """
    names = pa.array([c.name for c in table.columns], pa.string())
    count = omitted.sum(axis=0)
    offsets = np.zeros(omitted.shape[1] + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    values = names.take(pa.array(np.nonzero(omitted.T)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=arrow, mask=pa.array(count == 0))


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of a source's log as changes. A row that changes its key becomes two changes: a delete of the old key and,
    directly after it, an insert (hard case P09).

    `last` is the number of row i's last change. Change j takes its values from image `value[j]` and its old row from
    image `before[j]` (-1 if it has none); `op` contains the codes of the letters.
    """

    last: Int64s
    value: Int64s
    op: npt.NDArray[Any]
    before: Int64s


def split_key_changes(
    changed: Bools, carries_old: Bools, new_image: Int64s, op: npt.NDArray[Any], delete: int, insert: int
) -> SplitRows:
    """`changed`: which rows change their key; `carries_old`: which changes also carry their old row. Row i's old image
    has the number i, its new one `new_image[i]`; `op` is its letter if the key does not change."""
    total = len(changed) + int(changed.sum())
    last = np.cumsum(1 + changed) - 1
    value, letters, before = np.empty(total, np.int64), np.empty(total, op.dtype), np.full(total, -1, np.int64)
    value[last], letters[last] = new_image, op
    first = last[changed] - 1
    value[first], letters[first], letters[first + 1] = np.flatnonzero(changed), delete, insert
    with_old = np.flatnonzero(changed | carries_old)
    before[last[with_old]] = with_old
    return SplitRows(last, value, letters, before)


def same_values(one: Cells, other: Cells) -> Bools:
    """Which values of two columns of the same rows have the same bytes; NULL equals NULL."""
    there, size = one.present, one.size
    same: Bools = (there == other.present) & (~there | (size == other.size))
    look = np.flatnonzero(same & there & (one.start != other.start) & (size > 0))
    if len(look):
        a, b = (Cells(part.buffer, part.start[look], part.size[look]).binary() for part in (one, other))
        same[look] = pc.equal(a, b).to_numpy(zero_copy_only=False)
    return same
