"""Computes the changes between two contents of an item, in columns. Pure.

With a key: rows that vanished are deletes, new ones inserts, and rows with other values updates. Without a key only
appended rows are distinguished; anything else is an error.

Several items of a table may have rows with the same key. The key belongs to the item that wrote it last: `lost` holds
the keys of an item that another item has written since. A row that vanishes from an item is a delete only if the key
still belongs to the item.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import DELETE, INSERT, UPDATE
from cdcflow.model.table import OP, Table
from cdcflow.sources.polled.items import Unfit
from cdcflow.sources.polled.shapes import is_same

_PLACE, _OTHER = "cdcflow place", "cdcflow other place"


@dataclass(frozen=True, slots=True)
class ItemDifference:
    """The difference between two contents of an item. `deleted`: rows that vanished, with their last values. `written`:
    new and changed rows, in the content's order; `is_new` has an entry for each."""

    deleted: pa.Table
    written: pa.Table
    is_new: pa.ChunkedArray | pa.Array


def appended_rows(old: pa.Table, new: pa.Table) -> ItemDifference:
    """Return the rows of `new` after those of `old`.

    Raises:
        Unfit: the earlier rows are different.
    """
    count = old.num_rows
    head = new.slice(0, count)
    if head.num_rows < count or not all(
        pc.all(is_same(head.column(name), old.column(name))).as_py() is not False for name in old.column_names
    ):
        raise Unfit(
            "rows that were captured have changed, and it has no key to tell which",
            "append new rows, or write them into another item, or set a key for the table in a new log",
        )
    added = new.slice(count)
    return ItemDifference(old.slice(0, 0), added, pa.array(np.ones(added.num_rows, bool)))


def by_key(old: pa.Table, new: pa.Table, key: tuple[str, ...]) -> ItemDifference:
    """Return the rows that vanished, and those that are new or have other values. Both contents have the same
    columns."""
    pairs = _places(new, key, _PLACE).join(_places(old, key, _OTHER), keys=list(key), join_type="full outer")
    mine, other = pairs.column(_PLACE), pairs.column(_OTHER)
    deleted = _rows_gone(old, other, mine)
    fresh = mine.filter(pc.is_null(other))
    both = pc.and_(pc.is_valid(mine), pc.is_valid(other))
    here, there = mine.filter(both), other.filter(both)
    same = None
    rows, before = new.take(here), old.take(there)
    for name in new.column_names:
        equal = is_same(rows.column(name), before.column(name))
        same = equal if same is None else pc.and_(same, equal)
    changed = here if same is None else here.filter(pc.invert(same))
    is_new = np.zeros(new.num_rows, bool)
    is_new[fresh.to_numpy()] = True
    written = np.sort(np.concatenate([fresh.to_numpy(), changed.to_numpy()]).astype(np.int64))
    return ItemDifference(deleted, new.take(pa.array(written)), pa.array(is_new[written]))


def _rows_gone(old: pa.Table, other: pa.ChunkedArray, mine: pa.ChunkedArray) -> pa.Table:
    places = np.sort(other.filter(pc.is_null(mine)).to_numpy().astype(np.int64))
    return old.take(pa.array(places))


def _places(rows: pa.Table, key: tuple[str, ...], name: str) -> pa.Table:
    return rows.select(list(key)).append_column(name, pa.array(np.arange(rows.num_rows, dtype=np.int64)))


def has_key(rows: pa.Table, keys: pa.Table | None, key: tuple[str, ...]) -> pa.Array:
    """Return, for each row, whether its key is among `keys`."""
    found = np.zeros(rows.num_rows, bool)
    if keys is not None and keys.num_rows and rows.num_rows:
        among = _places(rows, key, _PLACE).join(keys.select(list(key)), keys=list(key), join_type="left semi")
        found[among.column(_PLACE).to_numpy()] = True
    return pa.array(found)


def without(rows: pa.Table, keys: pa.Table | None, key: tuple[str, ...]) -> pa.Table:
    """Return the rows whose key is not among `keys`."""
    return rows if keys is None or not keys.num_rows else rows.filter(pc.invert(has_key(rows, keys, key)))


def as_changes(table: Table, found: ItemDifference) -> pa.Table:
    """Return the changes in the log's columns: deletes first, then the written rows."""
    letters = pc.if_else(found.is_new, pa.scalar(INSERT), pa.scalar(UPDATE))
    deletes = pa.array(np.full(found.deleted.num_rows, DELETE), pa.string())
    rows = pa.concat_tables([found.deleted, found.written])
    ops = pa.chunked_array([deletes, *(letters.chunks if isinstance(letters, pa.ChunkedArray) else [letters])])
    count = rows.num_rows
    columns = [*rows.columns]
    for name in table.change_schema.names[len(columns) :]:
        field = table.change_schema.field(name)
        columns.append(ops.cast(pa.string()) if name == OP else pa.chunked_array([pa.nulls(count, field.type)]))
    return pa.table(columns, schema=table.change_schema)
