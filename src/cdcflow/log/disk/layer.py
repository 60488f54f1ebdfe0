"""The few file operations that write a log, in one place, so that tests can record, fail or delay each.

They promise little after a crash: nothing is on disk before the `fsync` of its file, and no name before the `fsync_dir`
of its directory. The sink's durability rests on its order of calls alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from cdcflow.errors import CdcflowError, ConfigurationError, LogGone, SinkUnavailable, SyncFailed

_PARTS_MAX = 1024  # IOV_MAX of Linux
_COPIED_BYTES = 1 << 20
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_FOR_AN_OPERATOR = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG}

Part = bytes | memoryview


class FileLayer(Protocol):
    """The operations by which the file sink changes files. Each call may raise OSError."""

    def create(self, path: Path) -> int:
        """Create a new, empty file and return its descriptor for appending. Raises FileExistsError if the file
        exists."""
        ...

    def open(self, path: Path) -> int:
        """Open an existing file for appending and return its descriptor."""
        ...

    def write(self, fd: int, parts: Sequence[Part]) -> int:
        """Write as much of `parts` as one call takes; return how many bytes."""
        ...

    def truncate(self, fd: int, size: int) -> None: ...
    def fsync(self, fd: int) -> None: ...
    def close(self, fd: int) -> None: ...
    def fsync_dir(self, path: Path) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def link(self, source: Path, target: Path) -> None:
        """Give a file another name. Raises FileExistsError if that name is taken."""
        ...

    def unlink(self, path: Path) -> None: ...
    def mkdir(self, path: Path) -> None: ...
    def rmdir(self, path: Path) -> None: ...


class OsLayer:
    """Performs the operations with the operating system's calls."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def write(self, fd: int, parts: Sequence[Part]) -> int:
        return os.writev(fd, parts[:_PARTS_MAX])

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        target.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, path: Path) -> None:
        path.mkdir(mode=0o750)

    def rmdir(self, path: Path) -> None:
        path.rmdir()


OS_LAYER = OsLayer()


def write_all(layer: FileLayer, fd: int, parts: Sequence[Part]) -> int:
    """Write everything, in as many calls as the system needs (hard case L09). Return the bytes written."""
    total, left = 0, list(parts)
    while left:
        done = layer.write(fd, left)
        if done <= 0:
            raise OSError(errno.EIO, "a write wrote nothing")
        total += done
        whole = 0
        while whole < len(left) and done >= len(left[whole]):
            done -= len(left[whole])
            whole += 1
        left = left[whole:]
        if done:
            left[0] = memoryview(left[0])[done:]
    return total


class DurableFile:
    """A new file that is written from front to back, and is durable when it is closed."""

    def __init__(self, layer: FileLayer, path: Path) -> None:
        self._layer = layer
        self._path = path
        self._fd = layer.create(path)

    def write(self, content: bytes) -> int:
        return write_all(self._layer, self._fd, [content])

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        try:
            with syncing(self._path):
                self._layer.fsync(fd)
        finally:
            self._layer.close(fd)


def write_file(layer: FileLayer, path: Path, content: bytes, mark: str = "") -> None:
    """Replace a file in one step: after a crash either the old file exists or the whole new one. Durable on return.

    `mark`: a word that no other process uses, if several may replace the file at the same time.
    """
    temporary = path.with_name(f"{path.name}.{mark}.tmp" if mark else f"{path.name}.tmp")
    if temporary.exists():
        layer.unlink(temporary)
    fd = layer.create(temporary)
    try:
        write_all(layer, fd, [content])
        with syncing(temporary):
            layer.fsync(fd)
    finally:
        layer.close(fd)
    layer.rename(temporary, path)
    with syncing(path.parent):
        layer.fsync_dir(path.parent)


def write_new_file(layer: FileLayer, path: Path, content: bytes, mark: str) -> bool:
    """Write a file in one step, unless it exists, and return whether it was written. Durable on return. `mark`: as in
    `write_file`."""
    temporary = path.with_name(f"{path.name}.{mark}.tmp")
    file = DurableFile(layer, temporary)
    file.write(content)
    file.close()
    try:
        layer.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        layer.rename(temporary, path)  # a file system without hard links
        return True
    finally:
        if temporary.exists():
            layer.unlink(temporary)
    with syncing(path.parent):
        layer.fsync_dir(path.parent)
    return True


def link_or_copy(layer: FileLayer, source: Path, target: Path) -> None:
    """Give a durable file another name; on a file system without hard links, make a durable copy."""
    try:
        layer.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy = DurableFile(layer, target)
        with source.open("rb") as file:
            while block := file.read(_COPIED_BYTES):
                copy.write(block)
        copy.close()


def remove_tree(layer: FileLayer, path: Path) -> None:
    """Remove a directory of files."""
    for entry in path.iterdir():
        layer.unlink(entry)
    layer.rmdir(path)


@contextmanager
def storing(attempt: str) -> Iterator[None]:
    """Convert the errors of failed writes (hard case L25): a full or failing disk may recover, but missing
    permissions and read-only disks need an operator."""
    try:
        yield
    except OSError as error:
        raise unavailable(attempt, error) from error


def unavailable(attempt: str, error: OSError) -> CdcflowError:
    text = f"{attempt}: {error.strerror or error} ({errno.errorcode.get(error.errno or 0, 'no code')})"
    if error.errno == errno.ENOENT:
        return log_gone(text)
    if error.errno in _FOR_AN_OPERATOR:
        return ConfigurationError(
            text, remedy="make the log's directory writable, then start again", runbook="log-not-writable"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SinkUnavailable(text, remedy="make room; nothing that was acknowledged is lost", runbook="disk-full")
    return SinkUnavailable(text)


def log_gone(attempt: str) -> LogGone:
    """Return the error for a writer that no longer finds its files."""
    return LogGone(
        f"{attempt}: the log's folder, or a part of it, is gone: it was deleted or moved, or its file system was "
        "unmounted, while cdcflow wrote it",
        remedy="restore the folder, then start again; if it is lost permanently, start without it: cdcflow begins a "
        "new log, reads every table again, and names what the old log left at the source",
    )


@contextmanager
def syncing(path: Path) -> Iterator[None]:
    """Convert the error of a failed sync into a final one: the system may have dropped the pages, and report success
    for the next sync (hard case L07)."""
    try:
        yield
    except FileNotFoundError as error:
        raise log_gone(f"syncing {path}") from error
    except OSError as error:
        raise SyncFailed(
            f"syncing {path}: {error.strerror or error}; what was written may be lost although it can still be read",
            remedy="check the disk, then start again: only what was durable counts, and the rest is captured again",
        ) from error
