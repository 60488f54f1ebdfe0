"""What both ends of a source do with changes: joining parts, truncates, splitting key changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture.interleave.messages import Committed, MarkSeen
from cdcflow.model.change import ChangeBatch, Kind, Run, reads
from cdcflow.model.position import Position, Token
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.engine.buffers import Cells, with_padding
from cdcflow.sources.engine.changes import (
    absent,
    after_deletes,
    after_truncate,
    counted_rows,
    merge_batches,
    row_indices,
    split_at_marks,
    truncation,
)
from cdcflow.sources.engine.row_images import ops, same_values, split_key_changes, unchanged_names

INT, TEXT = ColumnType("bigint", pa.int64()), ColumnType("text", pa.string())
ORDERS = Table(
    TableId("public", "orders"), 1, (Column("id", 1, INT), Column("a", 2, TEXT), Column("b", 3, TEXT)), ("id",)
)
OTHER = replace(ORDERS, id=TableId("public", "other"))


def rows_of(*keys: int) -> pa.RecordBatch:
    found = [{"id": key, "a": f"a{key}", "b": None, "_op": "c"} for key in keys]
    return pa.RecordBatch.from_pylist(found, schema=ORDERS.change_schema)


def flat(batch: ChangeBatch) -> list[tuple[int, int]]:
    return list(zip(batch.index.tolist(), batch.rows.column("id").to_pylist(), strict=True))


def part(*at: tuple[int, int]) -> tuple[np.ndarray, pa.RecordBatch]:
    return np.array([index for index, _ in at], np.int64), rows_of(*(key for _, key in at))


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([part((0, 10), (4, 14))], [(0, 10), (4, 14)]),
        ([part((0, 10), (1, 11)), part((2, 12))], [(0, 10), (1, 11), (2, 12)]),
        ([part((0, 10), (3, 13)), part((1, 11), (2, 12))], [(0, 10), (1, 11), (2, 12), (3, 13)]),
        ([part((2, 12)), part((0, 10))], [(0, 10), (2, 12)]),
    ],
)
def test_parts_become_one_batch_in_the_order_of_their_run(
    parts: list[tuple[np.ndarray, pa.RecordBatch]],
    whole: list[tuple[int, int]],
) -> None:
    """The index is the offset to come: each row keeps its own, whichever part it came with."""
    batch = merge_batches(ORDERS, parts)
    assert flat(batch) == whole
    assert batch.table is ORDERS
    assert batch.rows.schema == ORDERS.change_schema


def test_emptied_table_is_one_row_without_values() -> None:
    """Otherwise its values would belong to some row."""
    row = truncation(ORDERS)
    assert row.schema == ORDERS.change_schema
    assert row.to_pylist() == [{"id": None, "a": None, "b": None, "_op": "t", "_unchanged": None, "_before": None}]


def test_a_table_that_is_read_whole_is_emptied_first() -> None:
    """Its rows follow the truncate, in the same transaction, and nothing else differs."""
    schema = ORDERS.row_schema
    run = reads(ORDERS, [pa.record_batch([[7], ["x"], ["y"]], schema=schema)] * 2, Position("0009"), 5)
    found = after_truncate(run, ORDERS)
    assert [(b.index.tolist(), b.rows.column("_op").to_pylist()) for b in found.batches] == [
        ([0], ["t"]),
        ([1], ["r"]),
        ([2], ["r"]),
    ]
    assert (found.kind, found.transactions, found.rows) == (Kind.READ, 1, 3)
    assert (found.xid.tolist(), found.last_position, found.last_commit_ts) == ([0], Position("0009"), 5)
    assert [b.table for b in found.batches] == [ORDERS] * 3


def test_letters_become_the_column_of_ops() -> None:
    """However wide their codes were."""
    assert ops(np.frombuffer(b"cud", np.uint8)).to_pylist() == ["c", "u", "d"]
    assert ops(np.array([114, 116], np.int64)).to_pylist() == ["r", "t"]
    assert ops(np.frombuffer(b"c_u_d", np.uint8)[::2]).to_pylist() == ["c", "u", "d"]
    assert ops(np.empty(0, np.uint8)).to_pylist() == []


def test_each_change_names_the_columns_that_were_not_sent() -> None:
    """NULL, and not an empty list, means that all were sent."""
    omitted = np.array([[False, False, False, True], [True, False, False, True], [True, False, True, False]])
    type_ = ORDERS.change_schema.field("_unchanged").type
    found = unchanged_names(ORDERS, omitted, type_)
    assert found.to_pylist() == [["a", "b"], None, ["b"], ["id", "a"]]
    assert found.type == type_


# ── key changes ─────────────────────────────────────────────────────────────────────────────────────────────

U, D, C = (ord(letter) for letter in "udc")


def bools(*values: int) -> np.ndarray:
    return np.array(values, np.bool_)


def test_a_key_change_is_a_delete_and_directly_after_it_an_insert() -> None:
    """P09. The delete has the old image's values; the insert names the old row, an update only where it carries it."""
    new = np.array([10, 11, 12, 13], np.int64)
    split = split_key_changes(
        bools(0, 1, 0, 1), bools(0, 0, 1, 0), new, np.array([U, U, U, C], np.uint8), delete=D, insert=C
    )
    assert bytes(split.op.tolist()) == b"udcudc"
    assert split.value.tolist() == [10, 1, 11, 12, 3, 13]
    assert split.before.tolist() == [-1, -1, 1, 2, -1, 3]
    assert split.last.tolist() == [0, 2, 3, 5], "the index of each row's last change"


def test_rows_that_keep_their_keys_stay_one_change_each() -> None:
    """The usual case."""
    split = split_key_changes(
        bools(0, 0), bools(0, 1), np.array([5, 6], np.int64), np.array([U, D], np.uint8), delete=D, insert=C
    )
    assert (bytes(split.op.tolist()), split.value.tolist(), split.before.tolist()) == (b"ud", [5, 6], [-1, 1])
    assert split.last.tolist() == [0, 1]


# ── values that are the same bytes ──────────────────────────────────────────────────────────────────────────

BUFFER = with_padding([b"abcdXbcdabcd"])


def cells(*at: tuple[int, int] | None) -> Cells:
    """Values by position and size; NULL is `None`, with a meaningless position and size."""
    found = [(2, 3) if a is None else a for a in at]
    start, size = (np.array([a[i] for a in found], np.int64) for i in (0, 1))
    return Cells(BUFFER, start, size, np.array([a is not None for a in at]) if None in at else None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((0, 4), (8, 4), True),
        ((0, 4), (4, 4), False),
        ((0, 4), (0, 3), False),
        ((1, 3), (5, 3), True),
        ((0, 0), (4, 0), True),
        ((0, 4), (0, 4), True),
        ((0, 4), None, False),
        (None, (0, 4), False),
        (None, None, True),
    ],
)
def test_two_values_are_the_same_when_their_bytes_are(
    one: tuple[int, int] | None, other: tuple[int, int] | None, same: bool
) -> None:
    """A key wrongly taken as changed would be two changes; a missed change would leave the old row."""
    assert same_values(cells(one), cells(other)).tolist() == [same]


def test_each_row_is_compared_with_its_own() -> None:
    """Also when only some of them need a comparison of their bytes."""
    one = cells((0, 4), None, (0, 4), (0, 2), (4, 1), None)
    other = cells((8, 4), None, (4, 4), (8, 2), (0, 1), (0, 1))
    assert same_values(one, other).tolist() == [True, True, False, True, False, False]
    moved = Cells(BUFFER, np.array([0, 3], np.int64), np.array([4, 2], np.int64), np.array([True, False]))
    assert same_values(moved, cells((8, 4), None)).tolist() == [True, True], "NULL has no size"


def test_deletes_precede_the_rows_of_a_repair() -> None:
    """Each has its key, and marks all other columns as not sent."""
    rows = pa.RecordBatch.from_pylist([{"id": 5, "a": "a5", "b": "b5"}], schema=ORDERS.row_schema)
    read = reads(ORDERS, [rows], Position("9"), 7)
    run = after_deletes(read, ORDERS, pa.table({"id": pa.array([3, 4], pa.int64())}))
    assert (run.kind, run.transactions, run.rows, run.last_position) == (Kind.READ, 1, 3, Position("9"))
    deletes, found = run.batches
    assert flat(deletes) == [(0, 3), (1, 4)]
    assert flat(found) == [(2, 5)]
    gone = {"id": 4, "a": None, "b": None, "_op": "d", "_unchanged": ["a", "b"], "_before": None}
    assert deletes.rows.to_pylist()[1] == gone
    assert after_deletes(read, ORDERS, pa.table({"id": pa.array([], pa.int64())})) is read


def test_delete_of_a_row_that_is_all_key_marks_no_column_as_unchanged() -> None:
    """No column is unchanged, which is NULL and not an empty list."""
    bare = Table(TableId("public", "bare"), 1, (Column("id", 1, INT), Column("k", 2, TEXT)), ("k", "id"))
    keys = pa.table({"k": ["x"], "id": pa.array([1], pa.int64())})
    (deletes,) = after_deletes(reads(bare, [], Position("9"), 7), bare, keys).batches
    gone = {"id": 1, "k": "x", "_op": "d", "_unchanged": None, "_before": None}
    assert deletes.rows.to_pylist() == [gone]


@pytest.mark.parametrize(
    ("asked", "found", "gone"),
    [
        ([(1, "a"), (1, "b"), (2, "a")], [(1, "b"), (2, "b")], [(1, "a"), (2, "a")]),
        ([(1, "A")], [(1, "a")], [(1, "A")]),
        ([(1, "a"), (1, "a ")], [(1, "a ")], [(1, "a")]),
        ([(1, "a")], [], [(1, "a")]),
        ([(1, "a")], [(1, "a")], []),
    ],
)
def test_keys_that_no_row_has_are_reported_value_for_value(
    asked: list[tuple[int, str]], found: list[tuple[int, str]], gone: list[tuple[int, str]]
) -> None:
    """Keys that are equal for the server may be different rows downstream, and the other way round."""
    schema = pa.schema([("k", pa.int64()), ("t", pa.dictionary(pa.int32(), pa.string()))])
    keys = pa.Table.from_pylist([{"k": k, "t": t} for k, t in asked], schema)
    rows = [pa.RecordBatch.from_pylist([{"v": 0, "t": t, "k": k}]) for k, t in found]
    assert [(row["k"], row["t"]) for row in absent(keys, rows).to_pylist()] == gone


def test_keys_of_several_parts_are_compared_part_by_part() -> None:
    """An interval is such a value."""
    keys = pa.table({"k": [{"days": 1, "us": 2}, {"days": 1, "us": 3}]})
    rows = [pa.RecordBatch.from_pylist([{"k": {"days": 1, "us": 2}}]), pa.RecordBatch.from_pylist([], keys.schema)]
    assert absent(keys, rows).to_pylist() == [{"k": {"days": 1, "us": 3}}]


def test_keys_with_lists_all_count_as_absent() -> None:
    """Arrow cannot compare them; a delete before the row does no harm."""
    keys = pa.table({"k": [[1], [2]]})
    assert absent(keys, [pa.RecordBatch.from_pydict({"k": [[1]]})]) is keys


def test_rows_of_one_message_follow_each_other_whatever_table_has_the_rows_between() -> None:
    """Two rows with one index would be one row of the log."""
    mine, others = np.array([0, 0, 2, 4, 4, 4]), np.array([1, 3])
    before = counted_rows([mine, others], 5)
    assert before.tolist() == [0, 2, 3, 4, 5, 8]
    assert row_indices(mine, before).tolist() == [0, 1, 3, 5, 6, 7]
    assert row_indices(others, before).tolist() == [2, 4]
    assert row_indices(mine[:0], before).tolist() == []


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([], ["1 2 5"]),
        ([(-1, "a")], ["a", "1 2 5"]),
        ([(2, "a"), (2, "b")], ["1 2", "a", "b", "5"]),
        ([(0, "a"), (3, "b"), (5, "c")], ["a", "1 2", "b", "5", "c"]),
        ([(9, "a")], ["1 2 5", "a"]),
    ],
)
def test_run_is_split_where_marks_were_seen(marks: list[tuple[int, str]], expected: list[str]) -> None:
    """Rows before a mark that were delivered after it would be replayed over rows that contain them."""
    full = np.array([1, 2, 5])
    positions = pa.array([str(number) for number in full], pa.string())
    run = Run(
        full.astype(np.uint64), positions, full, np.arange(1, 4), (ChangeBatch(ORDERS, *part((0, 1), (1, 2), (2, 5))),)
    )
    seen = [(number, MarkSeen(Token(token), Position("0"), 0)) for number, token in marks]
    found = split_at_marks(run, full, seen)
    told = []
    for event in found:
        if isinstance(event, MarkSeen):
            told.append(str(event.token))
        elif isinstance(event, Committed) and isinstance(event.run, Run):
            told.append(" ".join(event.run.position.to_pylist()))
    assert told == expected
