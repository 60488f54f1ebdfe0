"""A TCP proxy that a test controls: traffic can be cut off, held, slowed down, or lost in one direction."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self

_BLOCK = 1 << 15


class TcpProxy:
    """Forwards a loopback port to a different one. A context manager.

    `target` may be set later. `cut` ends all connections and refuses new ones; `hold` keeps them and forwards nothing,
    either in both directions or only what the server sends (`replies_only`), which is then lost, as on a half-open
    link; `mend` restores normal forwarding. `bytes_per_s` (`None`: no limit) slows what the client sends.
    """

    def __init__(self, target: int | None = None) -> None:
        self.target = target
        self.bytes_per_s: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._replies = threading.Event()
        self._replies.set()
        self._refusing = False
        self._closed = False
        self._lock = threading.Lock()
        self._pairs: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self.mend()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        self._end_all()

    def cut(self) -> None:
        self._refusing = True
        self._end_all()

    def hold(self, *, replies_only: bool = False) -> None:
        (self._replies if replies_only else self._open).clear()

    def mend(self) -> None:
        # The held data belongs to connections that are no longer trusted.
        if not (self._open.is_set() and self._replies.is_set()):
            self._end_all()
        self._refusing = False
        self._open.set()
        self._replies.set()

    def _end_all(self) -> None:
        with self._lock:
            for end in self._pairs:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing or self._closed or self.target is None:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=60)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._pairs |= {client, server}
            threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(_BLOCK):
                self._open.wait()
                if replies and not self._replies.is_set():
                    continue
                if not replies and self.bytes_per_s:
                    time.sleep(len(block) / self.bytes_per_s)
                target.sendall(block)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._pairs.discard(source)
        source.close()


__all__ = ["TcpProxy"]
