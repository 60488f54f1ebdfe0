"""The source's log as it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cdcflow.capture.interleave.messages import (
    Advanced,
    ChangesRefused,
    Committed,
    MarkSeen,
    RowsFilled,
    RowsIncomplete,
)
from cdcflow.model.position import Position

StreamEvent = Committed | MarkSeen | Advanced | RowsFilled | RowsIncomplete | ChangesRefused


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
        """Tell the server that everything up to this position is durable in the log, so that it may discard it.

        The acknowledged position never moves backwards.
        """
        ...

    def close(self) -> None: ...
