"""The tail of a log in files, in a folder or a store. It takes no lock, and works while the daemon writes the log.

It follows journals and reads each of their bytes once; sealed rows are read from segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from cdcflow.errors import SinkUnavailable
from cdcflow.log.disk.fsync_reads import settle
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.rows import ShapeEntry
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.log.read import reader
from cdcflow.log.read.journal_follower import Following
from cdcflow.log.read.reader import LogLocation, LogRows
from cdcflow.model.position import SourceIdentity
from cdcflow.publish.unpublished import HELD_BYTES_MAX, TURN_S, HeldTail
from cdcflow.sinks.kafka.reader import Context


class FileTail(HeldTail[Following]):
    """The tail of a log in files, for `publisher`."""

    wait_s = 30.0

    def __init__(self, location: LogLocation, held_bytes_max: int = HELD_BYTES_MAX, turn_s: float = TURN_S) -> None:
        super().__init__(held_bytes_max, turn_s)
        self._layout = Layout.of(location)
        file = self._layout.log_file()
        self.log_id: str = file.log_id
        self.identity: SourceIdentity = file.source
        self._synced = 0
        self._context = Context()

    def next_offset(self) -> int:
        checkpoint = reader.newest_checkpoint(self._layout)
        newest = self.progress_at = int(checkpoint.next_offset)
        self.progress = checkpoint.progress
        self._sync(newest)
        return newest

    def _cursor_from(self, first: int) -> Following | None:
        self._context = Context()
        sealed = [last for _, last in self._layout.segment_offsets()[-1:]]
        if sealed and first <= sealed[0]:
            return None
        with suppress(FileNotFoundError):
            return Following(self._layout, first)
        return None

    def _records(self, cursor: Following) -> Iterator[tuple[object, Context]]:
        context = self._context
        for record in cursor.read():
            match record:
                case ShapeEntry():
                    context.versions[record.table] = record.version
                case TransactionHeaders():
                    context.begin(record)
                case _:
                    pass
            yield record, context

    def _settle(self) -> None:
        self._sync(self._next_offset)

    def _headers(self, first: int, last: int) -> Iterator[pa.Table]:
        return reader.read_transactions(self._layout, first, last)

    def _rows(self, first: int, last: int) -> Iterator[LogRows]:
        return reader.read_rows(self._layout, first, last)

    def _silent(self) -> SinkUnavailable:
        return SinkUnavailable(f"publishing the log {self._layout.name}: the rows of its latest cut do not appear")

    def _sync(self, newest: int) -> None:
        """Sync the log before it is published.

        Readers see a cut before the writer has synced it, and published messages cannot be taken back. If the writer
        was quicker, the sync costs nothing.
        """
        if newest != self._synced:
            settle(self._layout)
            self._synced = newest
