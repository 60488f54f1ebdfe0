"""Columns of the log's rows that a merge takes without a query are those that the query has."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.tables.local.plain_columns import take_plain
from cdcflow.tables.local.session import DuckSession, _UnusedView

ROWS = pa.table(
    {
        "_offset": pa.array([7, 8, 9, 10], pa.int64()),
        "_op": ["c", "t", "u", "d"],
        "id": pa.array([1, None, 3, 4], pa.int32()),
        "it`s": pa.array(["x", None, "", "ö"]),
        "at": pa.array([1, 2, None, 4], pa.timestamp("us", "UTC")),
        "price": pa.array([None, None, 2, 3], pa.decimal128(12, 2)),
        "ratio": pa.array([0.5, None, float("inf"), -0.0]),
        "list": pa.array([["a"], None, [], [None]], pa.list_(pa.string())),
    }
)
TYPES = {
    "id": "int",
    "it``s": "string",
    "at": "timestamp",
    "price": "decimal(12,2)",
    "ratio": "double",
    "list": "array<string>",
}
COLUMNS = [
    "_offset AS o",
    "_op AS op",
    "0 AS v",
    "CASE WHEN size(_unchanged) > 0 THEN CAST(NULL AS array<int>) END AS m",
    *(f"CAST(`{name}` AS {type_}) AS c{n}" for n, (name, type_) in enumerate(TYPES.items())),
]
NAMES = ["c2", "o", "c0", "c1", "c3", "c4", "op"]


@pytest.mark.parametrize("after", [0, 7, 9, 10])
def test_plain_columns_are_those_of_the_query(after: int) -> None:
    where = f"_offset > {after} AND _op <> 't'"
    found = take_plain(ROWS, COLUMNS, where, NAMES)
    assert found is not None
    with closing(DuckSession()) as session:
        asked = session.over(ROWS, f"SELECT {', '.join(NAMES)} FROM ({_UnusedView(ROWS, _known(), where).query})")
    assert found.column_names == asked.column_names
    assert found.cast(asked.schema).to_pylist() == asked.to_pylist()


def _known() -> list[str]:
    """The expressions without those that name columns which these rows do not have."""
    return [one for one in COLUMNS if "_unchanged" not in one]


@pytest.mark.parametrize(
    ("columns", "where", "names"),
    [
        (COLUMNS, "_offset > 1 AND _op <> 't' AND _offset BETWEEN 3 AND 5", NAMES),
        (COLUMNS, "false", NAMES),
        (COLUMNS, "_offset > 1 AND _op <> 't'", ["m"]),
        (COLUMNS, "_offset > 1 AND _op <> 't'", ["v"]),
        (["CAST(`id` AS bigint) AS c0"], "_offset > 1 AND _op <> 't'", ["c0"]),
        (["CAST(1 + `id` AS int) AS c0"], "_offset > 1 AND _op <> 't'", ["c0"]),
        (["CAST(`id` AS interval) AS c0"], "_offset > 1 AND _op <> 't'", ["c0"]),
        (["CAST(`gone` AS int) AS c0"], "_offset > 1 AND _op <> 't'", ["c0"]),
        (["CAST(`ratio` AS decimal(3,1)) AS c0"], "_offset > 1 AND _op <> 't'", ["c0"]),
    ],
    ids=["of a span", "no rows", "computed", "constant", "wider", "sum", "no type", "no column", "other type"],
)
def test_whatever_is_not_plain_is_up_to_the_query(columns: Any, where: str, names: list[str]) -> None:
    assert take_plain(ROWS, columns, where, names) is None
