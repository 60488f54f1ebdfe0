"""The disk of a peer: its promise, and an image of the log's journals that one writer changes.

    <folder>/state.json      the promise, and the number of the image that counts
    <folder>/images/<n>/     log.json, journal/, spool/: as in the log's folder

A writer copies a new image next to the current one, which stays valid until `state.json` names the new one. Files that
both have are linked, not copied. Every change is checked against the promise under one lock, so nothing of an older
epoch is stored after a promise was answered. Changes before an answered `sync` survive a power failure; the rest may be
cut off anywhere, which the frames' checksums show when the peer reports.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SyncFailed
from cdcflow.log.disk.layer import OS_LAYER, link_or_copy, storing, syncing, write_all, write_file
from cdcflow.log.files import attached
from cdcflow.log.files.extents import counting_heads, opened_journal
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.recovery import whole
from cdcflow.model.position import Epoch
from cdcflow.sinks.quorum import image, promises
from cdcflow.sinks.quorum.image import FOLDERS, ImageFile, check_name
from cdcflow.sinks.quorum.promises import EpochWriter, JournalExtent, Promise, WriterRefused

STATE_VERSION = 1


class OpenImage:
    """The files of one image, changed by one writer at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fds: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._unsynced: set[str] = set()
        self._changed_folders: set[Path] = set()

    def create(self, name: str) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        self._fds[name] = OS_LAYER.create(path)
        self._sizes[name] = 0
        self._changed_folders.add(path.parent)
        self._unsynced.add(name)

    def append(self, name: str, at: int, content: bytes | memoryview) -> None:
        """Append to a file that has `at` bytes. Raise InvariantViolated if it has another size."""
        fd = self._fd(name)
        if self._sizes[name] != at:
            raise InvariantViolated(
                f"appending to {self.root / name}: it has {self._sizes[name]} bytes, and the writer appends at {at}"
            )
        self._sizes[name] += write_all(OS_LAYER, fd, [content])
        self._unsynced.add(name)

    def truncate(self, name: str, size: int) -> None:
        OS_LAYER.truncate(self._fd(name), size)
        self._sizes[name] = size
        self._unsynced.add(name)

    def rename(self, name: str, target: str) -> None:
        source, path = self._path(name), self._path(target)
        self._forget(target)
        source.rename(path)
        for known in (self._fds, self._sizes):
            if name in known:
                known[target] = known.pop(name)
        if name in self._unsynced:
            self._unsynced.remove(name)
            self._unsynced.add(target)
        self._changed_folders |= {source.parent, path.parent}

    def unlink(self, name: str) -> None:
        path = self._path(name)
        self._forget(name)
        path.unlink(missing_ok=True)
        self._changed_folders.add(path.parent)

    def sync(self) -> None:
        """Make all changes so far durable. Raise SyncFailed if it is unknown whether they are."""
        for name in sorted(self._unsynced):
            with syncing(self.root / name):
                OS_LAYER.fsync(self._fds[name])
        self._unsynced.clear()
        for folder in sorted(self._changed_folders):
            with syncing(folder):
                OS_LAYER.fsync_dir(folder)
        self._changed_folders.clear()

    def close(self) -> None:
        for name in list(self._fds):
            self._forget(name)

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    def _fd(self, name: str) -> int:
        if name not in self._fds:
            path = self._path(name)
            self._fds[name] = OS_LAYER.open(path)
            self._sizes[name] = path.stat().st_size
        return self._fds[name]

    def _forget(self, name: str) -> None:
        self._sizes.pop(name, None)
        self._unsynced.discard(name)
        fd = self._fds.pop(name, None)
        if fd is not None:
            OS_LAYER.close(fd)


class PeerStore:
    """A peer's disk. Any thread may call it.

    After a failed sync it is dead: what it answered earlier is durable, and nothing else counts until it starts again.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ConfigurationError if another process uses the folder."""
        self._folder = folder
        self._changing = threading.RLock()
        self._images_made = 0
        self._session: object = None
        self._dead: CdcflowError | None = None
        with storing(f"opening the peer's folder {folder}"):
            (folder / "images").mkdir(parents=True, exist_ok=True)
            self._lock = _lock_folder(folder / "lock")
            self._promise, number = self._read()
            self._image: OpenImage | None = None if number is None else OpenImage(self._image_folder(number))
            self._images_made = number or 0
            self._remove_others(number)
        _forget_cached(folder)

    @property
    def promise(self) -> Promise:
        return self._promise

    def promise_to(self, writer: EpochWriter, *, founding: bool) -> Promise:
        """Promise to follow only this writer; durable on return. Raises WriterRefused."""
        with self._changing:
            self._living()
            rule = promises.founding_promise if founding else promises.fencing_promise
            promise = rule(self._promise, writer)
            if promise != self._promise:
                self._write(promise, self._number)
            return promise

    @property
    def session(self) -> object:
        """The connection that may change the image; None if none has since the start."""
        return self._session

    def extent(self) -> JournalExtent:
        """Return how far the journals go. Raise InvariantViolated if data that was durable is damaged."""
        with self._changing:
            self._living()
            return JournalExtent() if self._image is None else extent_of(self._image.root)

    def files(self) -> list[ImageFile]:
        with self._changing:
            return [] if self._image is None else image.files(self._image.root)

    def path(self, name: str) -> Path:
        """The path of a file of the image."""
        if self._image is None:
            raise InvariantViolated(f"reading from the peer's folder {self._folder}: it has no image")
        return self._image.root / check_name(name)

    def begin_image(
        self, writer: EpochWriter, session: object, wanted: Sequence[ImageFile]
    ) -> tuple[OpenImage, list[str]]:
        """Create a new image with those of these files that the current one has. Return it, and the names of the
        others.

        Changes by earlier sessions are refused after this, also those of the same writer: they may still arrive. Raises
        WriterRefused.
        """
        with self._changing:
            self._living()
            promises.installing_promise(self._promise, writer)
            self._session = session
            self._images_made += 1
            root = self._image_folder(self._images_made)
            if root.exists():
                shutil.rmtree(root)
            for folder in FOLDERS:
                (root / folder).mkdir(parents=True)
            current = self._image
        missing = [file.name for file in wanted if current is None or not _take_over_file(current.root, root, file)]
        return OpenImage(root), missing

    def install(self, writer: EpochWriter, session: object, made: OpenImage, wanted: Sequence[ImageFile]) -> bool:
        """Make a whole new image the one that counts; durable on return. Returns whether the peer was blank.

        Raises:
            WriterRefused: the peer follows another writer.
            InvariantViolated: the image is not what the writer announced.
        """
        _check_content(made.root, wanted)
        _sync_tree(made)
        with self._changing:
            self._living()
            self._check_session(session)
            was_blank = self._promise.is_blank
            promise = promises.installing_promise(self._promise, writer)
            self._write(promise, int(made.root.name))
            old, self._image = self._image, made
            if old is not None:
                old.close()
                shutil.rmtree(old.root, ignore_errors=True)
        return was_blank

    @contextlib.contextmanager
    def changing(self, writer: EpochWriter, session: object) -> Iterator[OpenImage]:
        """Provide the image for changes by this writer. Until the block ends, no other writer gets a promise. Raises
        WriterRefused."""
        with self._changing:
            self._living()
            self._check_session(session)
            promises.check_append(self._promise, writer)
            assert self._image is not None  # noqa: S101 - `accepted` says so
            try:
                yield self._image
            except SyncFailed as error:
                self._dead = error
                raise

    @property
    def dead(self) -> CdcflowError | None:
        """The reason why this peer must start again; None while it works."""
        return self._dead

    def close(self) -> None:
        if self._image is not None:
            self._image.close()
        os.close(self._lock)

    def _check_session(self, session: object) -> None:
        if session is not self._session:
            raise WriterRefused(self._promise, "a later connection writes to it")

    def _living(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(f"the peer's folder {self._folder} is closed after an error: {self._dead}")

    @property
    def _number(self) -> int | None:
        return None if self._image is None else int(self._image.root.name)

    def _image_folder(self, number: int) -> Path:
        return self._folder / "images" / str(number)

    def _write(self, promise: Promise, number: int | None) -> None:
        value = {"version": STATE_VERSION, "image": number, **asdict(promise)}
        with storing(f"storing a promise in {self._folder}"):
            write_file(OS_LAYER, self._folder / "state.json", json.dumps(value).encode())
        self._promise = promise

    def _read(self) -> tuple[Promise, int | None]:
        try:
            value = json.loads((self._folder / "state.json").read_bytes())
            promise = Promise(
                value["group"],
                Epoch(value["promised"]),
                value["writer"],
                Epoch(value["accepted"]),
                value["peers"],
            )
            return promise, value["image"]
        except FileNotFoundError:
            return Promise(), None
        except (ValueError, KeyError, TypeError):
            raise InvariantViolated(
                f"reading {self._folder / 'state.json'}: cdcflow did not write it",
                remedy="empty the peer's folder: the daemon copies everything to it again",
                runbook="quorum-lost",
            ) from None

    def _remove_others(self, number: int | None) -> None:
        for path in (self._folder / "images").iterdir():
            if path.name != str(number):
                shutil.rmtree(path, ignore_errors=True)


def extent_of(root: Path) -> JournalExtent:
    """Return how far the journals of an image go. Raise InvariantViolated if data that was durable is damaged."""
    layout = Layout(root)
    heads = [head for head, counts in counting_heads(layout) if counts]
    if not heads:
        return JournalExtent()
    last = heads[-1]
    with opened_journal(layout, last.first_offset) as (file, header, path):
        found = whole(
            file, header, path.stat().st_size, str(path), lambda record: attached.is_whole(layout, record), end=None
        )
    return JournalExtent(found.checkpoint.cut, int(last.epoch), int(last.first_offset))


def _take_over_file(current: Path, new: Path, file: ImageFile) -> bool:
    """Give the new image a file that the current one has; False if it has not."""
    path = current / check_name(file.name)
    if not image.has(path, file):
        return False
    if path.stat().st_size == file.bytes and path.suffix != ".tmp":
        link_or_copy(OS_LAYER, path, new / file.name)
    else:
        shutil.copyfile(path, new / file.name)
        os.truncate(new / file.name, file.bytes)
    return True


def _check_content(root: Path, wanted: Sequence[ImageFile]) -> None:
    for file in wanted:
        path = root / file.name
        if not path.exists() or path.stat().st_size != file.bytes or not image.has(path, file):
            raise InvariantViolated(f"installing {path}: it is not the file that the writer announced")


def _sync_tree(made: OpenImage) -> None:
    made.sync()
    for name in image.names(made.root):
        path = made.root / name
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with syncing(path):
                os.fsync(fd)
        finally:
            os.close(fd)
    for folder in (*(made.root / name for name in FOLDERS), made.root, made.root.parent):
        with syncing(folder):
            OS_LAYER.fsync_dir(folder)


def _forget_cached(folder: Path) -> None:
    """Drop the files from the system's cache: after a failed sync it may hold what never reached the disk."""
    for path in folder.glob("images/*/*/*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _lock_folder(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigurationError(
            f"opening the peer's folder {path.parent}: another process already uses it",
            remedy="stop that process, or give this peer a different --path",
            runbook="two-daemons",
        ) from None
    return fd
