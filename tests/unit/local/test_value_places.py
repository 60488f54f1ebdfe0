"""Rows of a file are found by the values of a column, the same ones as by reading all of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.tables.local import value_places
from cdcflow.tables.local.file_keys import stable_order
from cdcflow.tables.local.value_places import Hashes, ValuePlaces, open_places

SEED = int(os.environ.get("CDCFLOW_PLACES_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1


def packed(
    values: Sequence[int | str | None], type_: pa.DataType, hash_of: Callable[[pa.ChunkedArray], Hashes] | None = None
) -> ValuePlaces | None:
    middle = len(values) // 3
    parts = [pa.chunked_array([pa.array(part, type_)]) for part in (values[:middle], values[middle:])]
    return open_places(None, len(values), lambda: parts, hash_of)


def expected(values: Sequence[int | str | None], wanted: Collection[int | str | None], deleted: set[int]) -> list[int]:
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
        numbers = found.find(np.array(wanted, np.int64), np.array(sorted(deleted), np.int64), null=True)
        assert numbers.tolist() == expected(values, [None, *wanted], deleted), f"CDCFLOW_PLACES_SEED={SEED} {number}"


@pytest.mark.parametrize("is_mapped", [False, True])
def test_rows_with_hashed_values_are_found(monkeypatch: pytest.MonkeyPatch, *, is_mapped: bool) -> None:
    """A text is found by the upper bits of its hash. Others may have the same bits, but each row with it is found."""
    chance = random.Random(SEED)
    if is_mapped:
        monkeypatch.setattr(value_places, "IN_MEMORY_BYTES_MAX", 1)
    hashes = {f"text {n}": chance.choice([0, 1, (1 << 64) - 1, chance.getrandbits(64)]) for n in range(9)}

    def hash_of(part: pa.ChunkedArray) -> Hashes:
        return np.array([hashes.get(text, 0) for text in part.to_pylist()], np.uint64)

    for number in range(100):
        values = [chance.choice([*hashes, None]) for _ in range(chance.choice([1, 2, 3, 8, 64, 65]))]
        deleted = {n for n in range(len(values)) if chance.random() < 0.2}
        wanted, null = set(chance.sample([*hashes], 4)), chance.random() < 0.5
        found = packed(values, pa.string(), hash_of)
        assert found is not None
        asked = hash_of(pa.chunked_array([sorted(wanted)])), np.array(sorted(deleted), np.int64)
        numbers = found.find_hashes(*asked, null=null).tolist()
        right = [n for n in numbers if values[n] in wanted or (null and values[n] is None)]
        assert right == expected(values, {*wanted, None} if null else wanted, deleted), f"{SEED} {number}"
        bits = max(len(values) - 1, 1).bit_length() + 1
        same = {hashes[text] >> bits for text in wanted}
        assert all(values[n] is None or hashes[str(values[n])] >> bits in same for n in numbers), f"{SEED} {number}"


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
