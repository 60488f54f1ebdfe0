"""A connection that limits how long a request takes to arrive: ten seconds.

uvicorn limits the time between requests, and not the time that one takes to arrive. So a client that opens connections
and sends nothing, or a byte a minute, would block the probes, and an orchestrator would restart a healthy daemon.

Nor may the number of connections block the probes: of more than `CONNECTIONS_MAX` connections, the one that has waited
longest for a request is closed. `Bounded` (answering) limits the requests that are being answered.

And a client that has connected shortly before a server ends (because a new one takes its port, say) is answered:
uvicorn would hang up on a request that is on its way.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 128
ARRIVES_WITHIN_S = 10.0
FIRST_WITHIN_S = 0.5
"""How long a server that ends waits for the first request of a connection."""


class PromptConnection(H11Protocol):
    """A connection of uvicorn that is closed when a request does not arrive in time."""

    _arriving: asyncio.TimerHandle | None = None
    _ending = False
    _since = 0.0

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    @property
    def awaits_request(self) -> bool:
        """Whether there is no request to answer: no request has arrived completely, or the last one was answered."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered or self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: Any) -> None:  # Any: as in uvicorn, narrower than asyncio's
        super().connection_made(transport)
        # An answer is written as head and body: the second would wait 40 ms until the first is acknowledged. asyncio
        # sets this only for sockets that were explicitly created for TCP, unlike those of `socket.create_server`.
        if (connection := transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._since = self.loop.time()
        self._make_room()
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._since = self.loop.time()
        super().data_received(data)
        if self._ending and self.cycle is not None:
            self.cycle.keep_alive = False  # its answer has not begun: that is another task
        self._watch()

    def shutdown(self) -> None:
        if self.cycle is not None:
            super().shutdown()
        elif not self._ending:
            self._ending = True
            self.loop.call_later(FIRST_WITHIN_S, self.shutdown)
        elif not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        others = [c for c in self.connections if isinstance(c, PromptConnection) and c is not self and c.is_open]
        waiting = [c for c in others if c.awaits_request]
        if len(others) >= CONNECTIONS_MAX and waiting:
            # Not `close`: with TLS it would wait for the client's goodbye.
            min(waiting, key=lambda c: c._since).transport.abort()

    def _watch(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._forget()  # the whole request has arrived
        elif self._arriving is None:
            self._arriving = self.loop.call_later(ARRIVES_WITHIN_S, self.transport.close)

    def _forget(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None
