"""Compute which rows of a derived table changes of its inputs concern, and what these rows are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from cdcflow.tables.derived.lineage import InputRead, Lineage, Reach, unit_column
from cdcflow.tables.local.derived_rows import stored_types
from cdcflow.tables.local.query_database import QueryDatabase

Changes = Mapping[str, tuple[pa.Table, pa.Table]]
"""By input: the rows that the input no longer has, and its new rows."""


class RowsOfInput(Protocol):
    """The rows of an input at the new cut."""

    def rows(self, columns: Sequence[str]) -> pa.Table:
        """Return these columns of all rows."""

    def may_have_null(self, column: str) -> bool:
        """Return whether a row may have NULL in a column."""

    def rows_with(self, columns: Sequence[str], column: str, values: pa.ChunkedArray) -> pa.Table:
        """Return these columns of the rows that have one of the values in `column`; NULL is a value, too."""


def net_changes(db: QueryDatabase, gone: pa.Table, come: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that were removed and those that were added, without those that are in both, as bags."""
    if not (len(gone) and len(come)):
        return gone, come
    names = come.column_names
    plain = [f"c{n}" for n in range(len(names))]
    views = [db.give(rows.rename_columns(plain)) for rows in (gone, come)]
    listed = ", ".join(plain)
    found = db.arrow(
        f"SELECT {listed}, CAST(sum(t) AS BIGINT) AS t FROM (SELECT *, -1 AS t FROM {views[0]} UNION ALL"  # noqa: S608  cdcflow's own
        f" SELECT *, 1 FROM {views[1]}) GROUP BY {listed} HAVING sum(t) <> 0"
    )
    times, rows = found.column("t").to_numpy(), found.drop_columns(["t"]).rename_columns(names)
    less, more = (np.repeat(np.arange(len(times)), np.maximum(n, 0)) for n in (-times, times))
    return rows.take(pa.array(less)), rows.take(pa.array(more))


def recompute(
    db: QueryDatabase, lineage: Lineage, changes: Changes, new: Mapping[str, RowsOfInput]
) -> tuple[pa.Table, pa.Table]:
    """Return the units that changes concern, and the rows of the query's result for these units."""
    parts = [one for reach in lineage.reaches if (one := _find_units(db, lineage, reach, changes, new)) is not None]
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        (units,) = parts
    elif parts:
        units = db.arrow(" UNION ".join(f"SELECT * FROM {db.give(part)}" for part in parts))  # noqa: S608  cdcflow's own
    else:
        listed = ", ".join(f"NULL AS {unit_column(n)}" for n in range(len(lineage.units)))
        units = db.arrow(f"SELECT {listed} WHERE false")
    return units, rows_of_units(db, lineage, units, new)


def rows_of_units(db: QueryDatabase, lineage: Lineage, units: pa.Table, new: Mapping[str, RowsOfInput]) -> pa.Table:
    """Return the rows of the query's result for some units."""
    affected = db.give(units)
    rows: dict[int, pa.Table] = {}
    for read in lineage.reads:
        rows[read.joined] = read_rows(lineage, new, read, rows, units)
    given = [db.give(rows[n]) for n in range(len(lineage.joined))]
    return stored_types(db.arrow(lineage.rows_sql(given, affected)))


def read_rows(
    lineage: Lineage,
    new: Mapping[str, RowsOfInput],
    read: InputRead,
    rows: Mapping[int, pa.Table],
    units: pa.Table | None = None,
) -> pa.Table:
    """Read rows of a joined table as `read` describes. `rows`: the rows of the tables that were read before, by
    number."""
    joined = lineage.joined[read.joined]
    version, columns = new[joined.table], lineage.needed_columns(read.joined)
    if not read.column:
        return version.rows(columns)
    if read.of is not None:
        values = rows[read.of].column(lineage.joined[read.of].columns[read.of_column][0])
    else:
        assert units is not None  # noqa: S101  only such reads name a unit
        values = units.column(read.unit)
    return version.rows_with(columns, joined.columns[read.column][0], values)


def both(one: pa.Table, other: pa.Table) -> pa.Table:
    """Return the rows of two tables that have the same columns, with the second one's column names and types."""
    return pa.concat_tables([one.select(other.column_names).cast(other.schema), other])


def _find_units(
    db: QueryDatabase, lineage: Lineage, reach: Reach, changes: Changes, new: Mapping[str, RowsOfInput]
) -> pa.Table | None:
    """Return the units that the changed rows of one joined table concern; `None` if no row of it changed."""
    changed = changes.get(lineage.joined[reach.start].table)
    if changed is None or not any(map(len, changed)):
        return None
    rows = {reach.start: both(*changed)}
    for read in reach.reads:
        now = read_rows(lineage, new, read, rows)
        before = changes.get(lineage.joined[read.joined].table)
        rows[read.joined] = now if before is None else both(before[0], now)
    views = {number: db.give(one) for number, one in rows.items()}
    return db.arrow(lineage.affected_sql(reach, views))
