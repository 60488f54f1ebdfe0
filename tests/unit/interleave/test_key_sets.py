"""Keys that are remembered while a table is read: the type of its key column may change during that."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcflow.model.change import KeySet


def keys(values: list[object], arrow: pa.DataType) -> KeySet:
    return KeySet(pa.table({"id": pa.array(values, arrow)}))


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        (keys([1, 2], pa.int32()), keys([2, 3], pa.int64()), [1, 2, 3]),
        (keys([1, 2], pa.int32()), keys(["2", "x"], pa.string()), ["1", "2", "x"]),
        (keys(["2", "x"], pa.string()), keys([1, 2], pa.int32()), ["1", "2", "x"]),
    ],
    ids=["widened", "made text", "made a number"],
)
def test_keys_of_several_shapes_are_one_set(first: KeySet, then: KeySet, expected: list[object]) -> None:
    """W11: in the end the server compares them by its own type, so text names the same row as the number."""
    found = first.union(then).distinct().keys.column("id").to_pylist()
    assert sorted(found) == expected
