"""Every table as of the latest sealed cut, in this process: the tables' rows as Arrow, with the log's tail folded over
them by DuckDB.

All rows are read at once, while Spark only builds plans. So the cost depends on the table's size, not on the tail's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcflow.log.files.layout import Layout
from cdcflow.tables.job.past_tables import VersionGone
from cdcflow.tables.local.arrow_types import type_of
from cdcflow.tables.local.engine import LocalCuts, LocalEngine, of_local
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.target import Target
from cdcflow.tables.port import Failure, TableSnapshot
from cdcflow.tables.segments import InputFile


class LocalReader:
    """Implements `cdcflow.tables.job.live.Reader`. `without_rows`: only the tables' columns are needed, so no row is
    read."""

    name = "local"
    remedy = "only Spark reads this table: use cdcflow.spark.read_live"
    shows_doubled = False

    def __init__(self, engine: LocalEngine, *, without_rows: bool = False) -> None:
        self._engine = engine
        self._without_rows = without_rows
        self.rules: Format = engine.rules

    def cuts(self) -> LocalCuts:
        return self._engine.cuts()

    def table(self, path: Sequence[str]) -> LocalPastTable:
        return LocalPastTable(self._engine.table(path), without_rows=self._without_rows)

    def readable_files(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        return self._engine.readable_files(layout, files, room)

    def declines(self, files: Sequence[InputFile], mode: ModeRules = CURRENT) -> str | None:
        return self._engine.declines(None, files, mode)

    def is_gone(self, error: BaseException) -> bool:
        return isinstance(error, FileNotFoundError)

    def failure(self, error: Exception) -> Failure | None:
        return of_local(error)


class LocalPastTable:
    """Implements `cdcflow.tables.job.past_tables.PastTable`."""

    def __init__(self, table: FileTable[Any], *, without_rows: bool = False) -> None:
        self._table = table
        self._without_rows = without_rows

    @property
    def session(self) -> DuckSession:
        return self._table.session

    def as_of(self, version: int) -> TableSnapshot:
        found = self._table.as_of(version)
        if found is None:
            raise VersionGone("its content at that version is no longer known")
        return found

    def base(self) -> str:
        if self._without_rows:
            return self.session.view_of("base", self._table.schema.empty_table())
        try:
            return self.session.view_of("base", self._table.rows())
        except FileNotFoundError as error:
            raise VersionGone("files of that version were removed") from error

    def result(self, query: str, target: Target, mode: ModeRules = CURRENT) -> pa.Table:
        columns = [(c.name, type_of(c.type)) for c in target.columns]
        columns += [(name, type_of(type_)) for name, type_ in mode.columns]
        return self.session.arrow(query).cast(pa.schema(columns))

    def close(self) -> None:
        self._table.close()
