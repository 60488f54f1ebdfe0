"""Reduce the changes of a table between two offsets to the last one of each key, in columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import DELETE, TRUNCATE
from cdcflow.model.table import OFFSET, OP, UNCHANGED, Table


@dataclass(frozen=True, slots=True)
class NetChanges:
    """The last change of each key. `rows`: those of keys that have a row at the end, in the log's columns. `deleted`:
    the keys that have none. `incomplete`: the offsets of the rows whose last change did not send all columns."""

    rows: pa.Table
    deleted: pa.Table
    incomplete: pa.ChunkedArray


def net_changes(parts: Iterable[tuple[Table, pa.Table]], shape: Table) -> NetChanges | None:
    """Return the net changes of a table with a key, from its rows of the log in ascending order.

    None if they cannot be expressed by key: after a truncate, between different shapes, or if the key's values cannot
    be compared as bytes (floating point, nested).
    """
    if not shape.key or any(_is_ambiguous(shape.row_schema.field(name).type) for name in shape.key):
        return None
    found = [shape.log_schema.empty_table()]
    for of, rows in parts:
        if of != shape:
            return None
        found.append(rows.select(shape.log_schema.names))
    rows = pa.concat_tables(found)
    if pc.any(pc.equal(rows.column(OP), TRUNCATE)).as_py():
        return None
    key = list(shape.key)
    try:
        latest = rows.select([*key, OFFSET]).group_by(key).aggregate([(OFFSET, "max")]).column(f"{OFFSET}_max")
    except pa.ArrowNotImplementedError:  # Arrow groups by no such type: the whole table is applied
        return None
    last = rows.filter(pc.is_in(rows.column(OFFSET), value_set=latest))
    is_deleted = pc.equal(last.column(OP), DELETE)
    live = last.filter(pc.invert(is_deleted))
    left_out = pc.fill_null(pc.list_value_length(live.column(UNCHANGED)), 0)
    incomplete = live.column(OFFSET).filter(pc.greater(left_out, 0))
    return NetChanges(live, last.filter(is_deleted).select(key), incomplete)


def _is_ambiguous(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))
