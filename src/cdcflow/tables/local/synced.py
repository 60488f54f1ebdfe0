"""Files of Iceberg tables that are durable before the catalog refers to them.

    data and delete files, manifests, their list ──▶ sync: all files at the same time, then their folders
                                                       └──▶ metadata, synced when it is closed ──▶ catalog

PyIceberg writes them in this order. A disk makes many files durable in little more than the time of one, but only if it
gets them together. SQLite syncs its own file.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSystem
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.utils.concurrent import ExecutorFactory

from cdcflow.tables.durable import make_folder, sync_file, sync_folder

METADATA = ".metadata.json"
BUFFER_BYTES = 1 << 20


class SyncedIO(PyArrowFileIO):
    """The file IO for the catalog of a warehouse in a folder. `defers`: files other than metadata become durable only
    when `sync` is called."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self.defers = False
        self._written: set[str] = set()

    def new_output(self, location: str) -> PyArrowFile:
        found = super().new_output(location)
        scheme, _, path = self.parse_location(location)
        if scheme != "file":
            return found
        is_later = self.defers and not path.endswith(METADATA)
        return SyncedFile(location, path, self.fs_by_scheme(scheme, ""), self._written.add if is_later else sync_name)

    def forget(self, path: str) -> None:
        """Forget a file that is about to be deleted."""
        self._written.discard(path)

    def sync(self) -> None:
        """Make all files durable that were written since the last call. All of them must be closed."""
        files, self._written = self._written, set()
        every = ExecutorFactory.get_or_create().map
        list(every(sync_file, map(Path, files)))
        list(every(sync_folder, {Path(file).parent for file in files}))


class SyncedFile(PyArrowFile):
    """A file to be written. `sync` is called with its path when it is closed."""

    def __init__(self, location: str, path: str, filesystem: FileSystem, sync: Callable[[str], None]) -> None:
        super().__init__(location, path, filesystem)
        self._sync = sync

    def create(self, overwrite: bool = False) -> Any:  # Any: its base promises one of pyarrow's own
        make_folder(Path(self._path).parent)
        return SyncedWriter(self._path, self._sync, overwrite=overwrite)


class SyncedWriter(io.BufferedWriter):
    """Writes a file, and passes its path to `sync` when it is closed."""

    def __init__(self, path: str, sync: Callable[[str], None], *, overwrite: bool) -> None:
        self._path = path
        self._sync = sync
        super().__init__(io.FileIO(path, "wb" if overwrite else "xb"), BUFFER_BYTES)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._sync(self._path)


def sync(files: FileIO) -> None:
    """Make everything durable that was written through a file IO."""
    if isinstance(files, SyncedIO):
        files.sync()


def sync_name(path: str) -> None:
    """Make a file and its name durable."""
    sync_file(Path(path))
    sync_folder(Path(path).parent)
