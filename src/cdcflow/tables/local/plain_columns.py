"""Columns of the log's rows that a merge needs without a change of values: taken without a query.

A small merge spends more time on DuckDB's planning than on the rows. The expressions of most tables only name a column
of the log, and convert it to the type that it has already; whatever else they have is up to DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import TRUNCATE
from cdcflow.model.table import OFFSET, OP
from cdcflow.tables.local.arrow_types import type_of
from cdcflow.tables.port import HandOver

_AFTER = re.compile(rf"{OFFSET} > (\d+) AND {OP} <> '{TRUNCATE}'")
_NAMED = re.compile(rf"({OFFSET}|{OP}) AS (\w+)")
_CONVERTED = re.compile(r"CAST\(`((?:[^`]|``)+)` AS ([\w(), ]+)\) AS (\w+)")


def take_plain(rows: pa.Table, expressions: Sequence[str], where: str, names: Sequence[str]) -> pa.Table | None:
    """Return some columns of a query over the log's rows; `None` if that takes more than naming columns of the rows.

    `expressions` and `where`: of the query (see `merge.reduce.projection`); `names`: the columns of its result to
    return.
    """
    after = _AFTER.fullmatch(where)
    if after is None:
        return None
    known = {found: column for one in expressions for found, column in _parse(rows, one)}
    if not known.keys() >= set(names):
        return None
    found = pa.table({name: known[name] for name in names})
    keeps = pc.and_(pc.greater(rows.column(OFFSET), int(after[1])), pc.not_equal(rows.column(OP), TRUNCATE))
    return found if pc.all(keeps).as_py() else found.filter(keeps)


def _parse(rows: pa.Table, expression: str) -> list[tuple[str, pa.ChunkedArray]]:
    """Return the name of an expression and the column that it takes; nothing if it computes something."""
    if (named := _NAMED.fullmatch(expression)) is not None:
        return [(named[2], rows.column(named[1]))]
    converted = _CONVERTED.fullmatch(expression)
    if converted is None:
        return []
    name = converted[1].replace("``", "`")
    try:
        wanted = type_of(converted[2])
    except HandOver:
        return []
    if rows.schema.names.count(name) != 1 or rows.schema.field(name).type != wanted:
        return []
    return [(converted[3], rows.column(name))]
