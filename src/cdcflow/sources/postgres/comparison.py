"""Implements `cdcflow.ports.Comparison`: snapshots name the transactions that they see, and positions are numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cdcflow.model.position import Position
from cdcflow.model.table import Table
from cdcflow.sources.engine.chunks import Chunks
from cdcflow.sources.engine.comparison import ByChunks
from cdcflow.sources.postgres.catalog import Catalog
from cdcflow.sources.postgres.connection import Connection, query_row
from cdcflow.sources.postgres.lsn import Lsn, lsn_of, position_of


class PostgresComparison(ByChunks[Connection]):
    """Implements `cdcflow.ports.Comparison`."""

    def __init__(
        self, catalog: Catalog, tables: Sequence[Table], chunks: Chunks[Connection, Any, Any], close: Callable[[], None]
    ) -> None:
        super().__init__(tables, chunks, close)
        self._catalog = catalog

    def end(self) -> Position:
        return position_of(self._catalog.ask("reading the end of the write-ahead log", log_end))

    def covers(self, position: Position, end: Position) -> bool:
        return lsn_of(position) >= lsn_of(end)


def log_end(connection: Connection) -> Lsn:
    """A position in the server's log after everything that is committed now."""
    return Lsn.parse(query_row(connection, "SELECT pg_catalog.pg_current_wal_insert_lsn()::text")[0])
