"""The lock for changes of sealed segments: held for a short time to upload, compact or expire segments.

It is not the writer's lock, so maintenance runs while the daemon does, in a separate process. Sealing does not need it:
no other process uses a new segment before it exists.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cdcflow.errors import SinkUnavailable
from cdcflow.log.disk.layer import storing
from cdcflow.log.files.layout import Layout

LOOK_EVERY_S = 0.2


class Busy(SinkUnavailable):
    """The error when another process, or thread, works on the segments."""

    section = "busy"


@contextmanager
def maintenance(layout: Layout, wait: Callable[[float], bool] | None = None) -> Iterator[None]:
    """Hold the lock. `wait(seconds)` is called between two tries, and ends the waiting by returning True; `None`: try
    only once.

    Raises:
        Busy: another process works on the segments.
    """
    # The file is not renamed with this module: versions must exclude each other.
    with hold_lock(layout.root / "upkeep", f"working on the segments of {layout.root}", wait):
        yield


@contextmanager
def hold_lock(path: Path, attempted: str, wait: Callable[[float], bool] | None = None) -> Iterator[None]:
    """Hold a lock of this machine. `wait`: as in `maintenance`; `attempted` begins the error's text.

    Raises:
        Busy: another process, or thread, holds it.
    """
    with storing(f"locking {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        while not _try_lock(fd):
            if wait is None or wait(LOOK_EVERY_S):
                raise Busy(f"{attempted}: another process is doing so", remedy="try again when it is done")
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
