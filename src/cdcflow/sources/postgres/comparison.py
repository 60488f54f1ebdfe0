"""Implements `cdcflow.ports.Comparison`: snapshots name the transactions that they see, and positions are numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cdcflow.model.position import Position
from cdcflow.model.table import Table
from cdcflow.sources.engine.chunks import Chunks
from cdcflow.sources.engine.comparison import ByChunks
from cdcflow.sources.postgres.catalog import Catalog
from cdcflow.sources.postgres.connection import Connection
from cdcflow.sources.postgres.lsn import lsn_of, position_of


class PostgresComparison(ByChunks[Connection]):
    """Implements `cdcflow.ports.Comparison`."""

    def __init__(
        self, catalog: Catalog, tables: Sequence[Table], chunks: Chunks[Connection, Any, Any], close: Callable[[], None]
    ) -> None:
        super().__init__(tables, chunks, close)
        self._catalog = catalog

    def end(self) -> Position:
        return position_of(lsn_of(self._catalog.ask("reading the end of the write-ahead log", _end)))

    def covers(self, position: Position, end: Position) -> bool:
        return lsn_of(position) >= lsn_of(end)


def _end(connection: Connection) -> str:
    row = connection.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101  one row by construction
    return str(row[0])
