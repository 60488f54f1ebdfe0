"""Files with rows of chunks, next to the journal that will name them.

They are written by the journal's writer, or by the process that has the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cdcflow.errors import SinkUnavailable
from cdcflow.log.disk.layer import DurableFile, FileLayer
from cdcflow.log.files.parquet import SegmentTarget
from cdcflow.log.format.segment import SegmentFile
from cdcflow.model.change import HeldRows

Write = Callable[[str, SegmentTarget], SegmentFile]
"""Writes rows into a target, under a name, and returns the file's entry for a manifest."""


class RowFile:
    """A file with a chunk's rows. `bytes` is 0 until it is written; then its rows are durable.

    `synced`: its name is durable, too, or the caller of `sync` is about to sync the directory.
    """

    def __init__(self, path: Path, write: Write, layer: FileLayer) -> None:
        self.name = path.name
        self.bytes = 0
        self.synced = False
        self._path = path
        self._write = write
        self._layer = layer

    def write_or_wait(self) -> SegmentFile:
        """Write the file once: after its rows have offsets and before the next cut counts.

        Raises:
            OSError: no room.
            InvariantViolated: a sync failed.
        """
        found = self._write(self.name, DurableFile(self._layer, self._path))
        self.bytes = found.bytes
        del self._write  # frees the rows, too
        return found

    def sync(self) -> None:
        """Make the file's name durable. Its rows became durable when they were written, perhaps for an earlier cut."""
        self.synced = True

    def abandon(self) -> None:
        """Leave the file to recovery, which removes it."""


class HeldFile:
    """A file that another process has been writing since this object was created.

    `bytes` is 0 until that process is done; then the rows are durable. `synced`: see `RowFile`.
    """

    def __init__(self, path: Path, rows: HeldRows, first_offset: int, transaction: int, commit_ts: int) -> None:
        self.name = path.name
        self.bytes = 0
        self.synced = False
        self._path = path
        self._first_offset = first_offset
        self._rows = rows.rows
        self._waits: Callable[[], Mapping[str, Any]] = rows.write(str(path), first_offset, transaction, commit_ts)

    def write_or_wait(self) -> SegmentFile:
        """Wait until the process has written the file.

        Raises:
            SinkUnavailable: the process with the rows is gone, or the file is not what it reported; the rows are read
                again.
        """
        found = SegmentFile.of({**self._waits(), "path": self.name})
        there = self._path.stat().st_size if self._path.exists() else None
        last = self._first_offset + self._rows - 1
        if there != found.bytes or (found.rows, found.first_offset, found.last_offset) != (
            self._rows,
            self._first_offset,
            last,
        ):
            raise SinkUnavailable(
                f"attaching {self._path}: the file differs from what the process that wrote it reported"
            )
        self.bytes = found.bytes
        return found

    def sync(self) -> None:
        """Make the file's name durable: the process that wrote it made only its rows durable."""
        self.synced = True

    def abandon(self) -> None:
        """Leave the file to recovery, which removes it."""
