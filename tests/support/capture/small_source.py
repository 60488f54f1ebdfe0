"""A source of a few tables with one row each, whose every answer the test sets in advance.

Not `cdcflow.sources.memory`: these tests check what an attempt does with an answer that a conforming source gives only
after a long sequence of events, or never: a checkpoint converted into a given one, a list of tables that differs at the
next poll, nothing at all. With that source the answer would have to be provoked; here it is set directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.messages import (
    Chunk,
    ChunkRead,
    Committed,
    KnownRows,
    MarkSeen,
    Planned,
    RowsCompared,
)
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.source import Prepared, SourceHistory, TablesToReread
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import ChangeBatch, KeySet, Run, reads
from cdcflow.model.position import Checkpoint, Offset, Position, SourceIdentity, Token
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

AT = Position("0000")
BIGINT = ColumnType("bigint", pa.int64())
ORDERS = Table(TableId("public", "orders"), 1, (Column("id", 1, BIGINT),), ("id",))
ITEMS = Table(TableId("public", "items"), 2, (Column("id", 1, BIGINT),), ("id",))
DONE = Progress({ORDERS.id: TableProgress("done", 1, Offset(1), incarnation=1, rows=1)})


def committed(number: int) -> Committed:
    rows = pa.RecordBatch.from_pylist([{"id": number, "_op": "c"}], schema=ORDERS.change_schema)
    batch = ChangeBatch(ORDERS, np.array([0], np.int64), rows)
    ones = np.array([1], np.int64)
    return Committed(Run(np.array([number], np.uint64), pa.array([f"{number:04d}"]), ones, ones, (batch,)))


class Small:
    """A source of small tables with one row each: implements `Source`, `Stream` and `ChunkSource`.

    `prepared` is the checkpoint that `prepare` returns for a checkpoint; `history` and `reread` are its other results;
    `asked` and `accepted` are its arguments. `fails`: tables that cannot be read.
    """

    def __init__(self, *tables: Table) -> None:
        self.listed: list[Table] = list(tables or (ORDERS,))
        self.coming: list[StreamEvent] = []
        self.prepared: Callable[[Checkpoint], Checkpoint] = lambda c: c if c.position else replace(c, position=AT)
        self.asked: list[Checkpoint] = []
        self.accepted: list[bool] = []
        self.history = SourceHistory.CONTINUES
        self.reread = TablesToReread()
        self.streamed_from: list[Checkpoint] = []
        self.acknowledged: list[Position] = []
        self.planned: list[TableId] = []
        self.fails: set[TableId] = set()
        self.polls = 0
        self.beats = 0
        self.marks = 0
        self.broken = False
        self.on_poll: Callable[[], None] = lambda: None
        self.on_opening: Callable[[], None] = lambda: None

    def identity(self) -> SourceIdentity:
        return SourceIdentity("small", "1", "shop")

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: object = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        self.asked.append(checkpoint)
        self.accepted.append(accept_history_loss)
        return Prepared(self.prepared(checkpoint), self.history, self.reread)

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        return ()

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        return RowsCompared(())

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        return ()

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        return ()

    def tables(self) -> Sequence[Table]:
        if self.broken:
            raise SourceUnavailable("no answer")
        return list(self.listed)

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Small:
        self.open_spool = open_spool
        self.on_opening()
        self.streamed_from.append(checkpoint)
        return self

    def chunks(self) -> Small:
        return self

    def fileno(self) -> int:
        return -1

    ready = False

    def poll(self) -> Sequence[StreamEvent]:
        self.polls += 1
        self.on_poll()
        events, self.coming = self.coming, []
        return events

    def acknowledge(self, position: Position) -> None:
        self.acknowledged.append(position)

    def plan(self, table: TableId, generation: int) -> Planned:
        self.planned.append(table)
        if table in self.fails:
            raise ConfigurationError("SELECT is not granted")
        shape = ITEMS if table == ITEMS.id else ORDERS
        return Planned(table, generation, "all", 1, 1, shape)

    def write_mark(self, token: Token) -> None:
        self.marks += 1
        self.coming.append(MarkSeen(token, Position(f"1{self.marks:03d}"), 0))

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        shape = ITEMS if chunk.table == ITEMS.id else ORDERS
        run = reads(shape, [pa.record_batch([pa.array([7])], schema=shape.row_schema)], Position("1000"), 0)
        return ChunkRead(chunk, run, shape, (XidSnapshot(1000, 1000),), "end", 1, exhausted=True)

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        return KeySet(pa.table({"id": pa.array([7], pa.int64())}))

    def snapshot(self) -> XidSnapshot:
        return XidSnapshot(1000, 1000)

    def heartbeat(self) -> None:
        self.beats += 1
        if self.broken:
            raise SourceUnavailable("no answer")

    def close(self) -> None:
        pass
