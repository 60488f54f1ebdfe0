"""The file operations of a log whose journals are on several machines.

    FileLog ─▶ ReplicatedLayer ─▶ peers:  every change of log.json, journal/ and spool/, in order
                       └────────▶ disk:   at once; bytes of a journal only after a majority has them on disk

`fsync` waits for a majority of the peers. So that the log keeps its promises elsewhere, two things differ from a plain
disk:

* Readers of the folder must not see a change that a takeover could lose. So the bytes of a journal reach its file here
  with the `fsync` that made them durable on a majority. Spools and files with rows are written at once: no reader opens
  them before the journal names them.
* A journal that was sealed stays, here and on the peers, until its segment is in the object store: until then the
  segment is on this machine alone.

Everything else (segments, the index, notes) is this machine's, and goes to its disk unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from cdcflow.errors import InvariantViolated
from cdcflow.log.disk.layer import OS_LAYER, FileLayer, Part, unavailable, write_all
from cdcflow.log.files.layout import Layout
from cdcflow.sinks.quorum import image
from cdcflow.sinks.quorum.messages import MessageKind
from cdcflow.sinks.quorum.replicas import Replicas, SnapshotFile

PENDING_BYTES_MAX = 64 << 20
"""At most this much of a journal waits in memory for a majority."""


class _OpenFile:
    """A replicated file that is being written: its bytes on the disk here, and those that wait for a majority."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.pending: list[bytes] = []
        self.pending_bytes = 0

    @property
    def waits(self) -> bool:
        """Whether the file's bytes wait for a majority."""
        return self.name.startswith("journal/")


class ReplicatedLayer:
    """Implements `FileLayer`. May be used by several threads, as the log uses it: one at a time for each file."""

    def __init__(
        self, layout: Layout, replicas: Replicas, uploaded_offset: Callable[[], int], disk: FileLayer = OS_LAYER
    ) -> None:
        """`uploaded_offset`: the object store has the log up to this offset."""
        self._layout = layout
        self._root = os.fspath(layout.root)
        self._replicas = replicas
        self._uploaded_offset = uploaded_offset
        self._disk = disk
        self._open: dict[int, _OpenFile] = {}
        self._sealed: dict[Path, int] = {}  # files to remove once the store has the log up to this offset

    # ── FileLayer ───────────────────────────────────────────────────────────────────────────────────────────

    def create(self, path: Path) -> int:
        name = self._name(path)
        if name is None:
            return self._disk.create(path)
        with self._replicas.changing:
            self._remove_sealed(path)
            fd = self._disk.create(path)
            self._open[fd] = _OpenFile(name, 0)
            self._replicas.change(MessageKind.CREATE, name)
        return fd

    def open(self, path: Path) -> int:
        fd = self._disk.open(path)
        if (name := self._name(path)) is not None:
            with self._replicas.changing:
                self._open[fd] = _OpenFile(name, os.fstat(fd).st_size)
        return fd

    def write(self, fd: int, parts: Sequence[Part]) -> int:
        if (file := self._open.get(fd)) is None:
            return self._disk.write(fd, parts)
        content = b"".join(parts)
        if file.waits and file.pending_bytes + len(content) > PENDING_BYTES_MAX:
            self.fsync(fd)
        with self._replicas.changing:
            at = file.size + file.pending_bytes
            if file.waits:
                file.pending.append(content)
                file.pending_bytes += len(content)
            else:
                file.size += write_all(self._disk, fd, [content])
            self._replicas.change(MessageKind.APPEND, file.name, content, at)
        return len(content)

    def truncate(self, fd: int, size: int) -> None:
        if (file := self._open.get(fd)) is None:
            self._disk.truncate(fd, size)
            return
        with self._replicas.changing:
            kept = b"".join(file.pending)[: max(0, size - file.size)]
            file.pending, file.pending_bytes = [kept] if kept else [], len(kept)
            if size < file.size:
                self._disk.truncate(fd, size)
                file.size = size
            self._replicas.change(MessageKind.TRUNCATE, file.name, number=size)

    def fsync(self, fd: int) -> None:
        """Make the written bytes durable on a majority's disks; after that they can be read here.

        Raises:
            SinkUnavailable: no majority has them.
            InvariantViolated: another process has taken the log over.
        """
        if (file := self._open.get(fd)) is None:
            self._disk.fsync(fd)
            return
        with self._replicas.changing:
            number, parts = self._replicas.sync(), len(file.pending)
        self._replicas.wait(number)
        with self._replicas.changing:
            self._write_pending(fd, file, parts)

    def close(self, fd: int) -> None:
        """Close a file; drop the bytes that no majority has."""
        with self._replicas.changing:
            file = self._open.pop(fd, None)
        if file is not None:
            self._disk.fsync(fd)  # so that the folder is complete if the log is opened without peers later
        self._disk.close(fd)

    def fsync_dir(self, path: Path) -> None:
        if path == self._layout.root or path in (self._layout.journals, self._layout.spools):
            self._replicas.sync_and_wait()
        self._disk.fsync_dir(path)

    def rename(self, source: Path, target: Path) -> None:
        name = self._name(source)
        if name is None:
            self._disk.rename(source, target)
            return
        to = self._name(target)
        if to is None:
            raise InvariantViolated(f"renaming {source} to {target}: peers store one and not the other")
        with self._replicas.changing:
            self._sealed.pop(target, None)
            self._disk.rename(source, target)
            for file in self._open.values():
                if file.name == name:
                    file.name = to
            self._replicas.change(MessageKind.RENAME, name, to.encode())

    def link(self, source: Path, target: Path) -> None:
        if self._name(target) is None:
            self._disk.link(source, target)
        elif target.exists():
            raise FileExistsError(f"{target} exists")
        else:
            self.rename(source, target)  # no other process writes here; the caller removes `source` next

    def unlink(self, path: Path) -> None:
        name = self._name(path)
        if name is None:
            self._disk.unlink(path)
            return
        with self._replicas.changing:
            self.remove_uploaded()
            sealed = self._last_sealed()
            if sealed > self._uploaded_offset() and path.suffix != ".tmp":
                self._sealed[path] = sealed
            else:
                self._remove(path)

    def mkdir(self, path: Path) -> None:
        self._disk.mkdir(path)

    def rmdir(self, path: Path) -> None:
        self._disk.rmdir(path)

    # ── for the peers ───────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> Sequence[SnapshotFile]:
        """The current files that peers store. The caller holds `changing`."""
        open_files = {file.name: file for file in self._open.values()}
        found = []
        for name in image.names(self._layout.root):
            path = self._layout.root / name
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            pending = b"".join(open_files[name].pending) if name in open_files else b""
            found.append(SnapshotFile(name, fd, os.fstat(fd).st_size, pending))
        return found

    def remove_uploaded(self) -> None:
        """Remove journals, and the files that they attach, whose segments are already in the store."""
        if not self._sealed:
            return
        with self._replicas.changing:
            uploaded = self._uploaded_offset()
            for path in [path for path, sealed in self._sealed.items() if sealed <= uploaded]:
                self._remove_sealed(path)

    def _remove_sealed(self, path: Path) -> None:
        if self._sealed.pop(path, None) is not None:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        self._disk.unlink(path)
        name = self._name(path)
        assert name is not None  # noqa: S101 - the callers check it
        self._replicas.change(MessageKind.UNLINK, name)

    def _write_pending(self, fd: int, file: _OpenFile, parts: int) -> None:
        durable, file.pending = file.pending[:parts], file.pending[parts:]
        if not durable:
            return
        size = sum(map(len, durable))
        file.pending_bytes -= size
        try:
            write_all(self._disk, fd, durable)
        except OSError as error:
            raise unavailable(f"writing {self._root}/{file.name}", error) from error
        file.size += size

    def _last_sealed(self) -> int:
        """The last offset of the segments here."""
        return max((bounds[1] for bounds in self._layout.listed_segments()[0]), default=0)

    def _name(self, path: Path) -> str | None:
        """The path in the log's folder; None if peers do not store the file."""
        text = os.fspath(path)
        if not text.startswith(self._root + os.sep):
            return None
        name = text[len(self._root) + 1 :]
        return name if image.is_stored(name) else None
