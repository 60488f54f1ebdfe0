"""A stream that receives in bulk. In each turn it receives what has arrived and decodes it: in the loop's thread, or in
another thread during a backlog. If a turn fails, the events decoded before the error are returned first, because they
do not depend on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError
from cdcflow.sources.engine.decode_ahead import DecodeAhead


class BulkStream(ABC):
    """Implements a part of `cdcflow.ports.Stream`. Either the loop's thread or the one that decodes ahead calls
    `_receive`, never both at once."""

    def __init__(self) -> None:
        self._failure: CdcflowError | None = None
        """The error that the next turn raises, once the events before it are returned; None if there is no error."""
        self._more = False
        """Whether more can be received without waiting."""
        self._is_backlog = False
        """Whether a backlog is arriving, which another thread should decode."""
        self._is_closed = False
        self._ahead: DecodeAhead[Sequence[StreamEvent]] = DecodeAhead(
            self._turn, lambda: self._is_backlog and self._failure is None
        )

    @abstractmethod
    def _socket_number(self) -> int:
        """Return the descriptor of the connection's socket."""

    @abstractmethod
    def _receive(self) -> list[StreamEvent]:
        """Receive and decode the data that has arrived, and answer the server. Errors are raised, or stored as the
        failure if events precede them."""

    @abstractmethod
    def _end(self) -> None:
        """Close the connection and discard partly decoded data."""

    # ── cdcflow.ports.Stream ────────────────────────────────────────────────────────────────────────────────

    def fileno(self) -> int:
        return self._ahead.fileno() if self._ahead.active else self._socket_number()

    @property
    def ready(self) -> bool:
        return self._ahead.ready if self._ahead.active else self._more or self._failure is not None

    def poll(self) -> Sequence[StreamEvent]:
        return self._ahead.poll() or ()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._ahead.close()
            self._end()

    def _turn(self) -> Sequence[StreamEvent]:
        if self._failure is not None:
            raise self._failure
        events = self._receive()
        if self._failure is not None and not events:
            raise self._failure
        return events
