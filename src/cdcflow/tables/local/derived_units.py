"""Which rows of a derived table changes of its inputs concern, and what these rows are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from cdcflow.tables.derived.lineage import InputRead, Lineage, Reach, unit_column
from cdcflow.tables.local.derived_rows import stored_types
from cdcflow.tables.local.query_database import QueryDatabase

Changes = Mapping[str, tuple[pa.Table, pa.Table]]
"""By input, the rows that it no longer has, and its new ones."""


class RowsOfInput(Protocol):
    """The rows of an input at the new cut."""

    def rows(self, columns: Sequence[str]) -> pa.Table:
        """Return these columns of all rows."""

    def rows_with(self, columns: Sequence[str], column: str, values: pa.ChunkedArray) -> pa.Table:
        """Return these columns of the rows that have one of the values in a column; NULL is a value, too."""


def recompute(
    db: QueryDatabase, lineage: Lineage, changes: Changes, new: Mapping[str, RowsOfInput]
) -> tuple[pa.Table, pa.Table]:
    """Return the units that changes concern, and the rows that the query gives for these units."""
    return _Recomputation(db, lineage, changes, new).run()


class _Recomputation:
    """One computation of a part of a table."""

    def __init__(self, db: QueryDatabase, lineage: Lineage, changes: Changes, new: Mapping[str, RowsOfInput]) -> None:
        self._db = db
        self._lineage = lineage
        self._changes = changes
        self._new = new

    def run(self) -> tuple[pa.Table, pa.Table]:
        lineage = self._lineage
        parts = [found for reach in lineage.reaches if (found := self._find_units(reach)) is not None and len(found)]
        if parts:
            units = self._db.arrow(" UNION ".join(f"SELECT * FROM {self._db.give(part)}" for part in parts))  # noqa: S608  cdcflow's own
        else:
            listed = ", ".join(f"NULL AS {unit_column(n)}" for n in range(len(lineage.units)))
            units = self._db.arrow(f"SELECT {listed} WHERE false")
        affected = self._db.give(units)
        rows: dict[int, pa.Table] = {}
        for read in lineage.reads:
            rows[read.joined] = self._read(read, rows, units)
        given = [self._db.give(rows[n]) for n in range(len(lineage.joined))]
        return units, stored_types(self._db.arrow(lineage.rows_sql(given, affected)))

    def _find_units(self, reach: Reach) -> pa.Table | None:
        """Return the units that the changed rows of one joined table concern; `None` if it has none."""
        changed = self._changes.get(self._lineage.joined[reach.start].table)
        if changed is None or not any(map(len, changed)):
            return None
        rows = {reach.start: _both(*changed)}
        for read in reach.reads:
            now = self._read(read, rows, None)
            before = self._changes.get(self._lineage.joined[read.joined].table)
            rows[read.joined] = now if before is None else _both(before[0], now)
        views = {number: self._db.give(one) for number, one in rows.items()}
        return self._db.arrow(self._lineage.affected_sql(reach, views))

    def _read(self, read: InputRead, rows: Mapping[int, pa.Table], units: pa.Table | None) -> pa.Table:
        joined = self._lineage.joined[read.joined]
        version, columns = self._new[joined.table], self._lineage.columns_read(read.joined)
        if not read.column:
            return version.rows(columns)
        if read.of is not None:
            values = rows[read.of].column(self._lineage.joined[read.of].columns[read.of_column][0])
        else:
            assert units is not None  # noqa: S101  only such reads name a unit
            values = units.column(read.unit)
        return version.rows_with(columns, joined.columns[read.column][0], values)


def _both(one: pa.Table, other: pa.Table) -> pa.Table:
    return pa.concat_tables([one.select(other.column_names).cast(other.schema), other])
