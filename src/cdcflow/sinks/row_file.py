"""A file with the rows of one run, beside the journal that will name it: written by whoever writes the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cdcflow.changelog.parquet import Target
from cdcflow.changelog.segment import SegmentFile
from cdcflow.sinks.layer import DurableFile, FileLayer

Write = Callable[[str, Target], SegmentFile]
"""Writes rows into a target, under a name, and says what a manifest says of them."""


class RowFile:
    """One file. `bytes` is 0 before it is written; then it is durable, its name aside."""

    def __init__(self, path: Path, write: Write, layer: FileLayer) -> None:
        self.name = path.name
        self.bytes = 0
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

    @property
    def synced(self) -> bool:
        return self.bytes > 0

    def sync(self) -> None:
        """It was made durable when it was written."""

    def abandon(self) -> None:
        """Leave it to recovery."""


__all__ = ["RowFile", "Write"]
