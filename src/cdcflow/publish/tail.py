"""The change log as the publisher reads it: its durable rows, in whole transactions. Any kind of log can
implement it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import pyarrow as pa

from cdcflow.log.read.reader import LogRows
from cdcflow.model.position import SourceIdentity


class GrowingLog(Protocol):
    """A change log that may grow while it is read."""

    log_id: str
    identity: SourceIdentity
    progress: Mapping[str, object]
    """The backfill progress at the latest cut that was read."""
    progress_at: int
    """The offset after that cut."""

    def next_offset(self) -> int:
        """Return the offset after the latest durable row. Rows before it never change."""
        ...

    def ready(self, first: int) -> int:
        """Return the offset after the latest row that can be published now, starting at `first`.

        It is `first` if there is no such row yet. It reads for a short time only: the next call continues.
        """
        ...

    def transactions(self, first: int, last: int) -> Iterator[pa.Table]:
        """Yield headers of the transactions with a row between two offsets (inclusive), in order.

        At least one transaction, perhaps not all.

        Raises:
            HistoryLost: `first` has expired.
        """
        ...

    def rows(self, first: int, last: int) -> Iterator[LogRows]:
        """Yield rows between two offsets (inclusive), ascending within a table.

        They are requested after their transactions, up to the last of those; earlier rows may be released after that.
        """
        ...
