"""The change log as the publisher reads it: what is durable, in whole transactions. Any kind of log can be one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from cdcflow.changelog.reader import LogRows
from cdcflow.model.position import SourceIdentity


class Tail(Protocol):
    """A change log that may grow while it is read."""

    log_id: str
    identity: SourceIdentity

    def next_offset(self) -> int:
        """Behind the newest row that is durable: what lies before is the same for ever."""
        ...

    def ready(self, first: int) -> int:
        """Behind the newest row that can be published now, from `first` on; `first` where there is none yet. Takes a
        moment at most: what is far on its way is looked for again with the next call."""
        ...

    def transactions(self, first: int, last: int) -> Iterator[pa.Table]:
        """Headers of the transactions with a row from one offset to another, in order; at least one, perhaps not all.

        Raises:
            HistoryLost: `first` has expired.
        """
        ...

    def rows(self, first: int, last: int) -> Iterator[LogRows]:
        """Rows from one offset to another, ascending within a table. Asked for after their transactions, up to the last
        of those; what is before them may be let go of then."""
        ...
