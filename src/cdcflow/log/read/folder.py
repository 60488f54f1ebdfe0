"""A log in files, in a folder or an object store, read through the interface `cdcflow.ports.LogReader`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from cdcflow.log.files.layout import Layout
from cdcflow.log.read import check, reader
from cdcflow.log.read.check import CheckReport
from cdcflow.log.read.reader import LogLocation, LogRows
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId


class FolderReader:
    """Reads a log in a folder, or in the store of a layout. Implements `cdcflow.ports.LogReader`."""

    def __init__(self, location: LogLocation) -> None:
        self.layout = Layout.of(location)
        self.name = self.layout.name

    def exists(self) -> bool:
        return self.layout.exists()

    def newest_checkpoint(self) -> Checkpoint:
        return reader.newest_checkpoint(self.layout)

    def table_shapes(self) -> dict[TableId, dict[int, Table]]:
        return reader.table_shapes(self.layout)

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]:
        return reader.read_rows(self.layout, from_offset, to_offset, tables)

    def read_transactions(self, from_offset: int = 1, to_offset: int | None = None) -> Iterator[pa.Table]:
        return reader.read_transactions(self.layout, from_offset, to_offset)

    def check(self, *, deep: bool = False) -> CheckReport:
        return check.check(self.layout, deep=deep)
