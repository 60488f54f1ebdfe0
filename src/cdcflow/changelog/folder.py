"""The log in a folder as `cdcflow.ports.LogReader`: what `reader` does, for one path."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa

from cdcflow.changelog import checking, reader
from cdcflow.changelog.checking import Report
from cdcflow.changelog.layout import Layout
from cdcflow.changelog.reader import LogRows
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId


class FolderReader:
    """Reads a log in a folder. Implements `cdcflow.ports.LogReader`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    def exists(self) -> bool:
        return Layout(self.path).log_json.exists()

    def newest_checkpoint(self) -> Checkpoint:
        return reader.newest_checkpoint(self.path)

    def table_shapes(self) -> dict[TableId, dict[int, Table]]:
        return reader.table_shapes(self.path)

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]:
        return reader.read_rows(self.path, from_offset, to_offset, tables)

    def read_transactions(self, from_offset: int = 1, to_offset: int | None = None) -> Iterator[pa.Table]:
        return reader.read_transactions(self.path, from_offset, to_offset)

    def check(self, *, deep: bool = False) -> Report:
        return checking.check(self.path, deep=deep)


__all__ = ["FolderReader"]
