"""Count, with DuckDB, the rows that only one of two tables has."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa

from cdcflow.tables.local.query_database import QueryDatabase


def count_differences(first: pa.Table, second: pa.Table) -> tuple[int, int]:
    """Return how many rows only the first table has, and how many only the second. Both have the same columns; equal
    rows count as often as they occur."""
    with closing(QueryDatabase(None)) as database:
        one, two = database.give(first), database.give(second)
        return _only_in(database, one, two), _only_in(database, two, one)


def _only_in(database: QueryDatabase, one: str, two: str) -> int:
    query = f"SELECT count(*) AS n FROM (SELECT * FROM {one} EXCEPT ALL SELECT * FROM {two})"  # noqa: S608  cdcflow's own
    return int(database.arrow(query).column("n")[0].as_py())
