"""The change log as the publisher reads it: what is durable, in whole transactions. Any kind of log can be one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from cdcflow.changelog import reader
from cdcflow.changelog.layout import Layout
from cdcflow.changelog.reader import LogRows, Place
from cdcflow.model.position import SourceIdentity


class Tail(Protocol):
    """A change log that may grow while it is read."""

    log_id: str
    identity: SourceIdentity

    def next_offset(self) -> int:
        """Behind the newest row that is durable: what lies before is the same for ever."""
        ...

    def ready(self, first: int) -> int:
        """Behind the newest row that can be published now, from `first` on; `first` where there is none yet. Takes a
        moment at most: what is far on its way is looked for again with the next call."""
        ...

    def transactions(self, first: int, last: int) -> Iterator[pa.Table]:
        """Headers of the transactions with a row from one offset to another, in order; at least one, perhaps not all.

        Raises:
            HistoryLost: `first` has expired.
        """
        ...

    def rows(self, first: int, last: int) -> Iterator[LogRows]:
        """Rows from one offset to another, ascending within a table. Asked for after their transactions, up to the last
        of those; what is before them may be let go of then."""
        ...


class FileTail:
    """The tail of a log in files, in a folder or a store. Takes no lock; works beside the daemon that writes it."""

    def __init__(self, place: Place) -> None:
        self._layout = Layout.of(place)
        file = self._layout.log_file()
        self.log_id: str = file.log_id
        self.identity: SourceIdentity = file.source
        self._seen = 0

    def next_offset(self) -> int:
        newest = int(reader.newest_checkpoint(self._layout).next_offset)
        if newest != self._seen:
            # Readers see a cut before the writer has synced it. What is published cannot be taken back, so it is
            # synced here first; where the writer was quicker, that costs nothing.
            for folder in (self._layout.spools, self._layout.journals):
                _sync_folder(folder)
            self._seen = newest
        return newest

    def ready(self, first: int) -> int:
        return max(first, self.next_offset())

    def transactions(self, first: int, last: int) -> Iterator[pa.Table]:
        return reader.read_transactions(self._layout, first, last)

    def rows(self, first: int, last: int) -> Iterator[LogRows]:
        return reader.read_rows(self._layout, first, last)


def _sync_folder(folder: Path) -> None:
    with suppress(FileNotFoundError):
        for path in sorted(folder.iterdir()):
            with suppress(FileNotFoundError):
                _sync(path)
        _sync(folder)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
