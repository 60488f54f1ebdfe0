"""TLS for a PostgreSQL server that was built without it: a front that answers requests for encryption by itself."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import Self

SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")


class TlsFront:
    """Forwards a loopback port to a PostgreSQL server, with TLS if the client requests it. A context manager.

    `fails`: the handshake of TLS fails, and clients that may do without it open a second connection.
    """

    def __init__(self, target: int, certificate: str, key: str, *, fails: bool = False) -> None:
        self._target = target
        self._fails = fails
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        self._thread = threading.Thread(target=self._accept, name="tls-front", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            first = client.recv(8, socket.MSG_PEEK | socket.MSG_WAITALL)
            if first != SSL_REQUEST:
                self._forward(client)
                return
            client.recv(8)
            client.sendall(b"S")
            if not self._fails:
                with self._context.wrap_socket(client, server_side=True) as secured:
                    self._forward(secured)

    def _forward(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(1 << 16):
            target.sendall(block)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


__all__ = ["TlsFront"]
