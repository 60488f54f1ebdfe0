"""Runs and key sets: what the interleave machine, the log and the attempt need of changes in columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.model import change
from cdcflow.model.change import (
    DELETE,
    EMPTY_RUN,
    INSERT,
    NO_KEYS,
    READ,
    SMALL_BYTES,
    TRUNCATE,
    UPDATE,
    ChangeBatch,
    KeySet,
    Kind,
    Run,
    SpooledTransaction,
    commit_clock,
    partial_keys,
    reads,
)
from cdcflow.model.position import Position
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType

INT, TEXT = ColumnType("bigint", pa.int64()), ColumnType("text", pa.string())


def table(name: str, *more: str) -> Table:
    columns = [Column("id", 1, INT), *(Column(c, i, TEXT) for i, c in enumerate(("wide", *more), start=2))]
    return Table(TableId("public", name), 1, tuple(columns), ("id",))


ORDERS, OTHER, THIRD = table("orders"), table("other"), table("third")
WIDER = table("orders", "added")
IDS = ORDERS.id, OTHER.id, THIRD.id

Row = tuple[Table, str, int, str | None]
"""Table, op, key, and the wide value, or None if it was not sent."""


def row_of(row: Row) -> dict[str, Any]:
    _, op, key, wide = row
    unchanged = ["wide"] if wide is None and op != "t" else None
    return {"id": key, "wide": wide, "_op": op, "_unchanged": unchanged, "_before": None}


def run_of(*transactions: list[Row], origin: bool = False) -> Run:
    """Transactions 101, 102, … that committed at 1001, 1002, …, with these rows."""
    rows = [row for transaction in transactions for row in transaction]
    batches = []
    for t in dict.fromkeys(row[0] for row in rows):
        index = [i for i, row in enumerate(rows) if row[0] == t]
        found = pa.RecordBatch.from_pylist([row_of(rows[i]) for i in index], schema=t.change_schema)
        batches.append(ChangeBatch(t, np.array(index, np.int64), found))
    numbers = range(1, len(transactions) + 1)
    return Run(
        np.array([100 + n for n in numbers], np.uint64),
        pa.array([f"p{n}" for n in numbers], pa.string()),
        np.array([1000 + n for n in numbers], np.int64),
        np.cumsum([len(transaction) for transaction in transactions], dtype=np.int64),
        tuple(batches),
        origin=pa.array([f"o{n}" for n in numbers], pa.string()) if origin else None,
    )


def text_of(run: Run) -> list[str]:
    """A run as lines: each transaction's header, and its rows in order."""
    at: dict[int, str] = {}
    for batch in run.batches:
        for index, values in zip(batch.index.tolist(), batch.rows.to_pylist(), strict=True):
            at[index] = f"{batch.table.id.name} {values['_op']} {values['id']}"
    assert sorted(at) == list(range(run.rows)), "every row of the run once, counted from 0"
    lines, first = [], 0
    for i in range(run.transactions):
        origin = "" if run.origin is None else f" {run.origin[i].as_py()}"
        lines.append(f"{run.xid[i]} {run.position[i].as_py()} {run.commit_ts[i]}{origin}")
        lines += [f"  {at[row]}" for row in range(first, int(run.ends[i]))]
        first = int(run.ends[i])
    return lines


T1: list[Row] = [(ORDERS, "c", 1, "a"), (OTHER, "c", 2, "b"), (ORDERS, "u", 3, "c")]
T2: list[Row] = [(OTHER, "d", 4, "d")]
T3: list[Row] = []
T4: list[Row] = [(ORDERS, "d", 5, "e"), (THIRD, "c", 6, "f")]
WHOLE = [
    "101 p1 1001",
    "  orders c 1",
    "  other c 2",
    "  orders u 3",
    "102 p2 1002",
    "  other d 4",
    "103 p3 1003",
    "104 p4 1004",
    "  orders d 5",
    "  third c 6",
]


@pytest.mark.parametrize(("count", "line"), [(0, 0), (1, 4), (2, 6), (3, 7), (4, 10)])
def test_a_run_parts_between_two_transactions_and_nothing_is_lost(count: int, line: int) -> None:
    """A window's edge is between two transactions; a row on its wrong side would be replayed twice, or not at all."""
    left, right = run_of(T1, T2, T3, T4).split_at(count)
    assert (text_of(left), text_of(right)) == (WHOLE[:line], WHOLE[line:])
    assert left.transactions + right.transactions == 4
    assert left.origin is None


def test_ops_are_the_letters_that_the_log_s_format_names() -> None:
    """Other programs read them: docs/changelog-format.md defines them."""
    assert (INSERT, UPDATE, DELETE, READ, TRUNCATE) == ("c", "u", "d", "r", "t")


def test_parts_keep_the_kind_and_each_transaction_s_origin() -> None:
    """Chunk rows that counted as the source's would be captured rows; an origin tells replicated changes apart."""
    left, right = run_of(T1, T2, origin=True).split_at(1)
    assert [line for part in (left, right) for line in text_of(part) if line[0] == "1"] == [
        "101 p1 1001 o1",
        "102 p2 1002 o2",
    ]
    rows = reads(ORDERS, [pa.record_batch([[1], ["a"]], schema=ORDERS.row_schema)], Position("p"), 7)
    assert [part.kind for part in rows.split_at(1)] == [Kind.READ, Kind.READ]


def test_a_part_of_a_batch_is_counted_from_the_part_s_first_row() -> None:
    """The offset of a row is the run's first plus its index: an index from elsewhere would be another row's offset."""
    batch = run_of(T1, T2, T3, T4).batches[0]  # orders: rows 0, 2 and 4
    part = batch.between(2, 4)
    assert part is not None
    assert (part.index.tolist(), part.rows.column("id").to_pylist()) == ([0], [3])
    assert part.table is batch.table
    assert batch.between(3, 4) is None, "no row of this table is in that range"
    both = batch.between(1, 5)
    assert both is not None
    assert (both.index.tolist(), both.rows.column("id").to_pylist()) == ([1, 3], [3, 5])


def test_run_describes_its_last_transaction() -> None:
    """The position to acknowledge and the commit clock are those of the last transaction."""
    run = run_of(T1, T2)
    assert (run.transactions, run.rows, run.last_position, run.last_commit_ts) == (2, 4, Position("p2"), 1002)
    assert run.xids.tolist() == [101, 102]
    assert run.kind is Kind.SOURCE
    assert (EMPTY_RUN.transactions, EMPTY_RUN.rows, EMPTY_RUN.bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("tables", "first"),
    [((ORDERS.id,), 0), ((OTHER.id,), 0), ((THIRD.id,), 3), ((THIRD.id, OTHER.id), 0), ((), None)],
)
def test_the_first_transaction_that_touches_a_table(tables: tuple[TableId, ...], first: int | None) -> None:
    """Earlier rows may go into the log at once; the window closes at it."""
    assert run_of(T1, T2, T3, T4).first_touching(frozenset(tables)) == first


def test_transaction_is_the_one_that_contains_its_rows() -> None:
    """The first row after another transaction's end belongs to the next one that has rows."""
    assert run_of(T2, T4).first_touching(frozenset({ORDERS.id})) == 1
    assert run_of(T2, T3, T4).first_touching(frozenset({ORDERS.id})) == 2


def test_a_batch_without_rows_touches_nothing_and_shows_no_shape() -> None:
    """A decoder may return an empty batch."""
    none = ChangeBatch(ORDERS, np.empty(0, np.int64), pa.RecordBatch.from_pylist([], schema=ORDERS.change_schema))
    whole = run_of(T2)
    run = Run(whole.xid, whole.position, whole.commit_ts, whole.ends, (none, *whole.batches))
    assert run.first_touching(frozenset({ORDERS.id})) is None
    assert run.shapes_of(ORDERS.id) == frozenset()
    assert run.first_touching(frozenset({ORDERS.id, OTHER.id})) == 0


def test_a_table_may_appear_in_several_shapes() -> None:
    """Each needs its entry in the schema history before its rows."""
    run = run_of(T1, [(WIDER, "c", 9, "x")])
    assert run.shapes_of(ORDERS.id) == {ORDERS, WIDER}
    assert run.shapes_of(OTHER.id) == {OTHER}
    assert run.shapes_of(THIRD.id) == frozenset()


def test_a_truncate_is_seen_among_other_rows_and_only_for_its_table() -> None:
    """It ends a backfill of that table: the rows read so far are gone."""
    run = run_of([(ORDERS, "c", 1, "a"), (ORDERS, "t", 0, None), (OTHER, "c", 2, "b")])
    assert (run.truncates(ORDERS.id), run.truncates(OTHER.id), run.truncates(THIRD.id)) == (True, False, False)


def keys_of(found: KeySet | None) -> list[Any] | None:
    return None if found is None else found.keys.column("id").to_pylist()


PARTIAL: list[Row] = [
    (ORDERS, "u", 1, None),
    (OTHER, "u", 2, None),
    (ORDERS, "c", 3, None),
    (ORDERS, "d", 4, None),
    (ORDERS, "u", 5, "whole"),
    (WIDER, "u", 6, None),
]


def test_keys_of_partial_rows_are_those_whose_values_must_be_read_again() -> None:
    """P01: a wide value that was not sent; a deleted row needs none, a whole row has all."""
    run = run_of(PARTIAL)
    assert keys_of(run.partial_keys(ORDERS.id)) == [1, 3, 6], "in every shape of the table"
    assert keys_of(run.partial_keys(OTHER.id)) == [2]
    assert run.partial_keys(THIRD.id) is None
    assert keys_of(run.moved_keys(ORDERS.id)) == [3], "only an insert continues the row of another key"
    assert run.moved_keys(OTHER.id) is None
    assert run_of(T1).partial_keys(ORDERS.id) is None


def test_a_batch_of_nothing_but_partial_deletes_has_no_keys_to_read() -> None:
    """None and an empty set are the same answer; it is None."""
    deletes = run_of([(ORDERS, "d", 4, None)]).batches[0]
    assert partial_keys(deletes) is None
    assert partial_keys(run_of([(ORDERS, "u", 4, None)]).batches[0], only="c") is None


def test_what_a_small_batch_holds_is_added_up_and_of_a_large_one_the_part_in_use() -> None:
    """Held bytes are a limit: a slice of a batch of 100 MB must not count as 100 MB."""
    small = run_of(T1).batches[0]
    piece = small.between(2, 3)
    assert piece is not None
    assert piece.rows.nbytes < small.rows.nbytes
    header = run_of([])
    cut = Run(header.xid, header.position, header.commit_ts, np.array([1]), (piece,))
    assert cut.bytes == small.rows.get_total_buffer_size(), "a piece of a small batch counts as the whole"
    large = pa.RecordBatch.from_pylist(
        [row_of((ORDERS, "c", i, "x" * 1000)) for i in range(1000)], schema=ORDERS.change_schema
    )
    batch = ChangeBatch(ORDERS, np.arange(1000, dtype=np.int64), large)
    whole = Run(header.xid, header.position, header.commit_ts, np.array([1000]), (batch,))
    assert whole.bytes > 1_000_000 > SMALL_BYTES
    part = batch.between(0, 10)
    assert part is not None
    few = Run(header.xid, header.position, header.commit_ts, np.array([10]), (part, small))
    assert 10_000 < few.bytes - small.rows.get_total_buffer_size() < 20_000


@pytest.mark.parametrize(("below", "counted"), [(0, "whole"), (1, "part")])
def test_a_batch_is_small_up_to_the_largest_of_them(below: int, counted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below that size the quick sum is enough; above it a piece counts as what it uses."""
    small = run_of(T1).batches[0]
    piece = small.between(2, 3)
    assert piece is not None
    size = {"whole": small.rows.get_total_buffer_size(), "part": piece.rows.nbytes}
    assert size["part"] < size["whole"]
    monkeypatch.setattr(change, "SMALL_BYTES", size["whole"] - below)
    header = run_of([])
    assert Run(header.xid, header.position, header.commit_ts, np.array([1]), (piece,)).bytes == size[counted]


def test_the_empty_run_has_nothing_in_any_column() -> None:
    """It replaces the missing part of a split, and passes through every function that a run does."""
    assert EMPTY_RUN.batches == ()
    assert EMPTY_RUN.origin is None
    columns = (EMPTY_RUN.xid, EMPTY_RUN.position, EMPTY_RUN.commit_ts, EMPTY_RUN.ends)
    assert [len(column) for column in columns] == [0, 0, 0, 0]
    assert [text_of(part) for part in EMPTY_RUN.split_at(0)] == [[], []]


# ── key sets ────────────────────────────────────────────────────────────────────────────────────────────────


def keys(values: list[Any], arrow: pa.DataType = pa.int64()) -> KeySet:  # noqa: B008 - a constant
    return KeySet(pa.table({"id": pa.array(values, arrow)}))


def test_key_sets_are_combined_whatever_happened_to_the_column_s_type() -> None:
    """A key column may be widened, or changed to text, while its partial rows wait."""
    assert keys_of(keys([1, 2]).union(keys([2, 3]))) == [1, 2, 2, 3]
    wider = keys([1], pa.int32()).union(keys([1 << 40]))
    assert (keys_of(wider), wider.keys.schema.field("id").type) == ([1, 1 << 40], pa.int64())
    text = keys([1]).union(keys(["x"], pa.string()))
    assert (keys_of(text), text.keys.schema.field("id").type) == (["1", "x"], pa.string())
    assert keys_of(keys(["y"], pa.string()).union(keys([2]))) == ["y", "2"]


def test_a_column_that_stayed_a_number_stays_one() -> None:
    """Only a column with text in any of them becomes text: the source is queried for the others as numbers."""
    one = KeySet(pa.table({"a": pa.array([1]), "b": pa.array([2])}))
    other = KeySet(pa.table({"a": pa.array(["x"]), "b": pa.array([3])}))
    assert one.union(other).keys.to_pylist() == [{"a": "1", "b": 2}, {"a": "x", "b": 3}]


def test_each_key_once_where_arrow_can_compare_them() -> None:
    """An array in a key is rare, and reading it twice is harmless."""
    found = keys_of(keys([2, 1, 2, 2]).distinct())
    assert found is not None
    assert sorted(found) == [1, 2]
    nested = keys([[1], [1]], pa.list_(pa.int64()))
    assert len(nested.distinct()) == 2
    mixed = KeySet(pa.table({"id": pa.array([1, 1]), "a": pa.array([[1], [1]])}))
    assert len(mixed.distinct()) == 2


def test_the_first_keys_and_the_rest_are_all_of_them() -> None:
    """One round reads a fixed number; the others wait for the next round."""
    first, rest = keys([1, 2, 3]).take(2)
    assert (keys_of(first), keys_of(rest)) == ([1, 2], [3])
    assert (len(first), len(rest), len(NO_KEYS)) == (2, 1, 0)


# ── a transaction in a spool ────────────────────────────────────────────────────────────────────────────────


def spooled(**more: Any) -> SpooledTransaction:
    return SpooledTransaction(
        7,
        Position("p7"),
        1007,
        5,
        "spool-1",
        shapes=frozenset({ORDERS, WIDER, OTHER}),
        truncated=frozenset({OTHER.id}),
        partial={ORDERS.id: keys([1])},
        **more,
    )


def test_a_spooled_transaction_answers_like_a_run_of_one() -> None:
    """The machine does not know which of the two it has."""
    one = spooled()
    assert (one.kind, one.transactions, one.bytes, one.rows) == (Kind.SOURCE, 1, 0, 5)
    assert one.xids.tolist() == [7]
    assert one.xids.dtype == np.uint64
    assert (one.last_position, one.last_commit_ts) == (Position("p7"), 1007)
    assert one.first_touching(frozenset({ORDERS.id})) == 0
    assert one.first_touching(frozenset({THIRD.id, OTHER.id})) == 0
    assert one.first_touching(frozenset({THIRD.id})) is None
    assert one.shapes_of(ORDERS.id) == {ORDERS, WIDER}
    assert one.shapes_of(OTHER.id) == {OTHER}
    assert (one.truncates(OTHER.id), one.truncates(ORDERS.id)) == (True, False)
    assert keys_of(one.partial_keys(ORDERS.id)) == [1]
    assert keys_of(one.moved_keys(ORDERS.id)) == [1]
    assert one.partial_keys(OTHER.id) is None
    assert one.moved_keys(OTHER.id) is None


def test_a_spooled_transaction_is_never_cut_in_two() -> None:
    """It is one transaction: all of it is on one side."""
    one = spooled()
    assert one.split_at(0) == (EMPTY_RUN, one)
    assert one.split_at(1) == (one, EMPTY_RUN)


# ── chunks, and the clock of commits ────────────────────────────────────────────────────────────────────────


def test_chunk_rows_are_one_transaction_of_whole_rows() -> None:
    """They are written to the log like captured rows, with the same columns, nothing unchanged and no old row."""
    schema = ORDERS.row_schema
    pieces = [
        pa.record_batch([[1, 2], ["a", "b"]], schema=schema),
        pa.record_batch([pa.array([], pa.int64()), pa.array([], pa.string())], schema=schema),
        pa.record_batch([[3], [None]], schema=schema),
    ]
    run = reads(ORDERS, pieces, Position("p"), 1234)
    assert (run.kind, run.transactions, run.rows, run.last_position, run.last_commit_ts) == (
        "read",
        1,
        3,
        Position("p"),
        1234,
    )
    assert run.xid.tolist() == [0]
    assert [b.index.tolist() for b in run.batches] == [[0, 1], [2]], "a piece without rows makes no batch"
    assert [row for b in run.batches for row in b.rows.to_pylist()] == [
        {"id": i, "wide": w, "_op": "r", "_unchanged": None, "_before": None}
        for i, w in [(1, "a"), (2, "b"), (3, None)]
    ]
    empty = reads(ORDERS, pieces[1:2], Position("p"), 1)
    assert (empty.transactions, empty.rows, empty.batches) == (1, 0, ())


@pytest.mark.parametrize(
    ("previous", "stamps", "clock"),
    [
        (10, [20, 30], [20, 30]),
        (10, [11, 11, 11, 20], [11, 12, 13, 20]),
        (10, [5, 5], [11, 12]),
        (10, [10], [11]),
        (10, [15, 12, 16, 17, 18], [15, 16, 17, 18, 19]),
        (10, [], []),
    ],
)
def test_commit_clock_always_advances(previous: int, stamps: list[int], clock: list[int]) -> None:
    """A reader that orders by time gets the commit order, also where the server's clock was set back."""
    assert commit_clock(previous, np.array(stamps, np.int64)).tolist() == clock
