"""Indexes of files: which rows have a key, and which indexes a process keeps."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcflow.tables.local import file_keys
from cdcflow.tables.local.file_keys import FileKeys, KnownKeys, keys_table, read_keys
from cdcflow.tables.local.scan import NONE, Numbers, ScannedFile, is_among

SCHEMA = pa.schema([("id", pa.int32()), ("_offset", pa.int64())])


def scanned(ids: Sequence[int | None], offsets: Sequence[int | None], group: int = 7) -> ScannedFile:
    written = io.BytesIO()
    pq.write_table(pa.table([ids, offsets], schema=SCHEMA), written, row_group_size=group)
    return ScannedFile(pq.ParquetFile(pa.BufferReader(written.getvalue())), SCHEMA, SCHEMA, lambda: NONE)


def index(ids: Sequence[int]) -> FileKeys:
    found = read_keys(scanned(ids, [100 + n for n in range(len(ids))]), "id")
    assert found is not None
    return found


@pytest.mark.parametrize("in_memory", [True, False])
def test_index_finds_the_rows_with_a_key_in_files_of_any_order(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are written in the key's order, or in one that the settings name; a key may be in a file several times."""
    monkeypatch.setattr(file_keys, "IN_MEMORY_BYTES_MAX", 1 << 20 if in_memory else 0)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for turn in range(200):
        there = [chance.randrange(-20, 20) for _ in range(chance.randrange(1, 40))]
        there = sorted(there) if turn % 2 else there
        keys = np.array(sorted(chance.sample(range(-25, 25), chance.randrange(9))), np.int64)
        gone: Numbers = np.array(sorted(chance.sample(range(len(there)), chance.randrange(len(there)))), np.int64)
        found = index(there).find(keys, gone)
        expected = [
            n for n, id_ in enumerate(there) if id_ in set(keys.tolist()) - {None} and n not in set(gone.tolist())
        ]
        assert found.numbers.tolist() == expected, (there, keys, gone)
        assert found.keys.tolist() == [there[n] for n in expected]
        assert found.offsets.tolist() == [100 + n for n in expected]


def test_rows_of_an_index_have_the_tables_types() -> None:
    found = index([1, 2, 2]).find(np.array([2], np.int64), NONE)
    assert keys_table(found, "id", [SCHEMA.field("_offset"), SCHEMA.field("id")]).to_pylist() == [
        {"_offset": 101, "id": 2},
        {"_offset": 102, "id": 2},
    ]
    assert keys_table(found, "id", list(SCHEMA)).schema == SCHEMA


def test_file_with_a_row_without_a_key_or_an_offset_has_no_index() -> None:
    """It is read at each merge, and the known result is that it has none."""
    assert read_keys(scanned([1, None], [1, 2]), "id") is None
    assert read_keys(scanned([1, 2], [None, 2]), "id") is None
    known = KnownKeys(at_once=True)
    asked: list[str] = []
    for _ in range(2):
        assert known.offer("file", 2, lambda: asked.append("read")) is None
    assert asked == ["read"]


def test_file_is_indexed_the_second_time() -> None:
    """A single merge would read it for nothing."""
    known = KnownKeys()
    assert known.get("file") is None
    assert known.offer("file", 3, lambda: index([1, 2, 3])) is None
    found = known.offer("file", 3, lambda: index([1, 2, 3]))
    assert found is not None
    assert known.get("file") is found
    assert len(found) == 3


def test_indexes_that_are_used_stay_and_others_make_room() -> None:
    """A file without room is read at each merge: to replace the others in turn would cost more."""
    now = [0.0]
    size = 3 * 8 * 10
    known = KnownKeys(3 * size, lambda: now[0], at_once=True)
    ids = list(range(10, 0, -1))  # in descending order, so that it has all three columns
    for name in ("a", "b", "c"):
        assert known.offer(name, 10, lambda: index(ids)) is not None
        now[0] += 1
    assert known.offer("d", 10, lambda: index(ids)) is None
    now[0] = file_keys.UNUSED_S + 0.5
    assert known.get("b") is not None
    assert known.offer("d", 10, lambda: index(ids)) is not None, "nothing has asked for a"
    assert [known.get(name) is not None for name in "abcd"] == [False, True, True, True]
    assert known.offer("e", 10, lambda: index(ids)) is None


def test_only_the_latest_files_are_remembered_as_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_keys, "SEEN_MAX", 2)
    known = KnownKeys()
    for name in ("a", "b", "c"):
        assert known.offer(name, 1, lambda: index([1])) is None
    assert known.offer("a", 1, lambda: index([1])) is None
    assert known.offer("c", 1, lambda: index([1])) is not None


def test_listed_numbers_are_recognized() -> None:
    numbers = np.array([0, 3, 9], np.int64)
    assert is_among(numbers, NONE).tolist() == [False] * 3
    assert is_among(numbers, np.array([3, 4], np.int64)).tolist() == [False, True, False]
    assert is_among(numbers, np.array([9], np.int64)).tolist() == [False, False, True]


def test_unused_indexes_in_memory_are_forgotten_and_mapped_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge leaves a small file in each table; most of these files are soon replaced by others."""
    size = index(range(10)).bytes
    monkeypatch.setattr(file_keys, "MEMORY_BYTES_MAX", 4 * size)
    known = KnownKeys(at_once=True)
    monkeypatch.setattr(file_keys, "IN_MEMORY_BYTES_MAX", 10)
    assert known.offer("large", 10, lambda: index(range(10))) is not None
    monkeypatch.undo()
    monkeypatch.setattr(file_keys, "MEMORY_BYTES_MAX", 4 * size)
    for name in ("a", "b", "c", "d"):
        assert known.offer(name, 10, lambda: index(range(10))) is not None
    assert known.get("a") is not None
    assert known.offer("e", 10, lambda: index(range(10))) is not None
    assert [known.get(n) is not None for n in ("large", "a", "b", "c", "d", "e")] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]


def test_index_of_rows_in_memory_is_that_of_their_file() -> None:
    rows = pa.table({"_offset": [7, 8, 9], "note": ["x", "y", "z"], "id": [3, 1, 2]})
    found = file_keys.keys_of(rows, "id")
    assert found is not None
    there = found.find(np.array([1, 3], np.int64), NONE)
    assert (there.numbers.tolist(), there.keys.tolist(), there.offsets.tolist()) == ([0, 1], [3, 1], [7, 8])
    assert file_keys.keys_of(pa.table({"_offset": [7, None], "id": [3, 1]}), "id") is None
