"""Implements `cdcflow.ports.Comparison`: snapshots name the transactions that they see, and positions are numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from cdcflow.interleave.messages import Visibility
from cdcflow.model.change import Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import Table
from cdcflow.sources.engine.chunks import Chunks
from cdcflow.sources.postgres.catalog import Catalog
from cdcflow.sources.postgres.connection import Connection
from cdcflow.sources.postgres.lsn import lsn_of, position_of


class PostgresComparison:
    """Implements `cdcflow.ports.Comparison`. `close` is the source's."""

    def __init__(
        self, catalog: Catalog, tables: Sequence[Table], chunks: Chunks[Connection, Any, Any], close: Callable[[], None]
    ) -> None:
        self._catalog = catalog
        self._tables = tuple(tables)
        self.chunks = chunks
        self.digests = chunks
        self._close = close

    def tables(self) -> Sequence[Table]:
        return self._tables

    def end(self) -> Position:
        return position_of(lsn_of(self._catalog.ask("asking for the end of the write-ahead log", _end)))

    def covers(self, position: Position, end: Position) -> bool:
        return lsn_of(position) >= lsn_of(end)

    def first_unseen(self, visibility: Visibility, transactions: pa.Table) -> int:
        xids = cast("Uint64s", transactions.column("xid").to_numpy())
        unseen = np.flatnonzero(np.isin(xids, visibility.hidden(xids)))
        return int(unseen[0]) if len(unseen) else len(xids)

    def close(self) -> None:
        self.chunks.close()
        self._close()


def _end(connection: Connection) -> str:
    row = connection.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101  one row by construction
    return str(row[0])
