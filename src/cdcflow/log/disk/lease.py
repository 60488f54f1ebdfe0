"""One writer: a lock that stops a second process, and an epoch that stops a writer that lost the lock unknowingly.

The lock keeps a second process out while the first one runs; the system drops it with the process, so neither a dead
holder's file nor a reused pid means anything (hard case L13). It does not stop a writer that was suspended, whose
lock file was replaced, or whose lock a network file system lost. The epoch stops that one: every start writes a
higher number, and a writer that finds another number than its own has been replaced (hard cases L10 to L12).

A standby that becomes active replaces the lock file: a suspended writer keeps its lock as long as it exists. Two
processes may then begin an epoch at the same time, and both may choose the same number. So the file also has a random
word: the process that wrote it last is the writer, and a number that journals have already is not used again
(`recovery`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, LogGone, SinkUnavailable, WriterReplaced
from cdcflow.log.disk.layer import FileLayer, log_gone, storing, write_file
from cdcflow.log.files.layout import Layout
from cdcflow.model.position import Epoch


class Held(ConfigurationError):
    """The error when another process has the lock."""

    section = "two-daemons"


class Lease:
    """The right to write a log, until `release`. `replaces`: take it even from a process that still has it. `word`: a
    word that no other process has, for names of temporary files."""

    def __init__(self, layout: Layout, *, replaces: bool = False) -> None:
        self._layout = layout
        self._epoch_path = os.fspath(layout.epoch)  # read at every sync
        self._fd: int | None = lock_file(layout.lock, _already_written, replaces=replaces)
        self.word = secrets.token_hex(8)
        self._written = b""
        self.replaces = replaces
        self.epoch = Epoch(0)

    def begin_epoch(self, layer: FileLayer, at_least: Epoch) -> None:
        """Start a new epoch, above the one on disk and above `at_least`. Durable on return."""
        known = read_epoch(self._layout.epoch)
        self.epoch = Epoch(max(known, at_least) + 1)
        self._written = f"{self.epoch} {self.word}\n".encode()
        with storing(f"starting epoch {self.epoch} of the log {self._layout.root}"):
            write_file(layer, self._layout.epoch, self._written, self.word)

    def check(self) -> None:
        """Check that this process may still write the log.

        Raises:
            WriterReplaced: another process has taken the log over since.
            LogGone: the log is missing.
        """
        found = _read(self._epoch_path)
        if found == self._written:
            return
        if not found and not os.path.lexists(self._epoch_path):
            raise log_gone(f"writing the log {self._layout.root}")
        raise WriterReplaced(
            f"writing the log {self._layout.root}: this process has epoch {self.epoch}, and epoch "
            f"{_number(found, self._epoch_path)} has begun: {holder(self._layout.lock)} took the log over; nothing "
            "written since then counts",
        )

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """If the block fails because another process has replaced this writer, raise the error that states this.

        Raises:
            WriterReplaced: the block failed, and another process has taken the log over.
            SinkUnavailable: a replaced process has removed a file of this one's; the next attempt creates it again.
        """
        try:
            yield
        except WriterReplaced:
            raise
        except (InvariantViolated, LogGone) as error:
            if self._written:
                self.check()  # if the log is gone, this raises the same error
            if self.replaces and self._written and isinstance(error, LogGone):
                raise SinkUnavailable(str(error).partition("\n")[0]) from error
            raise

    def release(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def read_epoch(path: str | Path) -> Epoch:
    """Return the latest epoch that has begun; 0 if none has."""
    found = _read(path)
    return _number(found, path) if found else Epoch(0)


def _read(path: str | Path) -> bytes:
    """Return the content of the file with the epoch; empty if it does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # read at every sync: no buffers for some bytes
    except FileNotFoundError:
        return b""
    try:
        return os.read(fd, 64)
    finally:
        os.close(fd)


def _number(text: bytes, path: str | Path) -> Epoch:
    try:
        return Epoch(int(text.partition(b" ")[0]))
    except ValueError:
        raise InvariantViolated(f"reading {path}: not an epoch number", runbook="log-damaged") from None


def lock_file(path: Path, refusal: Callable[[Path, str], CdcflowError], *, replaces: bool = False) -> int:
    """Lock a file and return a descriptor, which holds the lock until it is closed or its process ends.

    `refusal` makes the error, from the file and the holder's name, if another process holds the lock. `replaces`:
    replace the file instead, so that the other process holds the lock of a file that no process opens again.
    """
    while True:
        with storing(f"locking {path}"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_current = _is_at(fd, path)
            os.close(fd)
            if not replaces:
                raise refusal(path, holder(path)) from None
            if is_current:
                path.unlink(missing_ok=True)
            continue
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
    """Return the last process that took the lock of a file, in words."""
    try:
        return path.read_text().strip() or "another process"
    except OSError:
        return "another process"
