"""The latest change of each key, against rows that a table has."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdcflow.tables.local.whole_rows import LatestChanges

SCHEMA = pa.schema(
    [("_missing", pa.list_(pa.string())), ("id", pa.int32()), ("_offset", pa.int64()), ("qty", pa.int16())]
)


def changes() -> LatestChanges:
    """Key 2 is deleted at offset 12, keys 3 and 5 change at 10 and 11."""
    rows = pa.table({"id": [2, 3, 5], "qty": [None, 30, 50], "_offset": [12, 10, 11]})
    return LatestChanges(np.array([2, 3, 5]), rows, np.array([True, False, False]))


def test_only_older_rows_are_replaced() -> None:
    """Hard case G08: a row that is newer than the change, or was written by it, is left alone."""
    replaced = changes().replaces(np.array([5, 2, 3, 3]), np.array([10, 11, 10, 9]))
    assert replaced.tolist() == [True, True, False, True]


def test_row_comes_in_unless_it_was_deleted_or_the_table_has_a_later_one() -> None:
    rows = changes().new_rows(np.array([3], np.int64), SCHEMA)
    assert rows.schema == SCHEMA
    assert rows.to_pylist() == [{"_missing": None, "id": 5, "_offset": 11, "qty": 50}]


def test_without_later_rows_each_changed_row_comes_in() -> None:
    rows = changes().new_rows(np.array([], np.int64), SCHEMA)
    assert rows.column("id").to_pylist() == [3, 5]
