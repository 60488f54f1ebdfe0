"""Handles changes that arrived without the person of a value, or without a value of a new person. Pure.

If a value was not sent, the copy keeps its encrypted text. If the row has another person now, that text is encrypted
with the earlier person's key. The change does not show whether that is so; the row is then read again by its key.

| the value | its person | |
| --- | --- | --- |
| sent | sent | it is encrypted |
| sent | not sent | whose it is, is unknown: it leaves as not sent, and the row is read again |
| not sent | sent | it may be of another person now: the row is read again, unless the person is part of its key |
| not sent | not sent | neither changed |
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import INSERT, UPDATE
from cdcflow.model.table import OP, UNCHANGED, Table
from cdcflow.sources.engine.buffers import Bools
from cdcflow.sources.engine.row_images import unchanged_names


def without_unknown_persons(table: Table, rows: pa.RecordBatch, persons: Mapping[str, str]) -> pa.RecordBatch:
    """Return the changes, in which a value whose person was not sent counts as not sent.

    `persons`: maps each column with such values to the column with their persons.
    """
    lists = rows.column(UNCHANGED)
    if lists.null_count == len(lists):
        return rows
    omitted = _omitted_values(table, lists)
    places = {column.name: place for place, column in enumerate(table.columns)}
    found = rows
    for name, person in persons.items():
        unknown = omitted[places[person]] & ~omitted[places[name]]
        if not unknown.any():
            continue
        omitted[places[name]] |= unknown
        values = rows.column(name)
        kept = pc.if_else(pa.array(unknown), pa.scalar(None, values.type), values)
        found = found.set_column(places[name], rows.schema.field(name), kept)
    if found is rows:
        return rows
    names = unchanged_names(table, omitted, lists.type)
    return found.set_column(found.schema.get_field_index(UNCHANGED), rows.schema.field(UNCHANGED), names)


def rows_to_reread(table: Table, rows: pa.RecordBatch, persons: Mapping[str, str]) -> pa.Array | None:
    """Return which changes must be read by key because of these columns and their persons; None if no change must."""
    lists = rows.column(UNCHANGED)
    if lists.null_count == len(lists):
        return None
    omitted = _omitted_values(table, lists)
    places = {column.name: place for place, column in enumerate(table.columns)}
    op = rows.column(OP)
    inserts, updates = (pc.equal(op, letter).to_numpy(zero_copy_only=False) for letter in (INSERT, UPDATE))
    found = np.zeros(len(lists), np.bool_)
    for name, person in persons.items():
        value, owner = omitted[places[name]], omitted[places[person]]
        # If the person is part of the key, an update keeps the person. An insert with values that were not sent
        # continues a row of another key, whose person may have been different.
        may_move = inserts if person in table.key else inserts | updates
        found |= (~value & owner & (inserts | updates)) | (value & ~owner & may_move)
    return pa.array(found) if found.any() else None


def _omitted_values(table: Table, lists: pa.Array) -> Bools:
    """Return which values were not sent: a row for each column of the table, and an entry for each change."""
    omitted = np.zeros((len(table.columns), len(lists)), np.bool_)
    names = pa.array([column.name for column in table.columns], pa.string())
    column = pc.index_in(lists.flatten(), names).to_numpy(zero_copy_only=False)
    omitted[column, pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)] = True
    return omitted
