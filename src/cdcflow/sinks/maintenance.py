"""The right to change what is already sealed: held for a moment by whoever puts segments away, compacts or expires.

It is another lock than the writer's, so that maintenance runs beside the daemon, in a process of its own. Sealing does
not need it: a new segment is nobody else's business until it is there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cdcflow.changelog.layout import Layout
from cdcflow.errors import SinkUnavailable
from cdcflow.sinks.layer import storing

LOOK_EVERY_S = 0.2


class Busy(SinkUnavailable):
    """Another process, or thread, works on the segments."""

    section = "busy"


@contextmanager
def maintenance(layout: Layout, wait: Callable[[float], bool] | None = None) -> Iterator[None]:
    """Hold the lock. `wait(seconds)` is called between two looks and gives up when it says True; None: one look.

    Raises:
        Busy: another process works on the segments.
    """
    # The file is not renamed with this module: versions must exclude each other.
    with held(layout.root / "upkeep", f"working on the segments of {layout.root}", wait):
        yield


@contextmanager
def held(path: Path, attempted: str, wait: Callable[[float], bool] | None = None) -> Iterator[None]:
    """Hold a lock of this machine. `wait`: as for `maintenance`; `attempted` begins the error.

    Raises:
        Busy: another process, or thread, holds it.
    """
    with storing(f"locking {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        while not _locked(fd):
            if wait is None or wait(LOOK_EVERY_S):
                raise Busy(f"{attempted}: another process is doing so", remedy="try again when it is done")
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
