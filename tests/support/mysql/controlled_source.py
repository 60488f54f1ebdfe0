"""A MySQL or MariaDB source that a test controls: prepared, streamed up to a mark, read in chunks, as plain rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.servers.mysql import MySQLDatabase
from tests.support.postgres.controlled_source import LOG_ID, Capture, MemorySpool, Row, rows_of

from cdcflow.capture.interleave.messages import ChunkRead, Committed, Planned, RowsFilled
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.stream import Stream
from cdcflow.config import MySQL
from cdcflow.model.change import Run
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.model.table import Table, TableId
from cdcflow.sources.mysql.source import MySQLSource


class MySQLCapture(Capture):
    """One run of capture on a database: a source with the checkpoint that it prepared. Closes what it opened."""

    def __init__(
        self, database: MySQLDatabase, secret: Callable[[], str | None] = lambda: None, **settings: Any
    ) -> None:
        self.database = database
        options = {
            "kind": database.server.flavor,
            "url": database.url,
            "tables": [f"{database.name}.*"],
            "tls": {"mode": "off"},
            "heartbeat": 1.0,
            **settings,
        }
        wait_s = options.pop("wait_s", 20.0)
        self.source: Any = MySQLSource(MySQL.model_validate(options), secret, wait_s=wait_s)
        self.spools: dict[str, MemorySpool] = {}
        self.checkpoint = Checkpoint()
        self._chunks: ChunkSource | None = None
        self._stream: Stream | None = None

    def named(self, table: str) -> TableId:
        return TableId(self.database.name, table)

    def prepare(self, before: Checkpoint | None = None, *, accept_history_loss: bool = False) -> Checkpoint:
        begin = before or Checkpoint(epoch=Epoch(1))
        prepared = self.source.prepare(begin, LOG_ID, accept_history_loss=accept_history_loss)
        self.checkpoint, self.history = prepared.checkpoint, prepared.history
        return self.checkpoint

    def changes(self, table: str | None = None) -> list[Row]:
        return super().changes(None if table is None else str(self.named(table)))

    def shape(self, table: str) -> Table:
        return super().shape(str(self.named(table)))

    def emptied_and_filled(self) -> tuple[list[str], set[str]]:
        """The tables that were emptied so far, and those that must be read again."""
        emptied: list[str] = []
        filled: set[str] = set()
        for event in self.events():
            if isinstance(event, RowsFilled) and not event.swapped:
                filled.add(event.table.name)
            elif isinstance(event, Committed) and isinstance(event.run, Run):
                emptied += [b.table.id.name for b in event.run.batches for op in b.rows["_op"].to_pylist() if op == "t"]
        return sorted(emptied), filled

    def plan(self, table: str) -> Planned:
        return self.chunks.plan(self.named(table), 1)

    def all_reads(self, table: str, size: int = 100_000) -> list[ChunkRead]:
        """All of a table by range chunks of `size` rows."""
        planned = self.plan(table)
        reads = [self.read(planned, None, size)]
        while not reads[-1].exhausted:
            assert len(reads) < 1000, "the chunks do not end"
            reads.append(self.read(planned, reads[-1].reached, size))
        return reads

    def rows(self, table: str, size: int = 100_000) -> list[Row]:
        found: list[Row] = []
        for read in self.all_reads(table, size):
            assert isinstance(read.run, Run)
            found += rows_of(read.run)
        return found


MakeMySQLCapture = Callable[..., MySQLCapture]
"""The type of the fixture `make_capture`."""
