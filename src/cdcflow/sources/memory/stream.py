"""Turns the log into events: transactions as runs in columns, marks, and the effect of statements on rows that were
read.

It shows a decoder's four duties, each in a few lines. It delivers transactions as a whole, in commit order, with one
batch for each shape of a table. It skips rows that were rolled back to a savepoint. It writes a transaction that memory
should not hold into a spool piece by piece, with the part that each row belongs to, since a later piece may roll back
an earlier one. And it reports a statement that gave rows other values (`RowsFilled`), with a position before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen, RowsFilled
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import TRUNCATE, ChangeBatch, Run
from cdcflow.model.position import Position
from cdcflow.model.table import BEFORE, OP, Table, TableId
from cdcflow.sources.engine.descriptors import WakeDescriptor
from cdcflow.sources.engine.spooled import SpooledRows
from cdcflow.sources.memory_database import (
    MemoryChange,
    MemoryCommit,
    MemoryDatabase,
    MemoryMark,
    Statement,
    number_of,
    position_of,
)

RECORDS_MAX = 1000


class MemoryStream:
    """Implements `cdcflow.ports.Stream`. `spool_rows`: a transaction with more rows is spooled."""

    def __init__(
        self,
        database: MemoryDatabase,
        *,
        slot: str,
        position: int,
        captured: Collection[TableId],
        open_spool: OpenSpool,
        spool_rows: int,
    ) -> None:
        self._database = database
        self._slot = slot
        self._at = position
        self._acknowledged = position
        self._captured = frozenset(captured)
        self._open_spool = open_spool
        self._spool_rows = spool_rows
        self._closed = False
        self._descriptor = WakeDescriptor()
        self._deafen = database.listen(self._descriptor.wake)
        self._descriptor.wake()

    # ── cdcflow.ports.Stream ────────────────────────────────────────────────────────────────────────────────

    def fileno(self) -> int:
        return self._descriptor.fileno()

    @property
    def ready(self) -> bool:
        return self._database.end > self._at

    def poll(self) -> Sequence[StreamEvent]:
        if self._closed:
            raise SourceUnavailable("reading the log: this stream is closed")
        self._descriptor.drain()
        events: list[StreamEvent] = []
        for record in self._database.after(self._at, RECORDS_MAX):
            events += self._events(record)
            self._at = record.position
        if self._at > self._acknowledged and not events:
            events.append(Advanced(position_of(self._at)))
        return events

    def acknowledge(self, position: Position) -> None:
        self._acknowledged = max(self._acknowledged, number_of(position))
        self._database.acknowledge(self._slot, self._acknowledged)

    def close(self) -> None:
        if not self._closed:
            with self._database.changed:  # writers to the log call `wake` while they hold it
                self._closed = True
                self._deafen()
            self._descriptor.close()

    # ── decoding ────────────────────────────────────────────────────────────────────────────────────────────

    def _events(self, record: MemoryCommit | MemoryMark | Statement) -> list[StreamEvent]:
        match record:
            case MemoryMark(at, slot, token):
                is_ours = slot == self._slot and token is not None
                return [MarkSeen(token, position_of(at), at)] if is_ours and token else [Advanced(position_of(at), at)]
            case MemoryCommit():
                return self._commit_events(record)
            case Statement(at, xid, emptied, filled):
                before = position_of(at - 1)
                events: list[StreamEvent] = [RowsFilled(t, before) for t in filled if t in self._captured]
                gone = [MemoryChange(shape, TRUNCATE, {}) for shape in emptied if shape.id in self._captured]
                return [*events, *([Committed(run_of(xid, at, gone))] if gone else [])]

    def _commit_events(self, record: MemoryCommit) -> list[StreamEvent]:
        ours = [c for c in record.changes if c.shape.id in self._captured]
        if len(ours) > self._spool_rows:
            return self._spooled_events(record, ours)
        kept = [c for c in ours if c.part not in record.aborted]
        at = record.position
        return [Committed(run_of(record.xid, at, kept))] if kept else [Advanced(position_of(at), at)]

    def _spooled_events(self, record: MemoryCommit, ours: list[MemoryChange]) -> list[StreamEvent]:
        rows = SpooledRows(aborted=set(record.aborted))
        for first in range(0, len(ours), self._spool_rows):
            piece = ours[first : first + self._spool_rows]
            rows.write(self._open_spool, batches_of(piece), np.array([c.part for c in piece], np.uint64))
        whole = rows.commit(record.xid, position_of(record.position), record.position)
        return [Committed(whole)] if whole is not None else [Advanced(position_of(record.position), record.position)]


def batches_of(changes: Sequence[MemoryChange]) -> list[ChangeBatch]:
    """One batch for each shape; a row's index is its number among all changes."""
    indices: dict[Table, list[int]] = {}
    for at, change in enumerate(changes):
        indices.setdefault(change.shape, []).append(at)
    return [
        ChangeBatch(shape, np.array(index, np.int64), _rows([changes[i] for i in index], shape))
        for shape, index in indices.items()
    ]


def _rows(changes: Sequence[MemoryChange], shape: Table) -> pa.RecordBatch:
    rows = [{**c.values, OP: c.op, BEFORE: c.before} for c in changes]
    return pa.RecordBatch.from_pylist(rows, schema=shape.change_schema)


def run_of(xid: int, position: int, changes: Sequence[MemoryChange]) -> Run:
    """One transaction as a run. The clock of this database is its position."""
    return Run(
        np.array([xid], np.uint64),
        pa.array([position_of(position).text], pa.string()),
        np.array([position], np.int64),
        np.array([len(changes)], np.int64),
        tuple(batches_of(changes)),
    )
