"""Implements `cdcflow.ports.Comparison`: snapshots name the transactions that they see, and positions are numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from cdcflow.capture.interleave.messages import Visibility
from cdcflow.model.position import Position
from cdcflow.model.table import Table
from cdcflow.sources.engine.chunks import Chunks
from cdcflow.sources.engine.comparison import ByChunks
from cdcflow.sources.postgres.catalog import Catalog
from cdcflow.sources.postgres.connection import Connection
from cdcflow.sources.postgres.lsn import lsn_of, position_of
from cdcflow.sources.postgres.recovery import log_end
from cdcflow.sources.postgres.replay_fences import ReplayVisibility


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

    def first_unseen(self, visibility: Visibility, transactions: pa.Table) -> int:
        if not isinstance(visibility, ReplayVisibility):
            return super().first_unseen(visibility, transactions)
        # This returns the first transaction that ends after the bound, although the snapshot may see it: the caller
        # uses the lowest result of the snapshot's two bounds.
        ends = transactions.column("position")
        bound = position_of(visibility.bound).text
        return bisect_left(range(len(ends)), True, key=lambda number: ends[number].as_py() > bound)
