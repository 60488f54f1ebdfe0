"""Lets other threads end the loop's wait on its sockets."""

from __future__ import annotations

import contextlib
import select
import socket


class Waker:
    """Ends a wait. Any thread may call `wake`; the loop's `wait` then returns at once, as it does when the stream has
    data."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._ready = select.poll()
        self._ready.register(self._near, select.POLLIN)
        self._stream = -1

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it wakes already; closed: no wait is left
            self._far.send(b"!")

    def wait(self, fileno: int | None, seconds: float) -> None:
        """Return when `fileno` is readable, `wake` was called, or `seconds` have passed.

        `fileno` None: wait for no stream.
        """
        self._look_at(-1 if fileno is None else fileno)
        for descriptor, _ in self._ready.poll(seconds * 1000):
            if descriptor == self._near.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._near.recv(4096)

    def _look_at(self, fileno: int) -> None:
        if fileno == self._stream:
            return
        if self._stream >= 0:
            self._ready.unregister(self._stream)
        if fileno >= 0:
            self._ready.register(fileno, select.POLLIN)
        self._stream = fileno

    def close(self) -> None:
        self._near.close()
        self._far.close()
