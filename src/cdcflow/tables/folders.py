"""A folder of a warehouse, on this machine's disk or in an object store, with the operations that tables and their
commits need.

    WarehouseFolder ──▶ DiskFolder      a folder of this machine: fsync, links, renames
                    └─▶ BucketFolder    a prefix of a bucket (`cdcflow.tables.bucket_folders`)

A name is a path relative to the folder, with `/` between its parts. A file is created whole or not at all, and never
changed afterwards; only `replace` replaces one. A table consists of the files that its commits name, so a file of
`write` may be left over by a process that died before its commit.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from cdcflow.tables.durable import make_folder, sync_folder

Span = tuple[int, int]
"""The first byte of a part of a file, and the byte after its last one."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file in a folder: its name, its bytes, and when it was written, in seconds since 1970."""

    name: str
    bytes: int
    modified: float


def _fetch_nothing(spans: Sequence[Span]) -> None:
    """Do nothing: a file on a disk need not be fetched before it is read."""


@dataclass(frozen=True, slots=True)
class RandomAccess:
    """A file that is open for reading parts of it.

    `source`: a path or an open file, as pyarrow takes them. `fetch` requests the parts that are read next, several at a
    time; it may drop the parts of an earlier call.
    """

    source: Any
    fetch: Callable[[Sequence[Span]], None] = _fetch_nothing


class WarehouseFolder(ABC):
    """A folder of a warehouse. May be used from several threads.

    For a missing file each method raises FileNotFoundError, unless its description has a different result for that. In
    an object store each may raise SinkUnavailable (it does not answer; try again) or ConfigurationError (it refuses).
    """

    location: str
    """The folder's path or URL."""

    @property
    @abstractmethod
    def path(self) -> Path | None:
        """The folder's path on this machine's disk; `None` in an object store."""

    @abstractmethod
    def folder(self, *names: str) -> WarehouseFolder:
        """Return a folder inside this one."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the folder exists; in an object store, whether it has a file."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content of a small file."""

    @abstractmethod
    def read_each(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of small files, `None` for each missing one; several are read at a time."""

    @abstractmethod
    def read_part(self, name: str, start: int, size: int) -> bytes:
        """Return `size` bytes of a file, fewer if it ends before."""

    @abstractmethod
    def open(self, name: str, size: int | None = None) -> RandomAccess:
        """Open a file that is never replaced. `size`: its bytes, if they are known."""

    @abstractmethod
    def names(self, after: str = "") -> list[str]:
        """Return the names of the folder's own files that sort after a name, without those in folders inside it; empty
        if the folder does not exist."""

    @abstractmethod
    def entries(self) -> Iterator[FolderEntry]:
        """Yield the files in the folder and in the folders inside it."""

    @abstractmethod
    def modified_at(self, name: str) -> float:
        """Return when a file was written, in seconds since 1970, by the clock of its disk or store."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> None:
        """Create a file, durably, only if none of this name exists.

        The content must be unique to this call: if the answer is lost, it shows which process created the file.

        Raises:
            FileExistsError: another process has created it.
        """

    @abstractmethod
    def replace(self, name: str, content: bytes) -> None:
        """Write a small file atomically: a reader sees either the previous content or the new one, whole."""

    @abstractmethod
    def write(self, name: str, fill: Callable[[IO[bytes]], object]) -> int:
        """Write a file under a name that no other file has, and return its bytes. `fill` writes the content. The
        content is durable on return, the name only after `sync`."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Delete files. A file that does not exist counts as deleted."""

    @abstractmethod
    def sync(self) -> None:
        """Make the names of the folder's files durable."""

    @abstractmethod
    def is_safe(self) -> bool:
        """Return whether the folder prevents two processes from both creating a file of one name. In an object store
        the check writes a file and deletes it."""

    def close(self) -> None:  # noqa: B027  most have started nothing
        """End what the folder has started, such as threads. The folders inside it share them."""

    def place_of(self, name: str) -> str:
        """Return the path or URL of a file in the folder."""
        return f"{self.location}/{name}"

    @property
    def table_name(self) -> str:
        """The last two parts of the folder's path, which name a table in messages."""
        return "/".join(self.location.split("/")[-2:])

    @staticmethod
    def of(folder: WarehouseFolder | Path) -> WarehouseFolder:
        """Return the folder at a path of this machine, or the folder itself."""
        return DiskFolder(folder) if isinstance(folder, Path) else folder


class DiskFolder(WarehouseFolder):
    """A folder on this machine's disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.location = str(path)

    @property
    def path(self) -> Path:
        return self._path

    def folder(self, *names: str) -> DiskFolder:
        return DiskFolder(self._path.joinpath(*names))

    def exists(self) -> bool:
        return self._path.exists()

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def read_each(self, names: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for name in names:
            try:
                found.append(self.read(name))
            except FileNotFoundError:
                found.append(None)
        return found

    def read_part(self, name: str, start: int, size: int) -> bytes:
        with (self._path / name).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def open(self, name: str, size: int | None = None) -> RandomAccess:
        return RandomAccess(self._path / name)

    def names(self, after: str = "") -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._path) if name > after)
        except FileNotFoundError:
            return []

    def entries(self) -> Iterator[FolderEntry]:
        for place, _, names in os.walk(self._path):
            for name in names:
                path = Path(place, name)
                with suppress(FileNotFoundError):  # deleted in the meantime
                    held = path.stat()
                    yield FolderEntry(path.relative_to(self._path).as_posix(), held.st_size, held.st_mtime)

    def modified_at(self, name: str) -> float:
        return (self._path / name).stat().st_mtime

    def create(self, name: str, content: bytes) -> None:
        make_folder(self._path)
        made = self._path / f".{uuid4()}.tmp"
        try:
            with made.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(made, self._path / name)
        finally:
            made.unlink(missing_ok=True)
        sync_folder(self._path)

    def replace(self, name: str, content: bytes) -> None:
        target = self._path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_name(f".{target.name}.{uuid4()}")
        try:
            made.write_bytes(content)
            os.replace(made, target)
        finally:
            made.unlink(missing_ok=True)

    def write(self, name: str, fill: Callable[[IO[bytes]], object]) -> int:
        with (self._path / name).open("xb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def sync(self) -> None:
        sync_folder(self._path)

    def is_safe(self) -> bool:
        return True
