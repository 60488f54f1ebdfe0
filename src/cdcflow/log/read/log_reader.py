"""A change log as its readers see it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

import pyarrow as pa

from cdcflow.log.read.check import CheckReport
from cdcflow.log.read.reader import LogRows
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId


class LogReader(Protocol):
    """A change log as its readers see it, wherever it is stored. May be used while the daemon writes.

    `cdcflow.log.read.reader` specifies how rows and headers are returned.
    """

    name: str
    """The log's name in messages."""

    def exists(self) -> bool:
        """Whether the log exists."""
        ...

    def newest_checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the latest cut that readers see (`cut` 0: no cut yet)."""
        ...

    def table_shapes(self) -> dict[TableId, dict[int, Table]]:
        """Return every table's shapes by version number, oldest first."""
        ...

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]:
        """Return the log's rows from one offset to another (both inclusive; `None`: up to the latest cut).

        Raises:
            HistoryLost: `from_offset` has expired.
            InvariantViolated: something is missing or damaged.
        """
        ...

    def read_transactions(self, from_offset: int = 1, to_offset: int | None = None) -> Iterator[pa.Table]:
        """Return the headers (`TRANSACTIONS_SCHEMA`) of the transactions with a row from one offset to another, in
        order."""
        ...

    def check(self, *, deep: bool = False) -> CheckReport:
        """Read the whole log and report its faults. `deep`: read every value."""
        ...
