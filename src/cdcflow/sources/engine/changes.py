"""Changes of one table shape in columns: parts put together, a table emptied, the columns that the log adds. Pure.

Both ends of a source make them, its decoder and its chunks, and they must be alike whatever the dialect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.model.change import TRUNCATE, ChangeBatch, Int64s, Kind, Run
from cdcflow.model.table import OP, Table
from cdcflow.sources.buffers import Bools


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
