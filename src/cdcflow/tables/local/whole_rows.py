"""Merge changes that bring whole rows without SQL: the latest change of each key applies if the table's row is older.

The result is that of `merge.statement.merge`. If a merge has few changes, DuckDB spends most of the time on planning
that statement, and on creating tables for the changes and for the rows that they concern.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cdcflow.model.change import DELETE
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.local.scan import Int64s
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.merge.statement import Folding

Flags = NDArray[np.bool_]

CHANGES_MAX = 1 << 16
"""The maximum number of changes that are merged in this way. They are in memory outside of DuckDB, whose memory is
limited."""


@dataclass(frozen=True, slots=True)
class LatestChanges:
    """The latest change of each key. `keys` ascend; `rows` has a row for each key, under the names of the table's
    columns, with its offset; `is_delete`: the change deleted the row."""

    keys: Int64s
    rows: pa.Table
    is_delete: Flags

    @classmethod
    def of(cls, folding: Folding, session: DuckSession, schema: pa.Schema) -> LatestChanges | None:
        """Return the latest changes of a folding; `None` if they have to be merged by SQL. `schema`: that of
        the table."""
        target = folding.layout.target
        if len(target.key) != 1 or folding.count > CHANGES_MAX or not folding.brings_whole_rows:
            return None
        (key,) = folding.layout.key
        if not pa.types.is_signed_integer(schema.field(target.columns[key].name).type):
            return None
        names = {column.name: f"c{i}" for i, column in enumerate(target.columns)} | {OFFSET: "o"}
        if {*names, MISSING} != set(schema.names):
            return None  # the table has a column that no change sets
        found = session.columns_of(folding.changes, [*names.values(), "op"])
        if found.column(key).null_count:
            return None
        keys, offsets = (found.column(c).cast(pa.int64()).to_numpy() for c in (f"c{key}", "o"))
        order = np.lexsort((offsets, keys))
        is_last = np.append(np.diff(keys[order]) != 0, True)[: len(order)]
        latest = order[is_last]
        rows = found.take(pa.array(latest))
        is_delete = pc.equal(rows.column("op"), DELETE).to_numpy()
        return cls(keys[latest], rows.select(list(names.values())).rename_columns(list(names)), is_delete)

    def replaces(self, keys: Int64s, offsets: Int64s) -> Flags:
        """Return, for rows of the table with these keys and offsets, whether a later change replaces or deletes
        them."""
        older: Flags = offsets < self._offsets()[np.searchsorted(self.keys, keys)]
        return older

    def new_rows(self, later: Int64s, schema: pa.Schema) -> pa.Table:
        """Return the rows that the changes add, in the columns of `schema`, without those whose keys are in `later`:
        for these the table has later rows."""
        lives = ~self.is_delete
        lives[np.searchsorted(self.keys, later)] = False
        rows = self.rows.filter(pa.array(lives))
        rows = rows.append_column(MISSING, pa.nulls(len(rows), schema.field(MISSING).type))
        return rows.select(schema.names).cast(schema)

    def _offsets(self) -> Int64s:
        offsets: Int64s = self.rows.column(OFFSET).to_numpy()
        return offsets
