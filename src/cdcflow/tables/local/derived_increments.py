"""Compute the rows of a derived table from their previous values and the changed rows of its inputs
(`tables.derived.increments`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.tables.derived.increments import UNCLEAR, Increments, increments_of, weight_column
from cdcflow.tables.derived.lineage import Lineage, NotCovered, can_compare, unit_column
from cdcflow.tables.local.derived_rows import stored_types
from cdcflow.tables.local.derived_units import Changes, RowsOfInput, both, read_rows, rows_of_units
from cdcflow.tables.local.query_database import QueryDatabase

_WHOLE_SUM = pa.decimal128(38, 0)
"""The type of a sum of whole numbers."""

PresentRows = Callable[[pa.Table], pa.Table]
"""A function that returns the table's rows with these units, and `increments.PLACE`; perhaps other rows, too."""


def read_increments(db: QueryDatabase, lineage: Lineage, empty: Mapping[int, pa.Table]) -> Increments:
    """Return how a query's results are computed from the previous ones. `empty`: the joined tables without rows, by
    number.

    Raises:
        NotCovered: they cannot be computed in this way.
    """
    if isinstance(lineage.results, str):
        raise NotCovered(lineage.results)
    views = {number: db.give(rows) for number, rows in empty.items()}
    units = ", ".join(f"({sql}) AS _cdcflow_unit_{n}" for n, sql in enumerate(lineage.unit_sql))
    affected = db.give(db.arrow(f"SELECT {units} FROM {lineage.from_sql(views)} WHERE false"))  # noqa: S608  rendered
    query = lineage.rows_sql([views[n] for n in sorted(views)], affected)
    result = stored_types(db.arrow(query)).schema
    found = increments_of(lineage, result.names, db.types(query))
    changed = found.changed_sql({n: db.give(_with_weight(rows, n, 1)) for n, rows in empty.items()}, [0])
    changes = stored_types(db.arrow(found.changes_sql([changed])))
    for column, item in found.sums_of_means():
        if changes.schema.field(column).type != _WHOLE_SUM:
            raise NotCovered(f"its column {result.field(item).name} is an avg of values that are not whole numbers")
    for column, item in found.columns_of_changes():
        type_ = result.field(item).type
        if not can_compare(str(type_)) or changes.schema.field(column).type != type_:
            raise NotCovered(f"its column {result.field(item).name} is of type {type_}")
    return found


def continue_rows(
    db: QueryDatabase,
    increments: Increments,
    changes: Changes,
    new: Mapping[str, RowsOfInput],
    present: PresentRows,
) -> tuple[pa.Table, pa.Table] | None:
    """Return the units that changes concern, and the new rows of these units; `None` if computing them needs more rows
    than these."""
    lineage = increments.lineage
    changed = {one.number for one in lineage.joined if any(map(len, changes.get(one.table, ())))}
    if not changed or any(lineage.joined[number].nullable for number in changed):
        return None
    if any(new[table].may_have_null(column) for table, column in increments.columns_without_null):
        return None
    parts = [_changed_sql(db, increments, start, changed, changes, new) for start in sorted(changed)]
    found = stored_types(db.arrow(increments.changes_sql(parts)))
    differences = db.give(found)
    units = _units(db, increments, found, differences)
    rows = db.arrow(increments.rows_sql(differences, db.give(present(units))))
    if not pc.any(rows.column(UNCLEAR)).as_py():
        return units, rows.drop_columns([UNCLEAR])
    given = db.give(rows)
    unclear = db.arrow(increments.unclear_sql(given))
    known = db.arrow(increments.without_sql(given, db.give(unclear)))
    return units, both(known, rows_of_units(db, lineage, unclear, new))


def _units(db: QueryDatabase, increments: Increments, found: pa.Table, differences: str) -> pa.Table:
    """Return the units of the groups that change; without a query, which costs milliseconds, if each group is one."""
    columns = increments.columns_of_units()
    if len(set(columns)) < len(increments.groups):
        return db.arrow(increments.units_sql(differences))
    return found.select(columns).rename_columns([unit_column(n) for n in range(len(columns))])


def _changed_sql(
    db: QueryDatabase,
    increments: Increments,
    start: int,
    changed: set[int],
    changes: Changes,
    new: Mapping[str, RowsOfInput],
) -> str:
    """Return the query for the joined rows that the changed rows of table `start` remove and add. Tables to its left
    are joined in their state after the changes, tables to its right in their state before."""
    lineage = increments.lineage
    rows = {start: _with_signs(changes[lineage.joined[start].table], start)}
    weighted = [start]
    for read in lineage.reads_from[start]:
        number = read.joined
        rows[number] = read_rows(lineage, new, read, rows)
        if number in changed and number > start:
            gone, come = changes[lineage.joined[number].table]
            now = _with_weight(rows[number], number, 1)
            rows[number] = both(_with_signs((come, gone), number), now)
            weighted.append(number)
    return increments.changed_sql({n: db.give(one) for n, one in rows.items()}, weighted)


def _with_signs(changed: tuple[pa.Table, pa.Table], number: int) -> pa.Table:
    """Return removed and added rows in one table with their weights: -1 and +1."""
    return both(_with_weight(changed[0], number, -1), _with_weight(changed[1], number, 1))


def _with_weight(rows: pa.Table, number: int, weight: int) -> pa.Table:
    return rows.append_column(weight_column(number), pa.array(np.full(len(rows), weight, np.int64)))
