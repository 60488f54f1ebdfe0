"""Rows of a file are found by the values of a column, the same ones as by reading all of them."""

from __future__ import annotations

import os
import random

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.tables.local import value_places
from cdcflow.tables.local.file_keys import stable_order
from cdcflow.tables.local.value_places import ValuePlaces, pack_values

SEED = int(os.environ.get("CDCFLOW_PLACES_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1


def packed(values: list[int | None], type_: pa.DataType) -> ValuePlaces | None:
    middle = len(values) // 3
    return pack_values(
        len(values), [pa.chunked_array([pa.array(part, type_)]) for part in (values[:middle], values[middle:])]
    )


def expected(values: list[int | None], wanted: list[int], deleted: set[int]) -> list[int]:
    return [n for n, value in enumerate(values) if value in wanted and n not in deleted]


@pytest.mark.parametrize("is_mapped", [False, True])
def test_rows_with_values_are_found(monkeypatch: pytest.MonkeyPatch, *, is_mapped: bool) -> None:
    """A row that is not found keeps its old value in each sum that it belongs to."""
    chance = random.Random(SEED)
    if is_mapped:
        monkeypatch.setattr(value_places, "IN_MEMORY_BYTES_MAX", 1)
    for number in range(200):
        count, about = chance.choice([1, 2, 3, 8, 64, 65]), chance.choice([0, -(1 << 31), 7, LEAST + 9, GREATEST - 9])
        few = [value for value in range(about - 4, about + 5) if chance.random() < 0.8] or [about]
        values = [chance.choice([*few, *few, None]) for _ in range(count)]
        deleted = {n for n in range(count) if chance.random() < 0.2}
        wanted = sorted(chance.sample(range(about - 7, about + 8), 9))
        found = packed(values, pa.int64())
        assert found is not None
        numbers = found.find(np.array(wanted, np.int64), np.array(sorted(deleted), np.int64))
        assert numbers.tolist() == expected(values, wanted, deleted), f"CDCFLOW_PLACES_SEED={SEED} {number}"


def test_values_of_all_bits_are_not_packed() -> None:
    """Their rows are found by reading the column."""
    assert packed([LEAST, GREATEST], pa.int64()) is None
    assert packed([0, GREATEST >> 1], pa.int64()) is not None
    found = packed([0, GREATEST >> 1, None], pa.int64())
    assert found is None
    assert packed([None, None], pa.int32()) is not None


def test_order_is_that_of_a_stable_sort() -> None:
    """An index of keys relies on the order of equal keys only where it is searched, but on each number of a row."""
    chance = np.random.default_rng(SEED)
    for low, high in ((0, 1), (-3, 4), (LEAST, GREATEST), (LEAST, LEAST + 3), (GREATEST - 3, GREATEST)):
        for count in (0, 1, 2, 100):
            values = chance.integers(low, high, count)
            assert stable_order(values).tolist() == np.argsort(values, kind="stable").tolist(), SEED
