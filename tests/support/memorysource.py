"""A source in memory for tests of the pipeline: tables that do not change while they are read, and a log of marks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from cdcflow.interleave.messages import (
    Chunk,
    ChunkRead,
    Committed,
    MarkSeen,
    Planned,
    RowsCompared,
    Visibility,
    XidSnapshot,
)
from cdcflow.model.change import Run, Uint64s, reads
from cdcflow.model.position import Checkpoint, Position, SourceIdentity, Token
from cdcflow.model.table import Table, TableId
from cdcflow.ports import Finding, OpenSpool, SourceStatus, StreamEvent, TransactionsBack


@dataclass(frozen=True)
class SeesAll:
    def hidden(self, xids: Uint64s) -> Uint64s:
        return np.empty(0, np.uint64)


@dataclass
class MemorySource:
    """Implements `cdcflow.ports.Source`, `ChunkSource` and `Stream`. `rows`: what each table has, all read at once."""

    rows: Mapping[Table, pa.RecordBatch]
    events: list[StreamEvent] = field(default_factory=list)
    acknowledged: list[Position] = field(default_factory=list)
    chunks_read: list[Chunk] = field(default_factory=list)
    _at: int = 0

    def __post_init__(self) -> None:
        self._ears = os.pipe()

    def commit(self, run: Run) -> None:
        """These transactions come through the stream next."""
        self.events.append(Committed(run))
        self._wake()

    def position(self) -> Position:
        self._at += 1
        return Position(f"0/{self._at:08X}")

    def shut(self) -> None:
        for end in self._ears:
            os.close(end)

    # ── Source ──────────────────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        return SourceIdentity("postgres", "7301", "shop", "1")

    def prepare(
        self, checkpoint: Checkpoint, log_id: str, transactions_back: TransactionsBack | None = None
    ) -> Checkpoint:
        return replace(checkpoint, position=checkpoint.position or self.position())

    def tables(self) -> Sequence[Table]:
        return sorted(self.rows, key=lambda t: t.id)

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        return ()

    def compare_rows(self, known: Mapping[TableId, str | None]) -> RowsCompared:
        return RowsCompared(())

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> MemorySource:
        return self

    def chunks(self) -> MemorySource:
        return self

    def doctor(self) -> Sequence[Finding]:
        return ()

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        return ()

    def status(self, acknowledged: Position | None) -> SourceStatus:
        raise AssertionError("nobody asks this source for its status")

    def close(self) -> None:
        """Also as a stream and as chunks: nothing is open."""

    # ── Stream ──────────────────────────────────────────────────────────────────────────────────────────────

    ready = False

    def fileno(self) -> int:
        return self._ears[0]

    def poll(self) -> Sequence[StreamEvent]:
        found, self.events = self.events, []
        if found:
            os.read(self._ears[0], 4096)
        return found

    def acknowledge(self, position: Position) -> None:
        self.acknowledged.append(position)

    # ── ChunkSource ─────────────────────────────────────────────────────────────────────────────────────────

    def plan(self, table: TableId, generation: int) -> Planned:
        return Planned(table, generation, "all", 1, 1, self._table(table))

    def write_mark(self, token: Token) -> None:
        self.events.append(MarkSeen(token, self.position(), 0))
        self._wake()

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        self.chunks_read.append(chunk)
        table = self._table(chunk.table)
        run = reads(table, [self.rows[table]], self.position(), 0)
        return ChunkRead(chunk, run, table, (SeesAll(),), "1", 1, exhausted=True)

    def snapshot(self) -> Visibility:
        return XidSnapshot(1, 1)

    def heartbeat(self) -> None:
        """Nothing moves by itself."""

    def _table(self, table: TableId) -> Table:
        return next(t for t in self.rows if t.id == table)

    def _wake(self) -> None:
        os.write(self._ears[1], b".")
