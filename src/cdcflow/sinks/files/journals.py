"""A journal that is being written: the records queued for it, how many bytes are in the file, and which are durable.

    encoded ─▶ queue ─▶ file ─▶ synced ─▶ named
     loop      `write`           `sync`

The loop, which adds records (through `encoder`), never waits: checksums, writes and syncs are done by the syncing
thread. A new journal is written to a temporary file and gets its name with its first sync, so every named file has a
whole head.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from cdcflow.log.disk.layer import FileLayer, syncing, write_all
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.journal import Encoder, JournalHeader


class JournalFile:
    """One journal. `encoder` belongs to one thread; `write` and `sync` are each called by one thread at a time.

    `is_shared`: another writer may have replaced this one without its knowledge, and count more of the file than this
    one knows to be written. Then the file is never shortened.
    """

    def __init__(self, layout: Layout, header: JournalHeader, layer: FileLayer, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
        head, seed = header.encode()
        self.header = header
        self.encoder = Encoder(seed, header.base)
        self.head_bytes = len(head)
        self.path = layout.journal(header.first_offset)
        self._directory = layout.journals
        self._layer = layer
        self._head = head
        self._fd = -1
        self._named = False
        self._written = 0

    @property
    def bytes(self) -> int:
        """The journal's length once everything that was encoded is written."""
        return self.head_bytes + self.encoder.bytes

    @property
    def is_named(self) -> bool:
        return self._named

    def write(self) -> None:
        """Write the queued records. After an OSError the file is in its previous state, as far as possible, and the
        records are lost."""
        if self._fd < 0:
            self._create()
        parts = self.encoder.take()
        if not parts:
            return
        try:
            self._written += write_all(self._layer, self._fd, parts)
        except OSError:
            # Recovery would drop the unfinished tail as well; dropping it now frees some disk space.
            if not self._is_shared:
                with contextlib.suppress(OSError):
                    self._layer.truncate(self._fd, self._written)
            raise

    def sync(self) -> None:
        """Make the records written before this call durable, and the file's name.

        Raises:
            InvariantViolated: a sync failed.
        """
        with syncing(self.path):
            self._layer.fsync(self._fd)
        if not self._named:
            self._layer.rename(self._temporary, self.path)
            with syncing(self._directory):
                self._layer.fsync_dir(self._directory)
            self._named = True

    def cut_off(self, size: int) -> None:
        """Write all queued records, then drop the bytes after `size`. Nothing can be added after that."""
        self.write()
        self._layer.truncate(self._fd, size)

    def drop_behind(self, size: int) -> None:
        """Drop the bytes after `size`, and the queued records. A file that was closed stays unchanged, because it is
        durable."""
        self.encoder.drop()
        if self._fd >= 0 and not self._is_shared:
            self._layer.truncate(self._fd, size)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._layer.close(fd)

    @property
    def _temporary(self) -> Path:
        # With the epoch: a replaced writer that does not know it must not touch its successor's file.
        return self.path.with_name(f"{self.header.first_offset:020d}.{self.header.epoch}.tmp")

    def _create(self) -> None:
        self._fd = self._layer.create(self._temporary)
        self._written = write_all(self._layer, self._fd, [self._head])
