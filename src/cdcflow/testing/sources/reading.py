"""Reads a source for scenarios: events up to a mark, rows of a table, chunks to the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.messages import Advanced, Chunk, ChunkRead, Committed, MarkSeen, Planned
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.log import OpenSpool, Spool
from cdcflow.capture.ports.source import Source
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.log.format.transactions import TransactionHeaders, headers_back
from cdcflow.model.change import DELETE, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Position, Token
from cdcflow.model.table import OP, TableId
from cdcflow.sources.engine.descriptors import READABLE, wait_until
from cdcflow.testing.sources.kit import SourceKit

PATIENCE_S = 60.0
LOG_ID = "c0ffee00-0000-4000-8000-000000000001"

Row = tuple[str, int, str | None]
"""The values that most scenarios compare: op, id, name."""


def refuse_spool() -> Spool:
    raise AssertionError("this scenario's transactions are small and need no spool")


def collect(stream: Stream, enough: Callable[[Sequence[StreamEvent]], bool]) -> list[StreamEvent]:
    """Poll until `enough` returns true; fail if it does not in time."""
    events: list[StreamEvent] = []
    deadline = time.monotonic() + PATIENCE_S
    while not enough(events):
        assert time.monotonic() < deadline, f"the stream brought {len(events)} events, and not what was waited for"
        if not stream.ready:
            wait_until(READABLE, stream.fileno(), 0.2)
        events.extend(stream.poll())
    return events


def rows_of(events: Sequence[StreamEvent], table: TableId) -> list[Row]:
    """Return the changes of a table in the order of the stream."""
    found: list[Row] = []
    for event in events:
        if isinstance(event, Committed) and isinstance(event.run, Run):
            found.extend(rows_of_run(event.run, table))
    return found


def rows_of_run(run: Run, table: TableId) -> list[Row]:
    return [(r[OP], r["id"], r.get("name")) for _, r in placed_rows(run, table)]


def placed_rows(run: Run, table: TableId) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows that a run has of a table, in order, each with its index in the run."""
    found: list[tuple[int, dict[str, Any]]] = []
    for batch in run.batches:
        if batch.table.id == table:
            found += zip(map(int, batch.index.tolist()), batch.rows.to_pylist(), strict=True)
    return sorted(found, key=lambda pair: pair[0])


def changes(events: Sequence[StreamEvent], table: TableId) -> list[Row]:
    """Return the result of `rows_of`, without the values of deleted rows that only some sources send."""
    return [row if row[0] != DELETE else (DELETE, row[1], None) for row in rows_of(events, table)]


def seen_mark(token: Token) -> Callable[[Sequence[StreamEvent]], bool]:
    return lambda events: any(isinstance(e, MarkSeen) and e.token == token for e in events)


def headers(events: Sequence[StreamEvent]) -> pa.Table:
    """Return the transactions with rows, in order, as a log returns them (`cdcflow.ports.Log.transactions_back`)."""
    given = [event.run for event in events if isinstance(event, Committed)]
    runs = [run for run in given if isinstance(run, Run | SpooledTransaction) and run.transactions]
    made = [TransactionHeaders.of(run, 0, 0, np.zeros(run.transactions, np.int64)) for run in runs]
    found = headers_back(made)
    rows = [np.diff(one.ends, prepend=0) for one in made]
    found = found.filter(pa.array(np.concatenate(rows) > 0)) if rows else found
    return found.set_column(0, "number", pa.array(np.arange(1, len(found) + 1)))


def transactions(events: Sequence[StreamEvent]) -> list[tuple[Position, int]]:
    """Return position and id of the transactions with rows, in order; a run may have several."""
    found = headers(events)
    whole = zip(found.column("position").to_pylist(), found.column("xid").to_pylist(), strict=True)
    return [(Position(at), xid) for at, xid in whole]


def positions(events: Sequence[StreamEvent]) -> list[Position]:
    """Return the positions at which the transactions with rows end, in order."""
    return [position for position, _ in transactions(events)]


def xids(events: Sequence[StreamEvent]) -> Uint64s:
    """Return the id of the last transaction with rows."""
    return np.array([transactions(events)[-1][1]], np.uint64)


def position_at(event: StreamEvent) -> Position | None:
    match event:
        case Committed(run):
            return run.last_position
        case Advanced(position) | MarkSeen(position=position):
            return position
        case _:
            return None


class Scenarios:
    """The first steps of scenarios. `prepared` opens a source at a new position in the database's log."""

    def prepare_source(self, kit: SourceKit, log_id: str = LOG_ID) -> tuple[Source, Checkpoint]:
        source = kit.open_source()
        return source, source.prepare(Checkpoint(epoch=Epoch(1)), log_id).checkpoint

    def again(self, kit: SourceKit, checkpoint: Checkpoint, position: Position) -> tuple[Source, Checkpoint]:
        """Start a source again, from a log that ends at this position."""
        source = kit.open_source()
        later = Checkpoint(position=position, source=checkpoint.source, epoch=Epoch(2))
        return source, source.prepare(later, LOG_ID).checkpoint

    @contextmanager
    def reading(
        self, source: Source, checkpoint: Checkpoint, open_spool: OpenSpool = refuse_spool
    ) -> Iterator[tuple[Stream, ChunkSource]]:
        """Open stream and chunks of a source; at the end, close them and the source."""
        chunks = source.chunks()
        stream = source.stream(checkpoint, open_spool)
        try:
            yield stream, chunks
        finally:
            stream.close()
            chunks.close()
            source.close()

    def stream_to_mark(
        self, source: Source, checkpoint: Checkpoint, token: str = "1/1/low", open_spool: OpenSpool = refuse_spool
    ) -> list[StreamEvent]:
        """Return all events from the checkpoint up to a mark written now."""
        chunks = source.chunks()
        stream = source.stream(checkpoint, open_spool)
        try:
            chunks.write_mark(Token(token))
            return collect(stream, seen_mark(Token(token)))
        finally:
            stream.close()
            chunks.close()

    def read_all(self, source: Source, table: TableId, size: int) -> list[ChunkRead]:
        chunks = source.chunks()
        try:
            plan = chunks.plan(table, 1)
            reads: list[ChunkRead] = []
            while not reads or not reads[-1].exhausted:
                reads.append(self.read(chunks, plan, reads[-1] if reads else None, size))
                assert len(reads) < 1000, "the chunks do not end"
            return reads
        finally:
            chunks.close()

    def read(
        self, chunks: ChunkSource, plan: Planned, before: ChunkRead | None = None, size: int = 100_000
    ) -> ChunkRead:
        """Read the range chunk after `before`, or the first one."""
        after, number = (before.reached, before.chunk.number + 1) if before else (None, 1)
        return chunks.read_chunk(Chunk(plan.table, 1, number, plan.plan, after, size, Token("1/1/low")))

    def read_keys(self, chunks: ChunkSource, plan: Planned, keys: KeySet) -> ChunkRead:
        chunk = Chunk(plan.table, 1, 1, plan.plan, None, 1, Token("1/1/low"), kind="keys", keys=keys)
        return chunks.read_chunk(chunk)

    def rows_read(self, read: ChunkRead, table: TableId) -> list[Row]:
        return rows_of_run(read.run, table) if isinstance(read.run, Run) else []
