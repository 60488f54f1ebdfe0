"""The machine on the product's own columns: runs, spooled transactions, key sets."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import (
    Advanced,
    Append,
    ChunkRead,
    Committed,
    Cut,
    Effect,
    MarkSeen,
    MarkWritten,
    Planned,
    ReadChunk,
    Tick,
    WriteMark,
)
from cdcflow.model.change import ChangeBatch, Run, SpooledTransaction, reads
from cdcflow.model.position import Checkpoint, Epoch, Position, Token
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

INT, TEXT = ColumnType("bigint", pa.int64()), ColumnType("text", pa.string())
ORDERS = Table(TableId("public", "orders"), 16400, (Column("id", 1, INT), Column("wide", 2, TEXT)), ("id",))
OTHER = Table(TableId("public", "other"), 16500, (Column("id", 1, INT), Column("wide", 2, TEXT)), ("id",))

Change = tuple[Table, str, int, str | None]
"""Table, op, key, and the wide value, or None if it was not sent."""


def run_of(*transactions: tuple[int, list[Change]]) -> Run:
    index: dict[Table, list[int]] = {}
    rows: dict[Table, list[dict[str, object]]] = {}
    ends: list[int] = []
    number = 0
    for _, changes in transactions:
        for table, op, key, wide in changes:
            unchanged = ["wide"] if wide is None and op != "t" else None
            before = {"id": key - 1} if op == "c" and wide is None else None
            index.setdefault(table, []).append(number)
            rows.setdefault(table, []).append(
                {"id": key, "wide": wide, "_op": op, "_unchanged": unchanged, "_before": before}
            )
            number += 1
        ends.append(number)
    return Run(
        np.array([xid for xid, _ in transactions], np.uint64),
        pa.array([f"{xid:08d}" for xid, _ in transactions]),
        np.array([xid for xid, _ in transactions], np.int64),
        np.array(ends, np.int64),
        tuple(
            ChangeBatch(t, np.array(index[t], np.int64), pa.RecordBatch.from_pylist(rows[t], schema=t.change_schema))
            for t in rows
        ),
    )


def chunk_of(*rows: tuple[int, str]) -> Run:
    batch = pa.RecordBatch.from_pylist([{"id": k, "wide": v} for k, v in rows], schema=ORDERS.row_schema)
    return reads(ORDERS, [batch], Position("00000000"), 0)


def machine(**limits: int) -> Interleave:
    return Interleave(
        epoch=Epoch(1),
        checkpoint=Checkpoint(position=Position("00000000")),
        tables={ORDERS.id: ORDERS},
        limits=Limits(**limits),  # type: ignore[arg-type]
        delivered=np.empty(0, np.uint64),
        partial={},
    )


def only_chunk(effects: Iterable[Effect]) -> ReadChunk:
    (request,) = (read for e in effects if isinstance(e, WriteMark) for read in e.reads)
    return request


def mark(text: str, position: int) -> MarkSeen:
    return MarkSeen(Token(text), Position(f"{position:08d}"), 0)


def opened(interleave: Interleave) -> ReadChunk:
    """With a window open on the whole table, low seen."""
    interleave.step(Tick(0))
    request = only_chunk(interleave.step(Planned(ORDERS.id, 1, "plan", 4, 4, ORDERS)))
    interleave.step(MarkWritten(Token("1/1/low")))
    interleave.step(mark("1/1/low", 1))
    return request


def rows_appended(effects: Iterable[Effect]) -> list[tuple[int, int]]:
    return [(e.first_offset, e.run.rows) for e in effects if isinstance(e, Append)]


def test_a_batch_is_cut_where_it_first_touches_the_window() -> None:
    """The numbers of the log must close over a run that is split (I3)."""
    interleave = machine()
    request = opened(interleave)
    batch = run_of(
        (7, [(OTHER, "c", 1, "x"), (OTHER, "c", 2, "x")]), (8, [(ORDERS, "u", 1, "y")]), (9, [(OTHER, "d", 1, "")])
    )
    passed = interleave.step(Committed(batch))
    assert rows_appended(passed) == [(1, 2)]
    interleave.step(
        ChunkRead(request.chunk, chunk_of((1, "y"), (2, "z")), ORDERS, (XidSnapshot(20, 20),), "4", 4, True)
    )
    done = interleave.step(mark("1/1/high", 10))
    assert rows_appended(done) == [(3, 2), (5, 2)]
    (cut,) = (e for e in done if isinstance(e, Cut))
    assert (cut.position, cut.next_offset, cut.next_transaction) == (Position("00000010"), 7, 5)
    assert interleave.progress.tables[ORDERS.id].state == "done"


def test_keys_of_partial_rows_are_read_again_in_columns() -> None:
    """The moved-row trap on the product's key sets: distinct, with a limit per request, none forgotten (W11)."""
    interleave = machine(keys_per_chunk=2)
    request = opened(interleave)
    interleave.step(Committed(run_of((7, [(ORDERS, "u", k, None) for k in (5, 6, 5, 7)]))))
    interleave.step(ChunkRead(request.chunk, chunk_of((1, "a")), ORDERS, (XidSnapshot(20, 20),), "4", 4, True))
    asked = interleave.step(mark("1/1/high", 8))
    read: list[int] = []
    for window in (2, 3):
        request = only_chunk(asked)
        interleave.step(MarkWritten(Token(f"1/{window}/low")))
        assert request.chunk.keys is not None
        read += request.chunk.keys.keys.column("id").to_pylist()
        interleave.step(ChunkRead(request.chunk, chunk_of(), ORDERS, (XidSnapshot(20, 20),)))
        interleave.step(mark(f"1/{window}/low", 10 * window))
        asked = interleave.step(mark(f"1/{window}/high", 10 * window + 1))
    assert sorted(read) == [5, 6, 7]
    assert interleave.progress.tables[ORDERS.id].state == "done"


def test_only_key_changes_are_moved_keys() -> None:
    """After the last range only those must be remembered; remembering all of them would never end on a busy table."""
    run = run_of((7, [(ORDERS, "u", 5, None), (ORDERS, "d", 7, ""), (ORDERS, "c", 8, None), (ORDERS, "c", 9, "x")]))
    moved, partial = run.moved_keys(ORDERS.id), run.partial_keys(ORDERS.id)
    assert moved is not None
    assert partial is not None
    assert moved.keys.column("id").to_pylist() == [8]
    assert partial.keys.column("id").to_pylist() == [5, 8]


def test_a_spooled_transaction_is_held_whole() -> None:
    """It cannot be split; the transactions before it continue, it waits, and it keeps its number of rows."""
    interleave = machine()
    request = opened(interleave)
    spooled = SpooledTransaction(8, Position("00000008"), 8, 1_000_000, "1-1.spool", shapes=frozenset({ORDERS}))
    assert rows_appended(interleave.step(Committed(spooled))) == []
    interleave.step(ChunkRead(request.chunk, chunk_of((1, "y")), ORDERS, (XidSnapshot(20, 20),), "4", 4, True))
    assert rows_appended(interleave.step(mark("1/1/high", 9))) == [(1, 1), (2, 1_000_000)]


def test_another_incarnation_is_read_from_scratch() -> None:
    """A table dropped and created again under its name shares nothing with the old one (O05)."""
    first = machine()
    request = opened(first)
    first.step(ChunkRead(request.chunk, chunk_of(), ORDERS, (XidSnapshot(20, 20),), "4", 4, True))
    (cut,) = (e for e in first.step(mark("1/1/high", 8)) if isinstance(e, Cut))
    again = Table(ORDERS.id, 17000, ORDERS.columns, ORDERS.key)
    second = Interleave(
        epoch=Epoch(2),
        checkpoint=Checkpoint(cut.position, cut.next_offset, cut.next_transaction, cut.number, progress=cut.progress),
        tables={again.id: again},
        limits=Limits(),
        delivered=np.empty(0, np.uint64),
        partial={},
    )
    known = second.progress.tables[ORDERS.id]
    assert (known.state, known.generation, known.incarnation) == ("waiting", 2, 17000)


def test_a_position_that_is_reached_again_is_worth_no_cut() -> None:
    """An idle server reports the same position repeatedly: each cut would be an fsync."""
    of = machine()
    of.step(Advanced(Position("00000000")))  # the first cut is for the table that is new
    assert [e for e in of.step(Advanced(Position("00000000"))) if isinstance(e, Cut)] == []
    (cut,) = [e for e in of.step(Advanced(Position("00000007"))) if isinstance(e, Cut)]
    assert cut.position == Position("00000007")
    assert [e for e in of.step(Advanced(Position("00000007"))) if isinstance(e, Cut)] == []
