"""Rows of a table as acts of an evolution would leave them, without the acts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.merge.acts import Act, Add, Describe, Empty, Fill, MissAlso, MissOnly, Rename, Widen
from cdcflow.tables.merge.live import rows_after_acts
from cdcflow.tables.merge.target import Target, TargetColumn

TARGET = Target(
    1, ("id",), (TargetColumn("id", 1, "int"), TargetColumn("a", 2, "int"), TargetColumn("b's", 3, "string"))
)
ROWS = [
    {"id": 1, "a": 10, "b's": "x", "_offset": 5, "_missing": None},
    {"id": 2, "a": None, "b's": None, "_offset": 6, "_missing": ["b's", "a"]},
    {"id": 3, "a": 30, "b's": None, "_offset": 7, "_missing": ["b's"]},
]


def table_after(acts: Sequence[Act]) -> pa.Table:
    missing = pa.list_(pa.string())
    columns = [("id", pa.int32()), ("a", pa.int32()), ("b's", pa.string()), ("_offset", pa.int64())]
    with closing(DuckSession()) as session:
        view = session.view_of("rows", pa.Table.from_pylist(ROWS, pa.schema([*columns, ("_missing", missing)])))
        return session.arrow(rows_after_acts(TARGET, acts, view))


def after(acts: Sequence[Act]) -> list[dict[str, Any]]:
    return sorted(table_after(acts).to_pylist(), key=lambda row: row["id"])


def renamed(old: str, new: str, names: tuple[str, ...]) -> list[Act]:
    """A rename as `Evolution.acts` represents it."""
    return [MissAlso(old, new), Rename(old, new), MissOnly(names)]


def test_rows_stay_unchanged_without_acts() -> None:
    """Most tails change no shape."""
    assert after([Describe(TARGET)]) == ROWS


def test_two_columns_swap_their_names() -> None:
    """By way of a third name; a column's missing values go with the column."""
    acts = [
        *renamed("a", "__cdcflow_2", ("id", "__cdcflow_2", "b's")),
        *renamed("b's", "a", ("id", "__cdcflow_2", "a")),
        *renamed("__cdcflow_2", "b's", ("id", "b's", "a")),
    ]
    found = after(acts)
    assert [(row["a"], row["b's"]) for row in found] == [("x", 10), (None, None), (None, 30)]
    assert [row["_missing"] and sorted(row["_missing"]) for row in found] == [None, ["a", "b's"], ["a"]]


@pytest.mark.parametrize(("acts", "column", "values"), [
    ([Add(TargetColumn("c", 4, "int"), None)], "c", [None, None, None]),
    ([Add(TargetColumn("c", 4, "int"), "7"), Fill(TargetColumn("c", 4, "int"), "7")], "c", [7, 7, 7]),
    ([Widen("a", "bigint")], "a", [10, None, 30]),
    ([Empty("a")], "a", [None, None, None]),
    ([*renamed("a", "A a", ("id", "A a", "b's")), Widen("A a", "bigint")], "A a", [10, None, 30]),
])  # fmt: skip
def test_columns_are_added_widened_and_emptied(acts: list[Act], column: str, values: list[int | None]) -> None:
    """Each as the statement of the act would leave it (`statement.alter`)."""
    assert [row[column] for row in after(acts)] == values


@pytest.mark.parametrize(("acts", "column", "kind"), [
    ([Add(TargetColumn("c", 4, "int"), None)], "c", pa.int32()),
    ([Widen("a", "bigint")], "a", pa.int64()),
    ([Widen("a", "bigint"), Empty("a")], "a", pa.int64()),
])  # fmt: skip
def test_columns_have_the_types_that_the_acts_give_them(acts: list[Act], column: str, kind: pa.DataType) -> None:
    """A tail may hold a value that the table's own type cannot."""
    assert table_after(acts).schema.field(column).type == kind
