"""Waits for sockets with poll(2), since select(2) does not support descriptors of 1,024 and above."""

from __future__ import annotations

import select
from typing import Final

READABLE: Final = select.POLLIN
WRITABLE: Final = select.POLLOUT


def wait_until(event: int, descriptor: int, seconds: float | None = None) -> bool:
    """Whether the descriptor became `READABLE` or `WRITABLE` (or broke) within `seconds` (without limit if None)."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))
