"""A source whose rows can be compared with a copy of them while both go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from cdcflow.interleave.messages import Visibility
from cdcflow.model.position import Checkpoint, Position
from cdcflow.model.table import Table
from cdcflow.ports.chunks import ChunkSource


class Comparison(Protocol):
    """What a comparison asks of a source. `close` it."""

    @property
    def chunks(self) -> ChunkSource:
        """Existing rows, as the capture reads them; marks of the log's own slot."""

    def tables(self) -> Sequence[Table]:
        """The selected tables as they are now, sorted by name."""

    def end(self) -> Position:
        """The end of the server's log now: nothing that is visible by now is logged behind it."""

    def covers(self, position: Position, end: Position) -> bool:
        """Whether a log that is at `position` has every transaction up to `end`."""

    def first_unseen(self, visibility: Visibility, transactions: pa.Table) -> int:
        """The number of the first of these transactions that a snapshot may not see; as many as there are: it sees all
        of them. `transactions`: the log's headers (`TRANSACTIONS_SCHEMA`) in its order, of kind source."""

    def close(self) -> None: ...


@runtime_checkable
class Comparable(Protocol):
    """A source that can be compared."""

    def comparison(self, checkpoint: Checkpoint) -> Comparison:
        """Begin to compare with the log that has this checkpoint. Nothing is prepared or changed at the source.

        Raises:
            ConfigurationError: the settings do not fit the server or its tables.
        """
        ...
