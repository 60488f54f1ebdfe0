"""A MySQL server that imitates an older one: its greeting's version, and the statements that it accepts.

    client ──COM_QUERY "SHOW MASTER STATUS"──▶ here ──"SHOW BINARY LOG STATUS"──▶ server of today
           ◀── greeting "8.0.36" ─────────────     ◀── greeting "9.7.4" ──────

What else an 8.0 does differently is not shown by it. Packets are the protocol's: three bytes of length, and a number.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Self

STATEMENTS: Mapping[bytes, bytes] = {
    b"SHOW MASTER STATUS": b"SHOW BINARY LOG STATUS",
    b"SHOW BINARY LOG STATUS": b"SHOW BINARY LOG STATUS OF A LATER SERVER",
}
SINCE: Mapping[bytes, tuple[int, ...]] = {
    b"SHOW BINARY LOG STATUS": (8, 2),
    b"show_gipk_in_create_table_and_information_schema": (8, 0, 30),
    b"use_secondary_engine": (8, 0, 13),
}
"""What older servers refuse."""
_QUERY = 3


class OlderMySQL:
    """Forwards a loopback port to a server's. A context manager. `refused`: what such an older server would refuse."""

    def __init__(self, target: int, version: str) -> None:
        self._target = target
        self._version = version.encode()
        self._unknown = [word for word, since in SINCE.items() if tuple(map(int, version.split("."))) < since]
        self.refused: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for ours in (client, server):
                    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._replies, args=(server, client), daemon=True).start()
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()

    def _replies(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            packet = _packet(server)
            if packet:
                _, rest = packet[5:].split(b"\0", 1)
                client.sendall(_framed(packet[3], packet[4:5] + self._version + b"\0" + rest))
            while data := server.recv(1 << 16):
                client.sendall(data)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError), server:
            while packet := _packet(client):
                text = packet[5:]
                if packet[3] == 0 and packet[4] == _QUERY:
                    self.refused += [word for word in self._unknown if word in text]
                    packet = _framed(0, bytes([_QUERY]) + STATEMENTS.get(text, text))
                server.sendall(packet)


def _packet(connection: socket.socket) -> bytes:
    """The next whole packet with its head; empty at the end."""
    head = _exactly(connection, 4)
    body = _exactly(connection, int.from_bytes(head[:3], "little")) if len(head) == 4 else b""
    return head + body if body else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := connection.recv(size - len(found))):
        found += data
    return found


def _framed(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body
