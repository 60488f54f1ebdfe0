"""Waits for descriptors with poll(2), since select(2) supports none of 1,024 and above, and lets other threads end such
waits."""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Final

READABLE: Final = select.POLLIN
WRITABLE: Final = select.POLLOUT


def wait_until(event: int, descriptor: int, seconds: float | None = None) -> bool:
    """Wait until the descriptor is `READABLE` or `WRITABLE` (`event`) or breaks. Return false if it was not within
    `seconds` (None: wait without limit)."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))


class WakeDescriptor:
    """A descriptor that other threads make readable with `wake`, until `drain` is called."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    def fileno(self) -> int:
        return self._near.fileno()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: enough wake-ups are pending
            self._far.send(b"!")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._near.recv(1 << 16)

    def close(self) -> None:
        self._near.close()
        self._far.close()
