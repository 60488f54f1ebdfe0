"""Implements `cdcflow.ports.Comparison`: a snapshot sees a set of GTIDs, or everything before a position in the binary
log.

A set of GTIDs determines whether a snapshot sees everything before a position: the log stores the set of GTIDs with
each transaction.

Transactions that were read from an earlier server do not concern a snapshot of this one: their positions are those of
another binary log, and some of them may have been lost with that server. Their changes are either visible here, or were
never made here.
"""

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
from cdcflow.sources.mysql import binlog_status
from cdcflow.sources.mysql.catalog import Catalog
from cdcflow.sources.mysql.connection import Connection
from cdcflow.sources.mysql.fences import GtidVisibility
from cdcflow.sources.mysql.gtids import Flavor, gtid_set
from cdcflow.sources.mysql.position import BinlogPosition, binlog_position_of, position_of


class MySQLComparison(ByChunks[Connection]):
    """Implements `cdcflow.ports.Comparison`."""

    def __init__(
        self,
        flavor: Flavor,
        catalog: Catalog,
        tables: Sequence[Table],
        chunks: Chunks[Connection, Any, Any],
        close: Callable[[], None],
        *,
        first_transaction: int = 0,
    ) -> None:
        """`first_transaction`: the number of the change log's first transaction that was read from this server."""
        super().__init__(tables, chunks, close)
        self._first_transaction = first_transaction
        self._flavor: Flavor = flavor
        self._catalog = catalog

    def end(self) -> Position:
        end = self._catalog.ask("reading the end of the binary log", self._end)
        return position_of(BinlogPosition(end.file, end.pos))

    def _end(self, connection: Connection) -> binlog_status.BinlogEnd:
        if self._flavor == "mysql":
            return binlog_status.end(connection)
        # While a commit waits for a replica, MariaDB does not report the log's end, but it does report a snapshot's
        # position.
        with binlog_status.snapshot(connection):
            return binlog_status.snapshot_end(connection)

    def covers(self, position: Position, end: Position) -> bool:
        return binlog_position_of(position).coordinate >= binlog_position_of(end).coordinate

    def first_unseen(self, visibility: Visibility, transactions: pa.Table) -> int:
        numbers = transactions.column("number").to_pylist()
        earlier = bisect_left(numbers, self._first_transaction)
        return earlier + self._first_unseen_here(visibility, transactions.slice(earlier))

    def _first_unseen_here(self, visibility: Visibility, transactions: pa.Table) -> int:
        if isinstance(visibility, GtidVisibility):
            executed = visibility.executed_gtids
            positions = transactions.column("position")

            def is_unseen(number: int) -> bool:
                gtids = BinlogPosition.parse(positions[number].as_py()).gtids
                return not executed.covers(gtid_set(self._flavor, gtids))

            # The set of executed GTIDs grows along the log: after a transaction whose set is not fully seen, no other
            # is.
            return bisect_left(range(len(positions)), True, key=is_unseen)
        return super().first_unseen(visibility, transactions)
