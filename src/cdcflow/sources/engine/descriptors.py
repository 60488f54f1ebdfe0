"""Waits for sockets by poll(2): select(2) has no place for descriptors from 1,024 on, and a process may have them."""

from __future__ import annotations

import select
from typing import Final

READABLE: Final = select.POLLIN
WRITABLE: Final = select.POLLOUT


def wait_until(event: int, descriptor: int, seconds: float | None = None) -> bool:
    """Whether the descriptor became `READABLE` or `WRITABLE` (or broke) within the time; None waits for ever."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))
