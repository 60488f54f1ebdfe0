"""Files of Iceberg tables that are durable when they are closed, before the catalog or another file refers to them.

PyIceberg writes data and delete files, then manifests, the manifest list and the table's metadata, and finally makes
its catalog point to that. SQLite syncs its own file.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from cdcflow.tables.durable import make_folder, sync_folder

BUFFER_BYTES = 1 << 20


class SyncedIO(PyArrowFileIO):
    """The file IO for the catalog of a warehouse in a folder."""

    def new_output(self, location: str) -> PyArrowFile:
        found = super().new_output(location)
        scheme, _, path = self.parse_location(location)
        return found if scheme != "file" else SyncedFile(location, path, self.fs_by_scheme(scheme, ""))


class SyncedFile(PyArrowFile):
    """A file to be written."""

    def create(self, overwrite: bool = False) -> Any:  # Any: its base promises one of pyarrow's own
        make_folder(Path(self._path).parent)
        return SyncedWriter(self._path, overwrite=overwrite)


class SyncedWriter(io.BufferedWriter):
    """Writes a file whose content and name are durable once it is closed."""

    def __init__(self, path: str, *, overwrite: bool) -> None:
        self._folder = Path(path).parent
        super().__init__(io.FileIO(path, "wb" if overwrite else "xb"), BUFFER_BYTES)

    def close(self) -> None:
        if self.closed:
            return
        self.flush()
        os.fsync(self.fileno())
        super().close()
        sync_folder(self._folder)
