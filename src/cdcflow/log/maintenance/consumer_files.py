"""The storage of a log's consumers: one file each in a folder, and the lease of the one process that reads it.

    consumers/search.json   what it gets, how far it is: replaced as a whole, synced
    consumers/search.lock   held by its reader; the system frees it when the process ends

The folder is in the log's folder, if the log is written on this machine; the log's expiry then waits for its consumers.
Otherwise the reader names a folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cdcflow.log.disk.fsync_reads import settle
from cdcflow.log.disk.layer import OS_LAYER, FileLayer, storing, syncing, write_file
from cdcflow.log.disk.lease import holder, lock_file
from cdcflow.log.disk.maintenance_lock import Busy
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.notes import Note
from cdcflow.log.query.cursors import ConsumerState

FOLDER = "consumers"


class ConsumerFiles:
    """Stores consumers in a folder. Implements `cdcflow.log.query.consumer.States`.

    `options`: the options with which a command finds the folder; `log_id`: returns the log's id if its layout does not
    have it (`None`: it has).
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        options: str = "",
        log_id: Callable[[], str] | None = None,
        layer: FileLayer = OS_LAYER,
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._options = options
        self._log_id = log_id
        self._layer = layer

    @property
    def options(self) -> str:
        return self._options

    @property
    def log_id(self) -> str:
        return self._layout.log_file().log_id if self._log_id is None else self._log_id()

    def names(self) -> Sequence[str]:
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def read(self, name: str) -> ConsumerState | None:
        path = self._state(name)
        try:
            return ConsumerState.from_json(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None

    def write(self, state: ConsumerState) -> None:
        path = self._state(state.name)
        with storing(f"keeping consumer {state.name} in {self._folder}"):
            write_file(self._layer, path, state.to_json().encode())

    def remove(self, name: str) -> None:
        with storing(f"removing consumer {name} from {self._folder}"):
            with suppress(FileNotFoundError):
                self._layer.unlink(self._state(name))
            with suppress(FileNotFoundError):
                self._layer.unlink(self._lock(name))
            with syncing(self._folder):
                self._layer.fsync_dir(self._folder)

    @contextmanager
    def lease(self, name: str) -> Iterator[None]:
        def refusal(path: Path, who: str) -> Busy:
            return Busy(
                f"reading consumer {name}: {who} reads it, and a consumer has one reader at a time",
                remedy="stop that one, or create another consumer for this reader",
            )

        with storing(f"creating the folder {self._folder}"):
            self._folder.mkdir(mode=0o750, exist_ok=True, parents=True)
        held = lock_file(self._lock(name), refusal)
        try:
            yield
        finally:
            os.close(held)

    def holder(self, name: str) -> str | None:
        path = self._lock(name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return holder(path)
        finally:
            os.close(fd)
        return None

    def settle(self) -> None:
        if self._layout.is_home:
            with storing(f"syncing the log {self._layout.root}"):
                settle(self._layout)

    def _state(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _lock(self, name: str) -> Path:
        return self._folder / f"{name}.lock"


def states(folder: Path) -> list[ConsumerState]:
    """Return the consumers stored in a folder, sorted by name."""
    files = ConsumerFiles(folder, Layout(folder))
    return [state for name in files.names() if (state := files.read(name)) is not None]


def notes(layout: Layout) -> list[Note]:
    """Return the progress of the consumers that are stored in a log's own folder, as notes for its expiry.

    What a consumer still needs of its backfill counts, too.
    """
    return [Note("consumer", one.name, one.needed_from - 1) for one in states(layout.root / FOLDER)]
