"""A PostgreSQL source that a test controls: prepared, streamed up to a mark, read in chunks, as plain rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tests.servers.postgres import Database

from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Committed, Planned
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.log import Spool
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.config import Postgres
from cdcflow.model.change import ChangeBatch, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Token
from cdcflow.model.table import Table, TableId
from cdcflow.sources.postgres.source import PostgresSource
from cdcflow.testing.sources import collect, seen_mark

LOG_ID = "c0ffee00-0000-4000-8000-000000000001"
SLOT = "cdcflow_c0ffee00"

Row = dict[str, Any]

_MARKS = itertools.count(1)  # of all captures: a capture that reads another capture's log again sees its marks too


class MemorySpool:
    """A spool that keeps its pieces."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces: list[tuple[tuple[ChangeBatch, ...], Uint64s | None]] = []
        self.state = "open"

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        self.pieces.append((tuple(batches), subxids))

    def finish(self) -> None:
        self.state = "finished"

    def discard(self) -> None:
        self.state = "discarded"


class Capture:
    """One run of capture on a database: a source with the checkpoint that it prepared. Closes what it opened."""

    def __init__(self, database: Database, secret: Callable[[], str | None] = lambda: None, **settings: Any) -> None:
        options = {"kind": "postgres", "url": database.url, **settings}
        waits = {
            k: options.pop(k) for k in ("creation_wait_s", "older_wait_s", "windows", "chunk_bytes_max") if k in options
        }
        self.source = PostgresSource(Postgres(**options), secret, **waits)
        self.spools: dict[str, MemorySpool] = {}
        self.checkpoint = Checkpoint()
        self._chunks: ChunkSource | None = None
        self._stream: Stream | None = None

    def prepare(self, before: Checkpoint | None = None, *, accept_history_loss: bool = False) -> Checkpoint:
        begin = before or Checkpoint(epoch=Epoch(1))
        prepared = self.source.prepare(begin, LOG_ID, accept_history_loss=accept_history_loss)
        self.checkpoint, self.history = prepared.checkpoint, prepared.history
        self.source.tables()  # as the pipeline does: what was read of them while preparing is used up with that
        return self.checkpoint

    @property
    def chunks(self) -> ChunkSource:
        if self._chunks is None:
            self._chunks = self.source.chunks()
        return self._chunks

    @property
    def stream(self) -> Stream:
        if self._stream is None:
            self._stream = self.source.stream(self.checkpoint, self._open_spool)
        return self._stream

    def _open_spool(self) -> Spool:
        made = MemorySpool(f"spool-{len(self.spools) + 1}")
        self.spools[made.name] = made
        return made

    def events(self) -> list[StreamEvent]:
        """Everything up to a mark written now."""
        stream = self.stream
        token = Token(f"1/{next(_MARKS)}/low")
        self.chunks.write_mark(token)
        return collect(stream, seen_mark(token))

    def batches(self) -> list[ChangeBatch]:
        found: list[ChangeBatch] = []
        for event in self.events():
            if isinstance(event, Committed):
                assert isinstance(event.run, Run | SpooledTransaction)
                found += batches_of(event.run)
        return found

    def changes(self, table: str | None = None) -> list[Row]:
        """The changes up to now as rows, in the order of the stream; with `table`, of this table only."""
        rows: list[Row] = []
        for event in self.events():
            if isinstance(event, Committed) and isinstance(event.run, Run):
                rows += rows_of(event.run, table)
        return rows

    def shape(self, table: str) -> Table:
        return next(t for t in self.source.tables() if str(t.id) == table)

    def plan(self, table: str) -> Planned:
        return self.chunks.plan(table_id(table), 1)

    def read(self, planned: Planned, after: str | None = None, size: int = 100_000, **about: Any) -> ChunkRead:
        """Read one chunk of a plan."""
        return self.chunks.read_chunk(
            Chunk(planned.table, planned.generation, 1, planned.plan, after, size, Token("1/1/low"), **about)
        )

    def rows(self, table: str, size: int = 100_000) -> list[Row]:
        """All of a table by range chunks of `size` pages."""
        planned = self.plan(table)
        rows: list[Row] = []
        after: str | None = None
        while True:
            read = self.read(planned, after, size)
            assert isinstance(read.run, Run)
            rows += rows_of(read.run, table)
            after = read.reached
            if read.exhausted:
                return rows

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._chunks is not None:
            self._chunks.close()
        self.source.close()


def table_id(name: str) -> TableId:
    schema, _, table = name.partition(".")
    return TableId(schema, table)


def batches_of(run: Run | SpooledTransaction) -> list[ChangeBatch]:
    return list(run.batches) if isinstance(run, Run) else []


def rows_of(run: Run, table: str | None = None) -> list[Row]:
    """A run's changes as plain rows, in order."""
    placed: list[tuple[int, Row]] = []
    for batch in run.batches:
        if table in (None, str(batch.table.id)):
            placed += zip(batch.index.tolist(), batch.rows.to_pylist(), strict=True)
    return [row for _, row in sorted(placed, key=lambda pair: pair[0])]


MakeCapture = Callable[..., Capture]
"""The type of the fixture `make_capture`."""
