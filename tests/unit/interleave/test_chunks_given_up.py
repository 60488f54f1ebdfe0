"""A chunk that was abandoned while it was read: its rows arrive, and their window continues without them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import (
    Append,
    Cancel,
    ChunkRead,
    Effect,
    Input,
    MarkSeen,
    MarkWritten,
    Pause,
    Planned,
    ReadChunk,
    Tick,
    WriteMark,
)
from cdcflow.model.change import reads
from cdcflow.model.position import Checkpoint, Epoch, Position, Token
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

INT = ColumnType("bigint", pa.int64())
ORDERS, ITEMS = (
    Table(TableId("public", n), i, (Column("id", 1, INT),), ("id",)) for i, n in ((1, "orders"), (2, "items"))
)
SEEN = (XidSnapshot(20, 20),)


def answer(request: ReadChunk, *, key: int, exhausted: bool) -> ChunkRead:
    table = ORDERS if request.chunk.table == ORDERS.id else ITEMS
    rows = pa.record_batch([[key]], schema=table.row_schema)
    run = reads(table, [rows], Position("00000000"), 0)
    return ChunkRead(request.chunk, run, table, SEEN, str(key), key, exhausted)


def requests(effects: Iterable[Effect]) -> dict[str, ReadChunk]:
    return {read.chunk.table.name: read for e in effects if isinstance(e, WriteMark) for read in e.reads}


def mark(number: int, which: str, position: int) -> MarkSeen:
    return MarkSeen(Token(f"1/{number}/{which}"), Position(f"{position:08d}"), 0)


@pytest.mark.parametrize("stop", [Pause(ORDERS.id), Cancel(ORDERS.id)])
def test_rows_of_an_abandoned_chunk_are_not_emitted(stop: Input) -> None:
    """Its table was stopped in the middle of a window that another table is read in, too."""
    machine = Interleave(
        epoch=Epoch(1),
        checkpoint=Checkpoint(position=Position("00000000")),
        tables={ORDERS.id: ORDERS, ITEMS.id: ITEMS},
        limits=Limits(),
        delivered=np.empty(0, np.uint64),
        partial={},
    )
    machine.step(Tick(0))
    first = requests(machine.step(Planned(ORDERS.id, 1, "plan", 9, 9, ORDERS)))
    machine.step(Planned(ITEMS.id, 1, "plan", 9, 9, ITEMS))
    machine.step(MarkWritten(Token("1/1/low")))
    machine.step(mark(1, "low", 1))
    machine.step(answer(first["orders"], key=1, exhausted=False))
    both = requests(machine.step(mark(1, "high", 2)))
    assert both.keys() == {"orders", "items"}
    machine.step(MarkWritten(Token("1/2/low")))
    machine.step(mark(2, "low", 3))
    machine.step(stop)
    assert machine.step(answer(both["orders"], key=2, exhausted=True)) == []
    machine.step(answer(both["items"], key=3, exhausted=True))
    appended = [e.run for e in machine.step(mark(2, "high", 4)) if isinstance(e, Append)]
    assert [(run.batches[0].table.id.name, run.rows) for run in appended] == [("items", 1)]  # type: ignore[attr-defined]
    states = machine.progress.tables
    assert states[ITEMS.id].state == "done"
    assert states[ORDERS.id].rows == 1
