"""Threads that run with a lower priority than the others of their process, where the system has that (Linux)."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

_OWN = threading.local()


def lower_thread_priority(niceness: int) -> None:
    """Set the niceness of the calling thread, and of the threads that it starts later. Threads with niceness 15 get a
    tenth of a busy processor next to one with 5. It cannot be undone."""
    _OWN.is_lower = True
    if sys.platform == "linux":  # elsewhere a thread has no separate priority
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def has_lower_priority() -> bool:
    """Return whether the calling thread has lowered its priority. Such a thread should not leave work to a shared
    pool, whose threads would do it with a higher priority."""
    return getattr(_OWN, "is_lower", False)
