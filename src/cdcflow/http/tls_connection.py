"""A connection that is secured by TLS before HTTP begins.

asyncio could secure connections by itself, but then nothing would limit those whose handshake never ends: they would
occupy the process's file descriptors, which the log needs. Here at most `HANDSHAKES_MAX` are pending, each for ten
seconds; the oldest makes room for a new one, as among the connections that wait for a request (`connection`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cdcflow.http.certificate import ServerCertificate
from cdcflow.http.connection import ARRIVES_WITHIN_S, PromptConnection

HANDSHAKES_MAX = 128
GOODBYE_WITHIN_S = 1.0
"""How long a closed connection waits until the client confirms it."""


class SecuredConnections:
    """Creates the connections of one server: an asyncio protocol for each, as uvicorn calls it."""

    def __init__(self, certificate: ServerCertificate) -> None:
        self._certificate = certificate
        self._pending: dict[asyncio.Transport, None] = {}

    def __call__(self, **arguments: Any) -> asyncio.Protocol:  # Any: uvicorn's arguments for a connection
        return _TlsConnection(self, lambda: PromptConnection(**arguments))

    async def secure(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> asyncio.Transport | None:
        """Return the transport after the handshake; `None` if it failed, and the connection is closed."""
        while len(self._pending) >= HANDSHAKES_MAX:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.abort()
        self._pending[transport] = None
        try:
            return await asyncio.get_running_loop().start_tls(
                transport,
                protocol,
                self._certificate.context(),
                server_side=True,
                ssl_handshake_timeout=ARRIVES_WITHIN_S,
                ssl_shutdown_timeout=GOODBYE_WITHIN_S,
            )
        except OSError:  # an SSLError is one; the client hung up, or does not speak TLS
            transport.abort()
            return None
        finally:
            self._pending.pop(transport, None)


class _TlsConnection(asyncio.Protocol):
    """Waits for the handshake, and keeps what arrives right after it until the inner connection can take it."""

    def __init__(self, connections: SecuredConnections, make_inner: Callable[[], PromptConnection]) -> None:
        self._connections = connections
        self._make_inner = make_inner
        self._early: list[bytes] = []
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  of a socket
        transport.pause_reading()  # the first bytes are TLS's
        self._task = asyncio.get_running_loop().create_task(self._secure(transport))

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    async def _secure(self, transport: asyncio.Transport) -> None:
        secured = await self._connections.secure(transport, self)
        if secured is None or self._is_lost:
            return
        inner = self._make_inner()
        secured.set_protocol(inner)
        inner.connection_made(secured)
        for data in self._early:
            inner.data_received(data)
