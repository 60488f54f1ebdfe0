"""The source's log as it comes, and where a transaction goes that memory should not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cdcflow.interleave.messages import Advanced, Committed, MarkSeen, RowsFilled, RowsIncomplete
from cdcflow.model.change import ChangeBatch, Uint64s
from cdcflow.model.position import Position

StreamEvent = Committed | MarkSeen | Advanced | RowsFilled | RowsIncomplete


class Spool(Protocol):
    """Where a transaction that memory should not hold goes while it arrives. One writer.

    Pieces come in the order of the source's log. The index of a piece's rows counts within the piece from 0.
    """

    name: str

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        """Append one piece. `subxids` (as long as the piece has rows, in index order) is each row's
        sub-transaction, None when they cannot be rolled back any more."""
        ...

    def finish(self) -> None:
        """Nothing more comes; everything written is in the file (durable only with the log's next `sync`)."""
        ...

    def discard(self) -> None:
        """The transaction was rolled back: forget it."""
        ...


OpenSpool = Callable[[], Spool]


class Stream(Protocol):
    """The source's log as it comes, decoded. Used by one thread."""

    def fileno(self) -> int:
        """The socket to wait on."""
        ...

    def poll(self) -> Sequence[StreamEvent]:
        """What has arrived, in order; never waits. Answers the server's keepalives with the acknowledged position.

        An empty result means that nothing whole has arrived. Bounded: a long backlog comes in several calls, and
        then `ready` is true.

        Raises:
            SourceUnavailable: the connection is gone; start again from the log's checkpoint.
            HistoryLost, ConfigurationError: see `cdcflow.errors`.
        """
        ...

    @property
    def ready(self) -> bool:
        """More can be polled without waiting for the socket."""
        ...

    def acknowledge(self, position: Position) -> None:
        """Everything up to here is durable in the log; the server may forget it. Never goes backwards."""
        ...

    def close(self) -> None: ...
