"""Changes of one table shape in columns: parts put together, a table emptied, the columns that the log adds. Pure.

Both ends of a source make them, its decoder and its chunks, and they must be alike whatever the dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import TRUNCATE, ChangeBatch, Int64s, Kind, Run
from cdcflow.model.table import OP, Table
from cdcflow.sources.buffers import Bools, Cells


def merged(table: Table, parts: Sequence[tuple[Int64s, pa.RecordBatch]]) -> ChangeBatch:
    """One batch of parts that each have rows with their indices in the run; the indices may interleave."""
    if len(parts) == 1:
        return ChangeBatch(table, *parts[0])
    index, rows = np.concatenate([i for i, _ in parts]), pa.concat_batches([r for _, r in parts])
    if (np.diff(index) > 0).all():
        return ChangeBatch(table, index, rows)
    order = np.argsort(index)
    return ChangeBatch(table, index[order], rows.take(pa.array(order)))


def truncation(table: Table) -> pa.RecordBatch:
    """The one row that says that a table was emptied."""
    schema = table.change_schema
    columns = [pa.array([TRUNCATE], pa.string()) if f.name == OP else pa.nulls(1, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def after_truncate(run: Run, table: Table) -> Run:
    """The same rows behind a truncate of the table."""
    truncate = ChangeBatch(table, np.zeros(1, np.int64), truncation(table))
    shifted = tuple(ChangeBatch(b.table, b.index + 1, b.rows) for b in run.batches)
    return Run(run.xid, run.position, run.commit_ts, run.ends + 1, (truncate, *shifted), Kind.READ)


def ops(letters: Int64s | npt.NDArray[np.uint8]) -> pa.Array:
    """The column `_op` of these letters (their codes)."""
    offsets = np.arange(len(letters) + 1, dtype=np.int32)
    codes = np.ascontiguousarray(letters.astype(np.uint8, copy=False))
    return pa.Array.from_buffers(pa.string(), len(letters), [None, pa.py_buffer(offsets), pa.py_buffer(codes)])


def unchanged_names(table: Table, omitted: Bools, arrow: pa.DataType) -> pa.Array:
    """The column `_unchanged`: per row the names of the columns that were not sent; NULL where all were.

    `omitted` has one row a column of the table, one entry a change.
    """
    names = pa.array([c.name for c in table.columns], pa.string())
    count = omitted.sum(axis=0)
    offsets = np.zeros(omitted.shape[1] + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    values = names.take(pa.array(np.nonzero(omitted.T)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=arrow, mask=pa.array(count == 0))


@dataclass(frozen=True, slots=True)
class Split:
    """Rows of a source's log as changes, where a key change is two of them: a delete of the old key and, directly after
    it, an insert (hard case P09).

    `last` is the number of row i's last change. Change j takes its values from image `value[j]` and its old row from
    image `before[j]` (-1: it carries none); `op` are the letters' codes.
    """

    last: Int64s
    value: Int64s
    op: npt.NDArray[Any]
    before: Int64s


def split_key_changes(
    changed: Bools, carries_old: Bools, new_image: Int64s, op: npt.NDArray[Any], delete: int, insert: int
) -> Split:
    """`changed`: which rows change their key; `carries_old`: which changes carry their old row besides. Row i's old
    image has the number i, its new one `new_image[i]`; `op` is its letter where the key stays."""
    total = len(changed) + int(changed.sum())
    last = np.cumsum(1 + changed) - 1
    value, letters, before = np.empty(total, np.int64), np.empty(total, op.dtype), np.full(total, -1, np.int64)
    value[last], letters[last] = new_image, op
    first = last[changed] - 1
    value[first], letters[first], letters[first + 1] = np.flatnonzero(changed), delete, insert
    with_old = np.flatnonzero(changed | carries_old)
    before[last[with_old]] = with_old
    return Split(last, value, letters, before)


def same_values(one: Cells, other: Cells) -> Bools:
    """Which values of two columns of the same rows are the same bytes; NULL is the same as NULL."""
    there, size = one.present, one.size
    same: Bools = (there == other.present) & (~there | (size == other.size))
    look = np.flatnonzero(same & there & (one.start != other.start) & (size > 0))
    if len(look):
        a, b = (Cells(part.buffer, part.start[look], part.size[look]).binary() for part in (one, other))
        same[look] = pc.equal(a, b).to_numpy(zero_copy_only=False)
    return same
