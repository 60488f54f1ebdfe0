"""Files with rows of chunks, beside the journal that will name them: written by whoever writes the journal, or by those
who have the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cdcflow.changelog.parquet import Target
from cdcflow.changelog.segment import SegmentFile
from cdcflow.errors import SinkUnavailable
from cdcflow.model.change import HeldRows
from cdcflow.sinks.layer import DurableFile, FileLayer

Write = Callable[[str, Target], SegmentFile]
"""Writes rows into a target, under a name, and says what a manifest says of them."""


class RowFile:
    """One file. `bytes` is 0 before it is written; then its rows are durable. `synced`: so is its name, or whoever
    called `sync` is about to sync the directory."""

    def __init__(self, path: Path, write: Write, layer: FileLayer) -> None:
        self.name = path.name
        self.bytes = 0
        self.synced = False
        self._path = path
        self._write = write
        self._layer = layer

    def written(self) -> SegmentFile:
        """Write it: once, when the offsets of its rows are taken and before the cut behind them counts.

        Raises:
            OSError: no room.
            InvariantViolated: a sync failed.
        """
        found = self._write(self.name, DurableFile(self._layer, self._path))
        self.bytes = found.bytes
        del self._write  # and with it the rows
        return found

    def sync(self) -> None:
        """Its rows were made durable when they were written, perhaps for an earlier cut; its name was not."""
        self.synced = True

    def abandon(self) -> None:
        """Leave it to recovery."""


class HeldFile:
    """A file that another process writes, from its beginning on. `bytes` is 0 until that is done; then its rows are
    durable. `synced` as of `RowFile`."""

    def __init__(self, path: Path, rows: HeldRows, first_offset: int, transaction: int, commit_ts: int) -> None:
        self.name = path.name
        self.bytes = 0
        self.synced = False
        self._path = path
        self._first_offset = first_offset
        self._rows = rows.rows
        self._waits: Callable[[], Mapping[str, Any]] = rows.write(path, first_offset, transaction, commit_ts)

    def written(self) -> SegmentFile:
        """Wait for it.

        Raises:
            SinkUnavailable: whoever had the rows is gone, or what it wrote is not what it says; they are read again.
        """
        found = SegmentFile.of({**self._waits(), "path": self.name})
        there = self._path.stat().st_size if self._path.exists() else None
        last = self._first_offset + self._rows - 1
        if there != found.bytes or (found.rows, found.first_offset, found.last_offset) != (
            self._rows,
            self._first_offset,
            last,
        ):
            raise SinkUnavailable(f"attaching {self._path}: the file is not what the process that wrote it says")
        self.bytes = found.bytes
        return found

    def sync(self) -> None:
        """Whoever wrote it made its rows durable; not its name."""
        self.synced = True

    def abandon(self) -> None:
        """Leave it to recovery."""


__all__ = ["HeldFile", "RowFile", "Write"]
