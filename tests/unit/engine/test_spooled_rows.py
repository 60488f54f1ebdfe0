"""What is known of a transaction whose rows are in a spool, when parts of it are rolled back (P04)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdcflow.model.change import ChangeBatch, KeySet, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.engine.spooled import SpooledRows

INT, TEXT = ColumnType("bigint", pa.int64()), ColumnType("text", pa.string())
ORDERS = Table(TableId("public", "orders"), 1, (Column("id", 1, INT), Column("wide", 2, TEXT)), ("id",))
WIDER = replace(ORDERS, columns=(*ORDERS.columns, Column("more", 3, TEXT)))
OTHER = replace(ORDERS, id=TableId("public", "other"))


class Spool:
    """Implements `cdcflow.ports.Spool`: keeps everything written to it."""

    name = "spool-7"

    def __init__(self) -> None:
        self.pieces: list[tuple[int, list[int] | None]] = []
        self.ended = ""

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        self.pieces.append((len(batches), None if subxids is None else subxids.tolist()))

    def finish(self) -> None:
        self.ended += "finished"

    def discard(self) -> None:
        self.ended += "discarded"


def batch(table: Table, *rows: tuple[int, str, int], partial: bool = False) -> ChangeBatch:
    """Rows as index, op and key; with `partial` their wide value was not sent."""
    found = [{"id": key, "_op": op, "_unchanged": ["wide"] if partial else None} for _, op, key in rows]
    index = np.array([i for i, _, _ in rows], np.int64)
    return ChangeBatch(table, index, pa.RecordBatch.from_pylist(found, schema=table.change_schema))


def parts(*numbers: int) -> Uint64s:
    return np.array(numbers, np.uint64)


class Opened:
    def __init__(self) -> None:
        self.spools: list[Spool] = []

    def __call__(self) -> Spool:
        self.spools.append(Spool())
        return self.spools[-1]


def keys_of(found: KeySet | None) -> list[int] | None:
    return None if found is None else found.keys.column("id").to_pylist()


def test_transaction_keeps_only_what_was_not_rolled_back() -> None:
    """Rows, shapes, truncates and partial keys of a sub-transaction that was rolled back never happened."""
    opened, rows = Opened(), SpooledRows()
    rows.write(
        opened,
        [
            batch(ORDERS, (0, "c", 1), (2, "t", 0), (3, "c", 3)),
            batch(OTHER, (1, "u", 2), (4, "u", 4), partial=True),
        ],
        parts(7, 7, 8, 8, 8),
    )
    rows.write(opened, [batch(WIDER, (0, "c", 5), (1, "c", 6)), batch(OTHER, (2, "t", 0))], parts(8, 9, 7))
    rows.write(opened, [batch(OTHER, (0, "u", 9), (1, "d", 10), partial=True)], parts(9, 9))
    assert len(opened.spools) == 1, "one spool holds them all"
    # Each table in each part has a number: orders 7 and 8, other 7 and 8, orders 9, other 9.
    assert opened.spools[0].pieces == [(2, [0, 2, 1, 1, 3]), (2, [1, 4, 2]), (1, [5, 5])]
    assert rows.rows == 10
    rows.aborted.add(8)
    assert rows.rows == 6
    assert rows.tables == {ORDERS.id, OTHER.id}
    assert rows.taken_back == {ORDERS.id, OTHER.id}
    found = rows.commit(7, Position("p"), 99, "elsewhere")
    assert found is not None
    assert (found.xid, found.position, found.commit_ts, found.rows) == (7, Position("p"), 99, 6)
    assert (found.spool, found.origin) == ("spool-7", "elsewhere")
    assert found.aborted == {1, 3}
    assert {table: (set(part.numbers), part.rows) for table, part in found.parts.items()} == {
        ORDERS.id: ({0, 4}, 2),
        OTHER.id: ({2, 5}, 4),
    }
    assert found.shapes == {ORDERS, WIDER, OTHER}
    assert found.truncated == {OTHER.id}, "the other table's truncate was taken back"
    assert keys_of(found.partial_keys(OTHER.id)) == [2, 9], "neither those taken back nor those deleted"
    assert found.partial_keys(ORDERS.id) is None
    assert opened.spools[0].ended == "finished"


def test_shape_of_rolled_back_rows_only_is_not_among_the_transaction_s_shapes() -> None:
    """It would get an entry in the schema history that no row uses."""
    opened, rows = Opened(), SpooledRows()
    rows.write(opened, [batch(ORDERS, (0, "c", 1)), batch(WIDER, (1, "c", 2))], parts(1, 2))
    rows.aborted.add(2)
    assert rows.taken_back == {ORDERS.id}
    found = rows.commit(1, Position("p"), 0)
    assert found is not None
    assert found.shapes == {ORDERS}
    assert (found.rows, found.origin) == (1, None)


def test_rows_that_cannot_be_rolled_back_are_counted_too() -> None:
    """A server without sub-transactions in its log sends no parts."""
    opened, rows = Opened(), SpooledRows()
    rows.write(opened, [batch(ORDERS, (0, "c", 1), (1, "t", 0)), batch(OTHER, (2, "u", 2), partial=True)], None)
    rows.write(opened, [batch(ORDERS, (0, "c", 3))], None)
    assert opened.spools[0].pieces == [(2, [0, 0, 1]), (1, [0])]
    assert rows.counts == {0: {ORDERS: 3, OTHER: 1}}
    assert rows.taken_back == set()
    found = rows.commit(1, Position("p"), 0)
    assert found is not None
    assert found.rows == 4
    assert found.truncated == {ORDERS.id}
    assert found.aborted == set()
    assert keys_of(found.partial_keys(OTHER.id)) == [2]


def test_table_that_fails_can_be_excluded_from_the_transaction() -> None:
    """It may fail when the rows are in the spool already, and consumers would get them as changes."""
    opened, rows = Opened(), SpooledRows()
    rows.write(opened, [batch(ORDERS, (0, "c", 1)), batch(OTHER, (1, "c", 2), (2, "t", 0))], parts(7, 7, 8))
    found = rows.commit(7, Position("p"), 99)
    assert found is not None
    left = found.without(frozenset({OTHER.id}))
    assert (left.rows, left.truncated) == (1, frozenset())
    assert left.aborted == {1, 2}
    assert left.shapes == {ORDERS}


def test_a_table_whose_partial_rows_are_all_deletes_has_no_keys() -> None:
    """An empty set would mean a table to read again."""
    opened, rows = Opened(), SpooledRows()
    rows.write(opened, [batch(ORDERS, (0, "d", 1), partial=True)], parts(1))
    rows.write(opened, [batch(OTHER, (0, "u", 1), partial=True)], parts(2))
    rows.write(opened, [batch(WIDER, (0, "c", 2))], parts(1))
    rows.aborted.add(2)
    found = rows.commit(1, Position("p"), 0)
    assert found is not None
    assert found.partial == {}


def test_empty_transaction_opens_no_spool_and_a_rolled_back_one_keeps_none() -> None:
    """A file for each empty transaction would be a file for each transaction of other databases."""
    opened, rows = Opened(), SpooledRows()
    rows.write(opened, [], None)
    assert opened.spools == []
    assert rows.commit(1, Position("p"), 0) is None
    rows.discard()
    rows.write(opened, [batch(ORDERS, (0, "c", 1))], parts(5))
    rows.aborted.add(5)
    assert rows.commit(1, Position("p"), 0) is None
    assert opened.spools[0].ended == "discarded"
