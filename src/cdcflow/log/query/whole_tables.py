"""A whole table at an offset in the columns of the log: as if a backfill had read its rows there.

The fold determines which rows exist, each with the offset of its last change. The log's row at that offset has the
values, in the log's own types; only columns that the last change did not send are taken from the fold.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import InvariantViolated
from cdcflow.log.query.keyrows import Rows
from cdcflow.log.read.alignment import align, defaults_of
from cdcflow.model.change import READ
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Table


def fold_rows(now: pa.Table, changes: Iterable[Rows], shape: Table, shapes: list[Table]) -> pa.Table:
    """Return the rows of `now` (the table's columns and `_offset`) as rows of the log (`shape.log_schema`) with `_op`
    r, ascending by key. `changes`: at least the last change of each row; `shapes`: all shapes of the table, oldest
    first.

    Raises:
        InvariantViolated: the last change of a row is missing.
    """
    if not shape.key:
        return _as_they_are(now, shape)
    now = now.sort_by(OFFSET)
    offsets = now.column(OFFSET).to_numpy()
    defaults = defaults_of([s for s in shapes if s.incarnation == shape.incarnation], shape)
    parts = [shape.log_schema.empty_table()]
    for of, rows in changes:
        kept = rows.filter(pa.array(np.isin(rows.column(OFFSET).to_numpy(), offsets)))
        if kept.num_rows:
            parts.append(align(kept, of, shape, defaults).cast(shape.log_schema))
    found = pa.concat_tables(parts).sort_by(OFFSET).combine_chunks()
    if not np.array_equal(found.column(OFFSET).to_numpy(), offsets):
        raise InvariantViolated(
            f"creating the state of {shape.id}: the log lacks the last change of {len(offsets) - found.num_rows} rows",
            remedy="run `cdcflow log check`",
            runbook="log-damaged",
        )
    columns = {name: _known_values(found, now, name) for name in shape.row_schema.names}
    ascending = [(name, "ascending") for name in shape.key]
    return _as_read(found.select([OFFSET, TRANSACTION, COMMIT_TS]), columns, shape).sort_by(ascending)


def _known_values(found: pa.Table, now: pa.Table, name: str) -> pa.ChunkedArray:
    """Return the values of a column. Values that a change did not send are taken from the fold."""
    own = found.column(name)
    left_out = pc.fill_null(pc.list_value_length(found.column(UNCHANGED)), 0)
    if not pc.any(pc.greater(left_out, 0)).as_py():
        return own
    listed = found.column(UNCHANGED).combine_chunks()
    at = pc.list_parent_indices(listed).filter(pc.equal(pc.list_flatten(listed), name)).to_numpy()
    mask = np.zeros(found.num_rows, bool)
    mask[at] = True
    return pc.if_else(pa.array(mask), now.column(name).cast(own.type), own)


def _as_they_are(now: pa.Table, shape: Table) -> pa.Table:
    """Return the rows of a table without a key as rows of the log. Equal rows have the offset of the latest one."""
    stamps = pa.table(
        {
            OFFSET: now.column(OFFSET),
            TRANSACTION: pa.array(np.zeros(now.num_rows, np.int64)),
            COMMIT_TS: pa.array(np.zeros(now.num_rows, np.int64)).cast(pa.timestamp("us", tz="UTC")),
        }
    )
    columns = {f.name: now.column(f.name).cast(f.type) for f in shape.row_schema}
    return _as_read(stamps, columns, shape).sort_by(OFFSET)


def _as_read(stamps: pa.Table, columns: dict[str, pa.ChunkedArray], shape: Table) -> pa.Table:
    count = stamps.num_rows
    given = {
        **{name: stamps.column(name) for name in stamps.column_names},
        **columns,
        OP: pa.array([READ] * count, pa.string()),
        UNCHANGED: pa.nulls(count, shape.log_schema.field(UNCHANGED).type),
        BEFORE: pa.nulls(count, shape.log_schema.field(BEFORE).type),
    }
    return pa.table([given[field.name] for field in shape.log_schema], schema=shape.log_schema)
