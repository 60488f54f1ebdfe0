"""Turns row images of a source's log into changes in columns: key changes, and the columns that the log adds. Pure.

A decoder finds where the values of each image are. The rules for old and new images are the same in every dialect:

- An update that keeps its key is one change. One that changes it is a delete of the old key and, directly after it, an
  insert (hard case P09).
- A value that the log did not send is `_unchanged`, which is not NULL.
- An old row, if the change carries it, is in `_before`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import Int64s
from cdcflow.model.table import BEFORE, UNCHANGED, Table
from cdcflow.sources.engine.buffers import Bools, Cells

Codes = npt.NDArray[Any]
"""Letters of operations, as numbers."""


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of a source's log as changes; a row that changes its key becomes two changes.

    `last[i]` is the number of row i's last change. Change j takes its values from image `value[j]` and its old row from
    image `before[j]` (-1 if it has none); `op` contains the codes of the letters.
    """

    last: Int64s
    value: Int64s
    op: Codes
    before: Int64s


def split_key_changes(
    changed: Bools, carries_old: Bools, new_image: Int64s, op: Codes, delete: int, insert: int
) -> SplitRows:
    """Split rows that change their key into a delete and an insert.

    `changed`: which rows change their key; `carries_old`: which changes also carry their old row. Row i's old image has
    the number i, its new one `new_image[i]`; `op` is its letter if the key does not change.
    """
    total = len(changed) + int(changed.sum())
    last = np.cumsum(1 + changed) - 1
    value, letters, before = np.empty(total, np.int64), np.empty(total, op.dtype), np.full(total, -1, np.int64)
    value[last], letters[last] = new_image, op
    first = last[changed] - 1
    value[first], letters[first], letters[first + 1] = np.flatnonzero(changed), delete, insert
    with_old = np.flatnonzero(changed | carries_old)
    before[last[with_old]] = with_old
    return SplitRows(last, value, letters, before)


def changed_keys(table: Table, updates: int, differs: Callable[[int], Bools | None]) -> Bools:
    """Return which of some updates change their key. Rows of a table without a key have no identity, so all of them do.

    `differs`: returns in which updates a column (by its place in the table) has other bytes than before; None if in
    none.
    """
    if not table.key:
        return np.ones(updates, np.bool_)
    changed = np.zeros(updates, np.bool_)
    for place, column in enumerate(table.columns):
        if column.name in table.key and (found := differs(place)) is not None:
            changed |= found
    return changed


def same_values(one: Cells, other: Cells) -> Bools:
    """Return which values of two columns of the same rows have the same bytes; NULL equals NULL."""
    there, size = one.present, one.size
    same: Bools = (there == other.present) & (~there | (size == other.size))
    look = np.flatnonzero(same & there & (one.start != other.start) & (size > 0))
    if len(look):
        a, b = (Cells(part.buffer, part.start[look], part.size[look]).binary() for part in (one, other))
        same[look] = pc.equal(a, b).to_numpy(zero_copy_only=False)
    return same


def change_batch(
    table: Table, columns: Sequence[pa.Array], op: Codes, omitted: Bools | None, before: pa.Array | None
) -> pa.RecordBatch:
    """Return changes with these columns as a batch.

    `omitted`: which values were not sent, a row for each column of the table; `before`: the column of old rows. Either
    may be None if no change has any.
    """
    schema = table.change_schema
    names = pa.nulls(len(op), schema.field(UNCHANGED).type)
    if omitted is not None and omitted.any():
        names = unchanged_names(table, omitted, names.type)
    olds = pa.nulls(len(op), schema.field(BEFORE).type) if before is None else before
    return pa.RecordBatch.from_arrays([*columns, ops(op), names, olds], schema=schema)


def old_rows(table: Table, image: Int64s, column: Callable[[int, Int64s, Bools], pa.Array]) -> pa.Array:
    """Return the column `_before`. `image`: for each change, the number of the image of its old row, -1 if it has none.

    `column` returns a column (by its place in the table) of these images, NULL where the image does not exist.
    """
    arrow, there = table.before_type, image >= 0
    places = (place for place, c in enumerate(table.columns) if arrow.get_field_index(c.name) >= 0)
    children = [column(place, np.maximum(image, 0), there) for place in places]
    return pa.StructArray.from_arrays(children, fields=list(arrow), mask=pa.array(~there))


def ops(letters: Codes) -> pa.Array:
    """Return the column `_op` for these letters (given as codes)."""
    offsets = np.arange(len(letters) + 1, dtype=np.int32)
    codes = np.ascontiguousarray(letters.astype(np.uint8, copy=False))
    return pa.Array.from_buffers(pa.string(), len(letters), [None, pa.py_buffer(offsets), pa.py_buffer(codes)])


def unchanged_names(table: Table, omitted: Bools, arrow: pa.DataType) -> pa.Array:
    """Return the column `_unchanged`: for each row the names of the columns that were not sent; NULL if all were sent.

    `omitted` has one row per column of the table, and one entry per change.
    """
    names = pa.array([c.name for c in table.columns], pa.string())
    count = omitted.sum(axis=0)
    offsets = np.zeros(omitted.shape[1] + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    values = names.take(pa.array(np.nonzero(omitted.T)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=arrow, mask=pa.array(count == 0))
