"""A row that cannot leave its source: its table's changes are refused, and those of other tables leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture.interleave.messages import ChangesRefused, Committed, RowsFilled, RowsIncomplete
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.config.columns import TableRules
from cdcflow.model.change import ChangeBatch, KeySet, Run, SpooledTransaction
from cdcflow.model.position import Position
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sinks.memory import MemorySpool
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.stream import PrivateSpool, PrivateStream, SpoolNotes

SECRET = "c4n4ry"  # noqa: S105  a value that no message may contain
TEXT = ColumnType("text", pa.string())
USERS, ORDERS = (
    Table(TableId("shop", name), 1, (Column("id", 1, ColumnType("int", pa.int32())), Column("note", 2, TEXT)), ("id",))
    for name in ("users", "orders")
)
RENAMED = Table(USERS.id, 1, (USERS.columns[0], Column("remark", 3, TEXT)), ("id",))
CAST = {"where": "CAST(note AS integer) > 0"}
MASK = {"columns": {"note": "mask"}}


class Events:
    """A stream that has these events."""

    ready = False

    def __init__(self, *events: StreamEvent) -> None:
        self.events = events

    def poll(self) -> Sequence[StreamEvent]:
        return self.events


def rules(**users: Any) -> PolicyRules:
    found = PolicyRules({"shop.users": TableRules.model_validate(users)})
    found.shape(USERS)
    return found


def rows(table: Table, *notes: str, first: int = 0) -> ChangeBatch:
    values = [{"id": i, table.columns[1].name: note, "_op": "c"} for i, note in enumerate(notes)]
    return ChangeBatch(
        table, np.arange(len(notes)) * 2 + first, pa.RecordBatch.from_pylist(values, table.change_schema)
    )


def run_of(*batches: ChangeBatch) -> Run:
    """Two transactions of equal size."""
    count = sum(len(batch.index) for batch in batches)
    positions = pa.array(["p1", "p2"], pa.string())
    return Run(np.array([1, 2], np.uint64), positions, np.ones(2, np.int64), np.array([count // 2, count]), batches)


def left(mine: PolicyRules, *events: StreamEvent) -> Sequence[StreamEvent]:
    return PrivateStream(Events(*events), mine, Position("p0"), SpoolNotes()).poll()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "batch"),
    [(CAST, rows(USERS, "1", SECRET)), (MASK, rows(RENAMED, SECRET, SECRET)), (CAST, rows(RENAMED, "1", SECRET))],
)
def test_table_is_refused_before_its_transactions_and_the_other_leaves(given: Any, batch: ChangeBatch) -> None:
    """At the position before the first of them: all of its rows since then are missing."""
    refused, committed = left(rules(**given), Committed(run_of(batch, rows(ORDERS, "a", "b", first=1))))
    assert isinstance(refused, ChangesRefused)
    assert (refused.table, refused.position) == (USERS.id, Position("p0"))
    assert refused.reason.endswith("then start again or run `cdcflow apply`, and run `cdcflow backfill shop.users`")
    assert SECRET not in refused.reason
    assert isinstance(committed, Committed)
    run = committed.run
    assert isinstance(run, Run)
    assert [(b.table, list(b.index), b.rows.column("note").to_pylist()) for b in run.batches] == [
        (ORDERS, [0, 1], ["a", "b"])
    ]
    assert (list(run.ends), list(run.xids), run.transactions) == ([1, 2], [1, 2], 2)


def test_keys_of_a_table_that_is_refused_do_not_leave() -> None:
    """Its columns are unknown, and all of it must be read again."""
    keys = RowsIncomplete(USERS.id, KeySet(pa.table({"id": pa.array([1], pa.int32())})), Position("p0"))
    found = left(rules(**MASK), keys, Committed(run_of(rows(RENAMED, "a", "b"))))
    assert [type(event) for event in found] == [ChangesRefused, Committed]
    assert isinstance(found[-1], Committed)
    assert found[-1].run.rows == 0


@pytest.mark.parametrize("is_rolled_back", [True, False])
def test_row_in_a_spool_refuses_its_table_if_its_part_was_committed(is_rolled_back: bool) -> None:
    """Then the log gets no row of it, also none that could leave: a reader would take it for the whole change."""
    mine, notes = rules(**CAST), SpoolNotes()
    inner = MemorySpool("1", {})
    spool = PrivateSpool(inner, mine, notes)
    pieces = [
        ([rows(USERS, "1", "2"), rows(ORDERS, "a", "b", first=1)], 7),
        ([rows(USERS, "1", SECRET), rows(ORDERS, "c", "d", first=1)], 8),
    ]
    for batches, part in pieces:
        spool.write(batches, np.full(4, part, np.uint64))
    aborted = frozenset([8] if is_rolled_back else ())
    shapes = frozenset([USERS, ORDERS])
    sent = SpooledTransaction(9, Position("p9"), 1, 4 if is_rolled_back else 8, spool.name, aborted, shapes)
    found = PrivateStream(Events(Committed(sent)), mine, Position("p0"), notes).poll()  # type: ignore[arg-type]
    assert [type(event) for event in found] == [Committed] if is_rolled_back else [ChangesRefused, Committed]
    assert isinstance(found[-1], Committed)
    run = found[-1].run.without(frozenset(event.table for event in found if isinstance(event, ChangesRefused)))
    assert isinstance(run, SpooledTransaction)
    kept = [(batch.table.id, batch.rows.column("note").to_pylist()) for batch in inner.batches(run.aborted)]
    if is_rolled_back:
        assert (run.rows, kept) == (4, [(USERS.id, ["1", "2"]), (ORDERS.id, ["a", "b"])])
    else:
        assert (run.rows, kept) == (4, [(ORDERS.id, ["a", "b"]), (ORDERS.id, ["c", "d"])])
        assert [shape.id for shape in run.shapes] == [ORDERS.id]


def test_spool_excludes_a_table_of_sub_transactions_that_are_mixed() -> None:
    """A row of one table follows one of another, and their sub-transactions alternate."""
    mine, notes = rules(**MASK), SpoolNotes()
    inner = MemorySpool("1", {})
    spool = PrivateSpool(inner, mine, notes)
    for subxids in ([7, 8, 8, 7, 7, 9], [9, 9, 9, 9, 9, 9]):
        users = replace(rows(USERS, "1", "2", "3"), index=np.array([0, 2, 4]))
        orders = replace(rows(ORDERS, "a", "b", "c"), index=np.array([1, 3, 5]))
        spool.write([users, orders], np.array(subxids, np.uint64))
    sent = SpooledTransaction(9, Position("p9"), 1, 9, spool.name, frozenset([7]), frozenset([USERS, ORDERS]))
    (found,) = PrivateStream(Events(Committed(sent)), mine, Position("p0"), notes).poll()  # type: ignore[arg-type]
    assert isinstance(found, Committed)
    for without, kept in (([], 9), ([USERS.id], 5), ([ORDERS.id], 4), ([USERS.id, ORDERS.id], 0)):
        run = found.run.without(frozenset(without))
        assert isinstance(run, SpooledTransaction)
        left = list(inner.batches(run.aborted))
        assert run.rows == sum(len(batch.index) for batch in left) == kept
        assert not {batch.table.id for batch in left}.intersection(without)


def test_shape_that_the_settings_do_not_fit_is_not_in_the_transaction_of_a_spool() -> None:
    mine, notes = rules(**MASK), SpoolNotes()
    inner = MemorySpool("1", {})
    spool = PrivateSpool(inner, mine, notes)
    spool.write([rows(RENAMED, SECRET, SECRET), rows(ORDERS, "a", "b", first=1)], None)
    keys = {RENAMED.id: KeySet(pa.table({"id": pa.array([1], pa.int32())}))}
    sent = SpooledTransaction(
        9, Position("p9"), 1, 4, spool.name, shapes=frozenset([RENAMED, ORDERS]), partial=dict(keys)
    )
    refused, committed = PrivateStream(Events(Committed(sent)), mine, Position("p0"), notes).poll()  # type: ignore[arg-type]
    assert isinstance(refused, ChangesRefused)
    assert isinstance(committed, Committed)
    run = committed.run
    assert isinstance(run, SpooledTransaction)
    assert (run.rows, run.shapes, run.partial) == (2, frozenset([ORDERS]), {})


def test_exchange_of_names_refuses_the_table_before_rows_of_either_side() -> None:
    """By the statement: afterwards other columns have the same names."""
    names = (("note", "remark"), ("remark", "note"))
    event = RowsFilled(USERS.id, Position("p1"), renamed=names)
    found = left(rules(**MASK), event, Committed(run_of(rows(USERS, "a", "b"))))
    assert [type(e) for e in found] == [ChangesRefused, RowsFilled, Committed]
    assert isinstance(found[0], ChangesRefused)
    assert found[0].position == Position("p0")
