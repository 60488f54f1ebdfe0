"""A bell that other threads ring to end the loop's wait on its sockets."""

from __future__ import annotations

import contextlib
import selectors
import socket


class Bell:
    """Any thread may `ring`; the loop's `wait` returns at once when it rang, or when the stream has something."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it rings already; closed: nobody waits any more
            self._far.send(b"!")

    def wait(self, fileno: int, seconds: float) -> None:
        """Return when `fileno` is readable, the bell rang, or `seconds` have passed."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._near, selectors.EVENT_READ)
            ready.register(fileno, selectors.EVENT_READ)
            for key, _ in ready.select(seconds):
                if key.fileobj is self._near:
                    with contextlib.suppress(BlockingIOError):
                        self._near.recv(4096)

    def close(self) -> None:
        self._near.close()
        self._far.close()
