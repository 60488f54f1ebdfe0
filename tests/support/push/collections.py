"""Collections for tests: a writer over a real log in a folder, and a table of what it should hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcflow import local
from cdcflow.config import Seal
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.read.folder import FolderReader
from cdcflow.model.position import SourceIdentity
from cdcflow.push.operations import parse_operations
from cdcflow.push.remembered import Once, RememberedAnswers
from cdcflow.push.schemas import CollectionShape, compile_schema, continue_numbers
from cdcflow.push.writer import Answer, CollectionWriter, Request
from cdcflow.sinks.files.log import FileLog

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": "string", "maxLength": 20},
        "hits": {"type": "integer", "maximum": 1000},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array"},
    },
    "required": ["id"],
}
ORDERS = compile_schema("orders", ["id"], SCHEMA)


class Pushed:
    """A log that one writer writes, in this process. `stop` and `opened` again are a restart."""

    def __init__(
        self, folder: Path, shape: CollectionShape = ORDERS, *, keys_max: int = 1000, seal: Seal | None = None
    ) -> None:
        self.folder = folder
        reader = FolderReader(folder)
        if reader.exists():
            versions = reader.table_shapes().get(shape.table.id, {})
            shape = continue_numbers(shape, [versions[number] for number in sorted(versions)])
        self.shape = shape
        self.log = FileLog.open(folder, SourceIdentity("push", "a1", "collections"), seal or Seal(age_max=3600.0))
        self.now_us = 1_700_000_000_000_000
        self.told: list[str] = []
        self.writer = CollectionWriter(
            self.log,
            reader,
            asked(folder),
            RememberedAnswers(3600.0, keys_max),
            [shape],
            lambda event, fields: self.told.append(event),
            lambda: self.now_us,
        )
        self.writer.start()

    def send(self, operations: Any, *, atomic: bool = True, once: Once | None = None) -> Answer:
        """One request, and its answer."""
        request = Request(self.shape, parse_operations(self.shape, operations), 100, atomic, once)
        return self.writer.submit(request).result(30)

    def send_columns(self, rows: Sequence[Mapping[str, Any]]) -> Answer:
        schema = self.shape.table.row_schema
        batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
        return self.writer.submit(Request(self.shape, batch, batch.nbytes)).result(30)

    def seal(self) -> None:
        """Seal the current contents, and index them. Nothing may be under way."""
        self.log.roll()
        self.log.sync()
        self.log.seal_pending()
        Indexing(Layout(self.folder)).step()

    def stop(self) -> None:
        self.writer.stop()


def asked(folder: Path) -> ChangeLog:
    return ChangeLog(FolderReader(folder), Layout(folder), local.current_rows)


def table(folder: Path, name: str = "push.orders") -> dict[Any, dict[str, Any]]:
    """A collection's rows, folded from its log, by the first key column."""
    rows = asked(folder).current(name).drop_columns(["_offset"]).to_pylist()
    return {next(iter(row.values())): row for row in rows}
