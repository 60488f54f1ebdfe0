"""One writer: a lock that stops a second process, and an epoch that stops a writer that lost the lock unknowingly.

The lock keeps a second process out while the first one runs; the system drops it with the process, so neither a dead
holder's file nor a reused pid means anything (L13). It does not stop a writer that was suspended, whose lock file was
replaced, or whose lock a network file system lost. The epoch stops that one: every start writes a higher number, and a
writer that finds another number than its own has been replaced (L10, L11, L12).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated
from cdcflow.log.disk.layer import FileLayer, log_gone, storing, write_file
from cdcflow.log.files.layout import Layout
from cdcflow.model.position import Epoch


class Held(ConfigurationError):
    """Another process has the lock."""

    section = "two-daemons"


class Lease:
    """The right to write a log. `release` releases it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._epoch_path = os.fspath(layout.epoch)  # read at every sync
        self._fd: int | None = lock_file(layout.lock, _already_written)
        self.epoch = Epoch(0)

    def begin_epoch(self, layer: FileLayer, at_least: Epoch) -> None:
        """Start a new epoch, above the one on disk and above `at_least`. Durable on return."""
        known = read_epoch(self._layout.epoch)
        self.epoch = Epoch(max(known, at_least) + 1)
        with storing(f"starting epoch {self.epoch} of the log {self._layout.root}"):
            write_file(layer, self._layout.epoch, f"{self.epoch}\n".encode())

    def check(self) -> None:
        """InvariantViolated if another process has taken the log over since, LogGone if the log is missing."""
        found = read_epoch(self._epoch_path)
        if found != self.epoch and not os.path.lexists(self._epoch_path):
            raise log_gone(f"writing the log {self._layout.root}")
        if found != self.epoch:
            raise InvariantViolated(
                f"writing the log {self._layout.root}: this process has epoch {self.epoch}, and epoch {found} has "
                f"begun: {holder(self._layout.lock)} took the log over; nothing written since then counts",
                runbook="two-daemons",
            )

    def release(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def read_epoch(path: str | Path) -> Epoch:
    """The latest epoch that has begun; 0 if none has."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # read at every sync: no buffers for a dozen bytes
    except FileNotFoundError:
        return Epoch(0)
    try:
        text = os.read(fd, 64)
    finally:
        os.close(fd)
    try:
        return Epoch(int(text))
    except ValueError:
        raise InvariantViolated(f"reading {path}: not an epoch number", runbook="log-damaged") from None


def lock_file(path: Path, refusal: Callable[[Path, str], CdcflowError]) -> int:
    """A descriptor that holds the lock of a file until it is closed, or its process ends.

    `refusal` makes the error, from the file and the holder's name, if another process holds it.
    """
    while True:
        with storing(f"locking {path}"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise refusal(path, holder(path)) from None
        except BaseException:
            os.close(fd)
            raise
        if _is_at(fd, path):
            # For operators only: the lock itself is the system's. A failure to write this is no reason to stop.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            return fd
        os.close(fd)  # the file was replaced between open and lock


def _already_written(path: Path, who: str) -> Held:
    return Held(
        f"opening the log {path.parent} for writing: {who} already writes it",
        remedy="a log has one writer: stop the other one first",
    )


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def holder(path: Path) -> str:
    """The last process that took the lock of a file, in words."""
    try:
        return path.read_text().strip() or "another process"
    except OSError:
        return "another process"
