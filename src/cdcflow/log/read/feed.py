"""The log's rows of one table as a feed of row changes, in the format of Delta's change data feed. Arrow columns.

    log     c 1:a        u 1:A (before 1:a)       d 1         c 2:A (before 1)     t
    feed    insert 1:a   update_preimage 1:a      delete 1    insert 2:A           an error, or a row
                         update_postimage 1:A

| `_op` | in the feed |
| ----- | ----------- |
| c, r  | `insert`. A row that a backfill or a repair reads again is an insert again: apply it by key |
| u     | `update_postimage`, and before it `update_preimage` if the log has the whole old row (identity full) |
| d     | `delete`, with the old row as far as the log has it: at least the key, all columns under identity full |
| t     | which rows were deleted is unknown: the feed stops, or (`truncates_as_rows`) one row `truncate` without values
|

A change of a key is a delete and an insert, as in the log. Columns that a change did not send (`_unchanged`) get their
values from the whole old row; if the log does not have that, the feed stops.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.log.read.alignment import Defaults, aligned_columns, as_array, before_columns
from cdcflow.model.change import DELETE, INSERT, READ, TRUNCATE, UPDATE
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Identity, Table, TableId

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
FEED_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP, OFFSET)

INSERTED, DELETED, TRUNCATED = "insert", "delete", "truncate"
BEFORE_UPDATE, AFTER_UPDATE = "update_preimage", "update_postimage"

_TYPES = {INSERT: INSERTED, READ: INSERTED, UPDATE: AFTER_UPDATE, DELETE: DELETED, TRUNCATE: TRUNCATED}


class NotInFeed(ConfigurationError):
    """The error for a change that the feed cannot represent. `offset` is the change's offset."""

    section = "table-not-followed"

    def __init__(self, message: str, offset: int = 0, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.offset = offset


def feed_schema(target: Table) -> pa.Schema:
    """Return the columns of the feed: the table's own, then `_change_type`, `_commit_version` (number of the
    transaction), `_commit_timestamp` (the source's commit time), and `_offset`, which orders the changes of a
    transaction."""
    return pa.schema(
        [
            *target.row_schema,
            pa.field(CHANGE_TYPE, pa.string(), nullable=False),
            pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
            pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field(OFFSET, pa.int64(), nullable=False),
        ]
    )


def feed(
    rows: pa.Table, shape: Table, target: Table, defaults: Defaults | None = None, *, truncates_as_rows: bool = False
) -> pa.Table:
    """Return rows of the log (`shape.log_schema`, ascending by `_offset`) as rows of the feed (`feed_schema(target)`),
    in the same order; a preimage directly precedes its postimage, and has the same `_offset`.

    `defaults`: see `alignment.defaults_of`.

    Raises:
        NotInFeed: a truncate, or a row with unknown values.
    """
    check_in_feed(rows, shape, truncates_as_rows=truncates_as_rows)
    given = defaults or {}
    ops = rows.column(OP)
    names = pa.array(list(_TYPES.values()))
    kinds = names.take(as_array(pc.index_in(ops, pa.array(list(_TYPES)))))
    filled = _fill_unchanged(rows, shape)
    columns = [as_array(column) for column in aligned_columns(filled, shape, target, given)]
    whole = [
        *columns,
        kinds,
        *(as_array(rows.column(name)) for name in (TRANSACTION, COMMIT_TS, OFFSET)),
    ]
    schema = feed_schema(target)
    after = pa.Table.from_arrays(whole, schema=schema)
    at = _with_preimage(rows, shape)
    if not len(at):
        return after
    old = rows.select([TRANSACTION, COMMIT_TS, OFFSET]).take(pa.array(at))
    befores = as_array(rows.column(BEFORE)).take(pa.array(at))
    before = pa.Table.from_arrays(
        [
            *before_columns(befores, shape, target, given),
            pa.repeat(pa.scalar(BEFORE_UPDATE), len(at)),
            *(as_array(old.column(name)) for name in (TRANSACTION, COMMIT_TS, OFFSET)),
        ],
        schema=schema,
    )
    order = np.insert(np.arange(rows.num_rows), at, rows.num_rows + np.arange(len(at)))
    return pa.concat_tables([after, before]).take(pa.array(order))


def check_in_feed(rows: pa.Table, shape: Table, *, truncates_as_rows: bool = False) -> None:
    """Check that the feed can represent these rows of the log; only their columns `_offset`, `_op`, `_unchanged` and
    `_before` are read.

    Raises:
        NotInFeed: the feed cannot represent a row; the error names the first one.
    """
    offsets = rows.column(OFFSET)
    if not truncates_as_rows:
        emptied = offsets.filter(pc.equal(rows.column(OP), TRUNCATE))
        if len(emptied):
            raise truncate_error(shape.id, int(emptied[0].as_py()))
    unknown = offsets.filter(_partial(rows, shape))
    if len(unknown):
        raise partial(shape.id, int(unknown[0].as_py()))


def truncate_error(table: TableId, offset: int) -> NotInFeed:
    """Return the error for a truncate."""
    return NotInFeed(
        f"reading the feed of {table}: at offset {offset} the table was emptied, and the log does not have the"
        " deleted rows",
        offset,
        f"read up to offset {offset - 1}, empty your copy, and read from offset {offset + 1}; or get a truncate as"
        " a row with _change_type truncate (option truncates: row)",
    )


def partial(table: TableId, offset: int) -> NotInFeed:
    """Return the error for a row with unknown values."""
    return NotInFeed(
        f"reading the feed of {table}: the source did not send all columns of the change at offset {offset}, and the"
        " log does not have the whole old row",
        offset,
        "read it with shape log, where _unchanged names these columns; or read the feed up to offset"
        f" {offset - 1}, and from offset {offset + 1} on; later changes come whole after ALTER TABLE {table} REPLICA"
        " IDENTITY FULL (PostgreSQL) or with binlog_row_image=FULL (MySQL, MariaDB)",
    )


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _left_out(rows: pa.Table) -> pa.Array:
    """Return, for each row, whether it lacks columns that its change did not send; deletes and truncates do not
    count."""
    lengths = pc.fill_null(pc.list_value_length(as_array(rows.column(UNCHANGED))), 0)
    lives = pc.is_in(as_array(rows.column(OP)), pa.array([INSERT, UPDATE, READ]))
    return pc.and_(pc.greater(lengths, 0), lives)


def _partial(rows: pa.Table, shape: Table) -> pa.Array:
    """Return, for each row, whether some of its values are unknown."""
    left_out = _left_out(rows)
    if shape.identity is not Identity.FULL:
        return left_out
    return pc.and_(left_out, pc.is_null(as_array(rows.column(BEFORE))))


def _with_preimage(rows: pa.Table, shape: Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the indexes of the updates for which the log has the whole old row."""
    if shape.identity is not Identity.FULL:
        return np.empty(0, np.int64)
    is_one = pc.and_(pc.equal(as_array(rows.column(OP)), UPDATE), pc.is_valid(as_array(rows.column(BEFORE))))
    return np.flatnonzero(is_one.to_numpy(zero_copy_only=False)).astype(np.int64)


def _fill_unchanged(rows: pa.Table, shape: Table) -> pa.Table:
    """Return the rows with values of the old row in the columns that the change left unchanged."""
    left_out = _left_out(rows)
    if not pc.any(left_out).as_py():
        return rows
    unchanged, befores = as_array(rows.column(UNCHANGED)), as_array(rows.column(BEFORE))
    owners = pc.list_parent_indices(unchanged).to_numpy()
    names = pc.list_flatten(unchanged)
    lives = left_out.to_numpy(zero_copy_only=False)
    for name in pc.unique(names).to_pylist():
        mask = np.zeros(rows.num_rows, bool)
        mask[owners[pc.equal(names, name).to_numpy(zero_copy_only=False)]] = True
        at = rows.schema.get_field_index(name)
        filled = pc.if_else(pa.array(mask & lives), befores.field(name), as_array(rows.column(name)))
        rows = rows.set_column(at, rows.schema.field(at), filled)
    return rows


__all__ = [
    "CHANGE_TYPE",
    "COMMIT_TIMESTAMP",
    "COMMIT_VERSION",
    "FEED_COLUMNS",
    "NotInFeed",
    "check_in_feed",
    "feed",
    "feed_schema",
]
