"""The feed of a table's changes, compared with `log.fold.fold`, which computes each row before and after a change."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.feed_histories import NEW, NUMBERS, OLD, Values, history, said
from tests.support.merge.histories import make_table

from cdcflow.errors import ConfigurationError
from cdcflow.log.read.alignment import align, defaults_of
from cdcflow.log.read.feed import NotInFeed, feed, feed_schema
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Identity, Table

SEED = int(os.environ.get("CDCFLOW_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)


def log_rows(shape: Table, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows of the log; each has its offset, and is a separate transaction unless given otherwise."""
    whole = [
        {
            OFFSET: n,
            TRANSACTION: row.get(OFFSET, n),
            COMMIT_TS: row.get(OFFSET, n),
            UNCHANGED: None,
            BEFORE: None,
            **row,
        }
        for n, row in enumerate(rows, start=1)
    ]
    return pa.Table.from_pylist(whole, shape.log_schema)


def found(table: pa.Table) -> list[Values]:
    assert table.schema == feed_schema(NEW)
    listed: list[Values] = table.drop_columns(["_commit_timestamp"]).to_pylist()
    return listed


@pytest.mark.spread(10)
@pytest.mark.parametrize("number", range(20))
def test_feed_shows_the_fold_s_rows_before_and_after_each_change(number: int) -> None:
    """Whole old rows fill in values that changes omit, and give the preimages, over two shapes."""
    seed = SEED + number
    steps = list(history(random.Random(seed), 120))
    expected = [row for _, says in steps for row in says]
    defaults = defaults_of([OLD, NEW], NEW)
    shown = [
        feed(log_rows(shape, [{OP: op, OFFSET: offset, **values}]), shape, NEW, defaults)
        for offset, ((shape, op, values), _) in enumerate(steps, start=1)
    ]
    assert found(pa.concat_tables(shown)) == expected, f"CDCFLOW_HISTORY_SEED={seed}"


def test_many_rows_at_once_are_each_of_them_in_order() -> None:
    """A preimage directly precedes its postimage, wherever in the batch."""
    rows = [
        {OP: "c", "id": 1, "b": 1, "added": 1},
        {OP: "u", "id": 1, "b": 2, "added": 1, BEFORE: {"id": 1, "b": 1, "added": 1}},
        {OP: "u", "id": 1, "b": 3, UNCHANGED: ["added"], BEFORE: {"id": 1, "b": 2, "added": 1}},
        {OP: "d", "id": 1, "b": 3, "added": 1},
    ]
    shown = [(row["_change_type"], row["b"], row["added"]) for row in found(feed(log_rows(NEW, rows), NEW, NEW))]
    assert shown == [
        ("insert", 1, 1),
        ("update_preimage", 1, 1),
        ("update_postimage", 2, 1),
        ("update_preimage", 2, 1),
        ("update_postimage", 3, 1),
        ("delete", 3, 1),
    ]


def test_log_with_the_key_alone_has_no_preimages_and_deletes_of_the_key() -> None:
    """A value that the log does not have is not invented."""
    shape = replace(NEW, identity=Identity.KEY)
    rows = [{OP: "u", "id": 1, "b": 2, "added": 1}, {OP: "d", "id": 1}]
    assert found(feed(log_rows(shape, rows), shape, NEW)) == [
        said("update_postimage", 1, {"id": 1, "b": 2, "added": 1}),
        said("delete", 2, {"id": 1, "b": None, "added": None}),
    ]


def test_changed_key_is_a_delete_and_an_insert() -> None:
    """The order is that of the log; the insert takes values that it does not carry from the whole old row."""
    old = {"id": 1, "b": 2, "added": 3}
    rows = [{OP: "d", **old}, {OP: "c", "id": 5, "b": 9, UNCHANGED: ["added"], BEFORE: old}]
    assert found(feed(log_rows(NEW, rows), NEW, NEW)) == [
        said("delete", 1, old),
        said("insert", 2, {"id": 5, "b": 9, "added": 3}),
    ]


def test_partial_row_stops_the_feed_and_the_remedies_work() -> None:
    """A NULL that means nothing must not be taken for a value."""
    shape = replace(NEW, identity=Identity.KEY)
    rows = log_rows(
        shape,
        [
            {OP: "c", "id": 1, "b": 1, "added": 1},
            {OP: "u", "id": 1, "b": 2, UNCHANGED: ["added"]},
            {OP: "u", "id": 1, "b": 3, "added": 4},
        ],
    )
    with pytest.raises(NotInFeed, match=r"public\.orders.*offset 2") as stopped:
        feed(rows, shape, NEW)
    assert "up to offset 1, and from offset 3 on" in str(stopped.value)
    assert stopped.value.offset == 2
    assert len(feed(rows.slice(0, 1), shape, NEW)) == len(feed(rows.slice(2), shape, NEW)) == 1
    assert align(rows, shape, shape, {}).column(UNCHANGED).to_pylist() == [None, ["added"], None]


def test_truncate_stops_the_feed_or_is_a_row() -> None:
    """Rows that disappear silently would stay in every copy."""
    rows = log_rows(NEW, [{OP: "c", "id": 1, "b": 1, "added": 1}, {OP: "t"}, {OP: "c", "id": 2, "b": 1, "added": 1}])
    with pytest.raises(NotInFeed, match=r"offset 2 .*\n  read up to offset 1, .* from offset 3;"):
        feed(rows, NEW, NEW)
    shown = found(feed(rows, NEW, NEW, truncates_as_rows=True))
    assert shown[1] == said("truncate", 2, {"id": None, "b": None, "added": None})
    assert [row["_change_type"] for row in shown] == ["insert", "truncate", "insert"]


def test_older_rows_of_the_log_have_newer_names_in_all_of_their_columns() -> None:
    """Also where columns are named: in `_unchanged`, and in the old row."""
    rows = log_rows(
        OLD,
        [
            {OP: "u", "id": 1, UNCHANGED: ["a", "doc"], BEFORE: {"id": 1, "a": 5, "doc": "x"}},
            {OP: "d", "id": 1, "a": 5, "doc": "x"},
            {OP: "t"},
        ],
    )
    shown = align(rows, OLD, NEW, defaults_of([OLD, NEW], NEW))
    assert shown.schema == NEW.log_schema
    assert shown.column(UNCHANGED).to_pylist() == [["b"], None, None]
    assert shown.column(BEFORE).to_pylist() == [{"id": 1, "b": 5, "added": None}, None, None]
    assert shown.column("added").to_pylist() == [7, 7, None]
    assert shown.column("b").to_pylist() == [None, 5, None]


def test_recreated_table_is_read_with_column_names() -> None:
    """Its column numbers are another table's."""
    again = replace(make_table(id="int64", added="int32", b="int64"), incarnation=2)
    rows = log_rows(NEW, [{OP: "c", "id": 1, "b": 5, "added": 3}])
    assert align(rows, NEW, again, {}).select(["id", "added", "b"]).to_pylist() == [{"id": 1, "added": 3, "b": 5}]


def test_value_that_a_later_type_does_not_hold_is_an_error_without_it() -> None:
    """Errors hold no row's values."""
    narrow = make_table(numbers=NUMBERS, id="int64", b="int8")
    rows = log_rows(NEW, [{OP: "c", "id": 1, "b": 123456, "added": 3}])
    with pytest.raises(ConfigurationError, match="column b has values of type int64") as stopped:
        align(rows, NEW, narrow, {})
    assert "123456" not in str(stopped.value)
