"""The index of keys: it misses no row, whatever is joined, and costs little more than two bytes per row."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.index import keyindex
from cdcflow.log.index.keyhash import hashes
from cdcflow.log.index.keyindex import CompactKeys, IndexFile, TableKeys, due, merge_files
from cdcflow.model.table import TableId

ORDERS = TableId("public", "orders")


def number_of(value: Any, of: pa.DataType) -> int:
    return int(hashes([pa.array([value], of)])[0])


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (pa.int64(), [0, 1, -1, 2**62]),
        (pa.uint64(), [0, 1, 2**64 - 1, 2**63]),
        (pa.string(), ["", "a", "aaaaaaaa", "aaaaaaaaa", "a" * 5000, "é", "\0"]),
        (pa.binary(), [b"", b"\0", b"\0\0", b"x"]),
        (pa.binary(3), [b"abc", b"abd"]),
        (pa.decimal128(38, 2), [Decimal("1.00"), Decimal("-1.00"), Decimal("0.00")]),
        (pa.date32(), [date(2024, 1, 1), date(1, 1, 1)]),
        (pa.timestamp("us", tz="UTC"), [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)]),
        (pa.float64(), [0.0, 1.5, float("inf")]),
        (pa.bool_(), [True, False]),
    ],
    ids=str,
)
def test_each_value_has_a_separate_number_wherever_it_is(of: pa.DataType, values: list[Any]) -> None:
    """Alone, in a slice, in chunks, next to NULLs."""
    listed = [None, *values, None]
    whole = hashes([pa.array(listed, of)])
    assert len(set(whole.tolist())) == len(values) + 1
    assert whole[0] == whole[-1]
    assert whole[1:-1].tolist() == [number_of(value, of) for value in values]
    assert hashes([pa.array(listed, of).slice(1, len(values))]).tolist() == whole[1:-1].tolist()
    assert hashes([pa.chunked_array([listed[:2], listed[2:]], of)]).tolist() == whole.tolist()


def test_keys_keep_their_number_where_an_integer_grows_and_a_zero_has_a_sign() -> None:
    for of in (pa.int16(), pa.int32(), pa.int64()):
        assert number_of(-5, of) == number_of(-5, pa.int64())
    assert number_of(0.0, pa.float64()) == number_of(-0.0, pa.float32())
    assert number_of(float("nan"), pa.float32()) == number_of(float("nan"), pa.float64())
    assert number_of("é", pa.string()) == number_of("é", pa.large_string())


def test_columns_of_a_key_have_an_order() -> None:
    a, b = pa.array([1, 2, 1]), pa.array([2, 1, 2])
    found = hashes([a, b]).tolist()
    assert found[0] == found[2] != found[1]
    assert len(hashes([pa.array([], pa.int64())])) == 0


def index_of(segments: list[list[int]], first: int = 1) -> list[IndexFile]:
    """A file for each segment, whose rows have these keys."""
    files, at = [], first
    for number, keys in enumerate(segments):
        block = (at, at + len(keys) - 1, 1)
        own = TableKeys.of([block], [hashes([pa.array(keys, pa.int64())])], [])
        files.append(IndexFile("log-a", at, block[1], 0, {ORDERS: own}, cut=number + 1, chain=f"hash {number}"))
        at += len(keys)
    return files


def reread(file: IndexFile) -> IndexFile:
    return IndexFile.from_buffer(memoryview(file.to_bytes()), "index")


def join_all(files: list[IndexFile]) -> list[IndexFile]:
    files = [reread(file) for file in files]
    while (found := due([(file.level, file.blocks) for file in files])) is not None:
        files[slice(*found)] = [reread(merge_files(files[slice(*found)]))]
    return files


@pytest.mark.parametrize(("segments", "rows", "keys"), [(700, 3, 40), (90, 2000, 5000), (24, 9000, 10**9)])
def test_no_row_of_a_key_is_outside_of_its_blocks(segments: int, rows: int, keys: int) -> None:
    """Small segments, whose blocks become one; hot keys; and many keys, which are kept in 16 bits."""
    chance = random.Random(segments)
    listed = [[chance.randrange(keys) for _ in range(rows)] for _ in range(segments)]
    files = join_all(index_of(listed))
    assert len(files) < 24, "neighbours were not joined"
    assert any(isinstance(file.tables[ORDERS], CompactKeys) for file in files) == (keys > 10**6)
    assert [file.first_offset for file in files[1:]] == [file.last_offset + 1 for file in files[:-1]]
    for number in chance.sample(range(segments), 20):
        offset = 1 + number * rows + chance.randrange(rows)
        wanted = number_of(listed[number][(offset - 1) % rows], pa.int64())
        blocks = [b for file in files for b in file.tables[ORDERS].may_have(wanted).tolist()]
        assert any(first <= offset <= last for first, last, _ in blocks)
        assert blocks == sorted(blocks)


def test_few_blocks_are_named_for_nothing_and_a_row_costs_two_bytes_and_a_half() -> None:
    chance = np.random.default_rng(7)
    files = join_all(index_of([chance.integers(0, 10**7, 20_000).tolist() for _ in range(64)]))
    assert sum(len(file.to_bytes()) for file in files) < 2.5 * 64 * 20_000
    named = sum(
        len(file.tables[ORDERS].may_have(number_of(key, pa.int64())))
        for key in range(10**8, 10**8 + 500)
        for file in files
    )
    assert named < 50


def test_blocks_of_another_shape_stay_separate_and_truncates_are_kept() -> None:
    files = [
        IndexFile(
            "log-a",
            10 * n + 1,
            10 * n + 10,
            0,
            {ORDERS: TableKeys.of([(10 * n + 1, 10 * n + 10, 1 + n // 4)], [hashes([pa.array([n])])], [10 * n + 5])},
        )
        for n in range(keyindex.FAN)
    ]
    [file] = join_all(files)
    assert file.tables[ORDERS].blocks.tolist() == [[1, 40, 1], [41, 80, 2]]
    assert file.tables[ORDERS].truncates.tolist() == [10 * n + 5 for n in range(keyindex.FAN)]
    assert (file.first_offset, file.last_offset, file.level) == (1, 80, 1)


def test_tables_added_later_are_in_the_joined_file() -> None:
    later = TableId("public", "later")
    files = index_of([[n] for n in range(keyindex.FAN)])
    own = TableKeys.of([(8, 8, 1)], [hashes([pa.array(["x"])])], [])
    files[-1] = IndexFile("log-a", 8, 8, 0, {later: own})
    [file] = join_all(files)
    assert set(file.tables) == {ORDERS, later}
    assert len(file.tables[later].may_have(number_of("x", pa.string()))) == 1


@pytest.mark.parametrize("at", [0, 9, 13, 40, 90, -3])
def test_damage_is_found_and_the_remedy_is_named(at: int) -> None:
    """Otherwise a flipped bit in an index would hide changes silently."""
    content = bytearray(index_of([[1, 2, 3]])[0].to_bytes())
    content[at] ^= 0x40
    with pytest.raises(InvariantViolated, match=r"(?s)index orders\.keys: it is damaged.*cdcflow log index --anew"):
        IndexFile.from_buffer(memoryview(bytes(content)), "orders.keys")


def test_a_file_that_ends_early_is_damaged() -> None:
    content = index_of([[1, 2, 3]])[0].to_bytes()
    for end in (3, 11, 60, len(content) - 20):
        with pytest.raises(InvariantViolated, match="damaged"):
            IndexFile.from_buffer(memoryview(content[:end]), "orders.keys")


def test_many_hashes_are_answered_as_each_alone() -> None:
    """A bulk request looks up all of its keys at once, in small files and in compact ones."""
    rng = np.random.default_rng(7)
    found = [rng.integers(0, 2**64, 20_000, np.uint64) for _ in range(5)]
    keys = TableKeys.of([(n * 20_000 + 1, (n + 1) * 20_000, 1) for n in range(5)], found, [])
    compact = CompactKeys.of(keys)
    assert compact is not None
    wanted = np.concatenate([found[2][:500], rng.integers(0, 2**64, 3000, np.uint64)])
    for one in (keys, compact, compact.whole()):
        alone = [len(one.may_have(int(hash_))) > 0 for hash_ in wanted]
        assert one.hits(wanted).tolist() == alone
        assert all(alone[:500])
    assert keys.hits(np.zeros(0, np.uint64)).tolist() == compact.hits(np.zeros(0, np.uint64)).tolist() == []
