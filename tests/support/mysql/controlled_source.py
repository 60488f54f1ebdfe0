"""A MySQL or MariaDB source that a test controls: prepared, streamed up to a mark, read in chunks, as plain rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from tests.servers.mysql import MySQLDatabase
from tests.support.postgres.controlled_source import LOG_ID, Capture, MemorySpool, Row, rows_of

from cdcflow.capture.interleave.messages import Advanced, ChunkRead, Committed, MarkSeen, Planned, RowsFilled
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.source import TransactionsBack
from cdcflow.capture.ports.stream import Stream
from cdcflow.config import MySQL
from cdcflow.log.format.transactions import HEADERS_BACK
from cdcflow.model.change import Run
from cdcflow.model.position import Checkpoint, Epoch, Position
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
        self.runs: list[Run] = []
        self._chunks: ChunkSource | None = None
        self._stream: Stream | None = None

    def named(self, table: str) -> TableId:
        return TableId(self.database.name, table)

    def prepare(
        self,
        before: Checkpoint | None = None,
        *,
        back: TransactionsBack | None = None,
        accept_history_loss: bool = False,
    ) -> Checkpoint:
        begin = before or Checkpoint(epoch=Epoch(1))
        prepared = self.source.prepare(begin, LOG_ID, back, accept_history_loss=accept_history_loss)
        self.checkpoint, self.history = prepared.checkpoint, prepared.history
        return self.checkpoint

    def back(self, is_enough: Callable[[Position], bool]) -> pa.Table:
        """The transactions that `seen` has returned, as a log shows them."""
        return logged(self.runs)

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


def seen(capture: MySQLCapture) -> list[dict[str, object]]:
    """The changes up to now; the capture's checkpoint moves after them."""
    rows: list[dict[str, object]] = []
    for event in capture.events():
        match event:
            case Committed(Run() as run):
                capture.runs.append(run)
                position = run.last_position
                rows += [row for batch in run.batches for row in batch.rows.to_pylist()]
            case MarkSeen() | Advanced():
                position = event.position
        capture.checkpoint = replace(capture.checkpoint, position=position, epoch=Epoch(2))
    return rows


def logged(runs: Iterable[Run]) -> pa.Table:
    """These transactions as a log shows them."""
    columns: dict[str, list[object]] = {"number": [], "position": [], "xid": [], "commit_ts": []}
    for run in runs:
        columns["position"] += run.position.to_pylist()
        columns["xid"] += run.xid.tolist()
        columns["commit_ts"] += run.commit_ts.tolist()
    columns["number"] = list(range(1, len(columns["xid"]) + 1))
    return pa.table(columns).cast(HEADERS_BACK)
