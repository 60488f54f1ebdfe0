"""A change log in memory, with the file sink's contract: for tests, and for trying the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdcflow.capture.ports.log import Numbered
from cdcflow.errors import InvariantViolated
from cdcflow.log.format.journal import Owners
from cdcflow.log.format.transactions import TransactionHeaders, gathered_back, headers_back
from cdcflow.log.read.lookup import gather_keys, keys_expired, keys_of_partial
from cdcflow.model.change import ChangeBatch, KeySet, Kind, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.model.table import Table, TableId
from cdcflow.sinks.log_end import LogEnd, own_rows

_LOW = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One appended run: its headers, and its rows in the log's columns."""

    headers: TransactionHeaders
    kind: Kind
    rows: tuple[tuple[Table, pa.RecordBatch], ...]
    batches: tuple[ChangeBatch, ...]
    first_offset: int


class Memory:
    """The storage of a `MemoryLog`, which outlives its writers."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.checkpoint = Checkpoint()
        self.epoch = Epoch(0)
        self.first_offset = 1

    def expire(self) -> None:
        """Drop everything that is durable now, as retention would."""
        self.entries.clear()
        self.first_offset = int(self.checkpoint.next_offset)

    def newest_checkpoint(self) -> Checkpoint:
        return self.checkpoint

    def read_rows(self) -> Iterator[tuple[Table, int, pa.Table]]:
        """The durable rows as `cdcflow.ports.LogReader` returns them; all shapes are version 0.

        May be called while another thread writes.
        """
        for entry in list(self.entries):
            for table, rows in entry.rows:
                yield table, 0, pa.Table.from_batches([rows])

    def rows(self) -> Iterator[tuple[Table, pa.RecordBatch]]:
        """The durable rows (`Table.log_schema`), run by run."""
        for entry in self.entries:
            yield from entry.rows


class MemoryLog:
    """Implements `cdcflow.ports.Log`. Opening a second one on the same memory fences this one off."""

    def __init__(self, memory: Memory, log_id: str = "memory") -> None:
        self.log_id = log_id
        self._memory = memory
        memory.epoch = Epoch(memory.epoch + 1)
        self.epoch = memory.epoch
        self._log_end = LogEnd(memory.checkpoint)
        self._entries: list[_Entry] = []
        self._cut = (memory.checkpoint, 0)
        self._synced = 0
        self._spools: dict[str, MemorySpool] = {}
        self._spools_opened = 0
        self._closed = False

    @property
    def checkpoint(self) -> Checkpoint:
        return self._memory.checkpoint

    def append(self, numbered: Numbered) -> None:
        self._living()
        self._log_end.check(numbered)
        run = own_rows(numbered.run)
        batches = run.batches if isinstance(run, Run) else self._attach(run)
        head = TransactionHeaders.of(run, numbered.first_offset, numbered.first_transaction, numbered.commit_clock)
        owners = Owners.of(head.headers)
        rows = tuple(
            (b.table, owners.log_rows(b.table, b.index + numbered.first_offset, b.rows))
            for b in batches
            if len(b.index)
        )
        self._entries.append(_Entry(head, run.kind, rows, batches, numbered.first_offset))
        self._log_end.advance(numbered)

    def cut(self, checkpoint: Checkpoint) -> None:
        self._living()
        self._log_end.cut(checkpoint)
        self._cut = (checkpoint, len(self._entries))

    def sync(self) -> Checkpoint:
        self._living()
        checkpoint, count = self._cut
        self._memory.entries += self._entries[self._synced : count]
        self._synced = count
        self._memory.checkpoint = checkpoint
        return checkpoint

    def open_spool(self) -> MemorySpool:
        self._living()
        self._spools_opened += 1
        spool = MemorySpool(f"{self.epoch}-{self._spools_opened}", self._spools)
        self._spools[spool.name] = spool
        return spool

    def delivered(self, xids: Uint64s) -> Uint64s:
        self._living()
        ids = [e.headers.xid for e in self._all() if e.kind is Kind.SOURCE]
        return xids[np.isin(xids & _LOW, np.concatenate(ids) & _LOW)] if ids else xids[:0]

    def newest_shape(self, table: TableId) -> Table | None:
        self._living()
        return next((t for e in reversed(self._all()) for t, _ in reversed(e.rows) if t.id == table), None)

    def transactions_back(self, is_enough: Callable[[Position], bool]) -> pa.Table:
        self._living()
        return gathered_back((headers_back([entry.headers]) for entry in reversed(self._all())), is_enough)

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        self._living()
        if since < self._memory.first_offset:
            raise keys_expired(table, since, self._memory.first_offset)
        after = [
            rows
            for entry in self._all()
            for batch in entry.batches
            if batch.table.id == table and (rows := batch.between(max(0, since - entry.first_offset), 1 << 62))
        ]
        found = [
            keys_of_partial(pa.Table.from_batches([rows.rows]), rows.table, after[-1].table)
            for rows in after
            if rows.table.key
        ]
        return gather_keys(table, found)

    def seal_due(self, now_s: float) -> bool:
        return False

    def roll(self) -> bool:
        return False

    def seal_pending(self) -> None:
        """Do nothing: a log in memory needs no sealing."""

    def close(self) -> None:
        if not self._closed and self._memory.epoch == self.epoch:
            self.sync()
        self._closed = True

    def _living(self) -> None:
        if self._closed:
            raise InvariantViolated("the log in memory is closed")
        if self._memory.epoch != self.epoch:
            raise InvariantViolated(f"epoch {self.epoch} of the log in memory was replaced by {self._memory.epoch}")

    def _all(self) -> list[_Entry]:
        return [*self._memory.entries, *self._entries[self._synced :]]

    def _attach(self, run: SpooledTransaction) -> tuple[ChangeBatch, ...]:
        spool = self._spools.pop(run.spool, None)
        if spool is None:
            raise InvariantViolated(f"attaching spool {run.spool}: no such spool is open")
        batches = tuple(spool.batches(run.aborted))
        rows = sum(b.rows.num_rows for b in batches)
        if rows != run.rows:
            raise InvariantViolated(f"attaching spool {run.spool}: it has {rows} rows, {run.rows} were announced")
        return batches


class MemorySpool:
    """Implements `cdcflow.ports.Spool`."""

    def __init__(self, name: str, registry: dict[str, MemorySpool]) -> None:
        self.name = name
        self._registry = registry
        self._pieces: list[tuple[tuple[ChangeBatch, ...], Uint64s | None]] = []

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        rows = sum(b.rows.num_rows for b in batches)
        LogEnd.check_index(batches, rows)
        if subxids is not None and len(subxids) != rows:
            raise InvariantViolated(f"spooling {rows} rows with {len(subxids)} sub-transactions")
        self._pieces.append((tuple(batches), subxids))

    def finish(self) -> None:
        pass

    def discard(self) -> None:
        self._registry.pop(self.name, None)

    def batches(self, aborted: frozenset[int]) -> Iterator[ChangeBatch]:
        """The remaining batches, renumbered from 0."""
        after = 0
        for pieces, subxids in self._pieces:
            rows = sum(b.rows.num_rows for b in pieces)
            gone = np.zeros(rows, np.bool_) if subxids is None else np.isin(subxids, list(aborted))
            index = np.cumsum(~gone) + (after - 1)
            for batch in pieces:
                keep = ~gone[batch.index]
                if keep.any():
                    yield ChangeBatch(batch.table, index[batch.index[keep]], batch.rows.filter(pa.array(keep)))
            after += rows - int(gone.sum())
