"""The source's log as it arrives, and the spool for a transaction that should not be held in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cdcflow.interleave.messages import Advanced, Committed, MarkSeen, RowsFilled, RowsIncomplete
from cdcflow.model.change import ChangeBatch, Uint64s
from cdcflow.model.position import Position

StreamEvent = Committed | MarkSeen | Advanced | RowsFilled | RowsIncomplete


class Spool(Protocol):
    """Receives, while it arrives, a transaction that should not be held in memory. One writer.

    Pieces arrive in the order of the source's log. The index of a piece's rows starts at 0 in each piece.
    """

    name: str

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        """Append one piece. `subxids` (one entry per row of the piece, in index order) is each row's sub-transaction,
        or None if they can no longer be rolled back."""
        ...

    def finish(self) -> None:
        """No more pieces follow; everything written is in the file (durable only with the log's next `sync`)."""
        ...

    def discard(self) -> None:
        """The transaction was rolled back: discard it."""
        ...


OpenSpool = Callable[[], Spool]


class Stream(Protocol):
    """The source's log as it arrives, decoded. Used by one thread."""

    def fileno(self) -> int:
        """The socket to wait on."""
        ...

    def poll(self) -> Sequence[StreamEvent]:
        """The events that have arrived, in order; never waits. Answers the server's keepalives with the acknowledged
        position.

        An empty result means that no whole event has arrived. Bounded: a long backlog takes several calls, and until
        then `ready` is true.

        Raises:
            SourceUnavailable: the connection is lost; start again from the log's checkpoint.
            HistoryLost, ConfigurationError: see `cdcflow.errors`.
        """
        ...

    @property
    def ready(self) -> bool:
        """Whether more can be polled without waiting for the socket."""
        ...

    def acknowledge(self, position: Position) -> None:
        """Everything up to this position is durable in the log; the server may discard it. Never moves backwards."""
        ...

    def close(self) -> None: ...
