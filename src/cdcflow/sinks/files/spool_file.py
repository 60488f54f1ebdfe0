"""A file for a transaction too large for memory, next to the journal that may attach it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cdcflow.errors import InvariantViolated
from cdcflow.log.disk.layer import FileLayer, Part, storing, syncing, write_all
from cdcflow.log.format.journal import Encoder
from cdcflow.model.change import ChangeBatch, SpooledTransaction, Uint64s
from cdcflow.model.checksum import crc32
from cdcflow.model.table import Table
from cdcflow.sinks.log_end import LogEnd


class SpoolFile:
    """A spool in the log's directory. Implements `cdcflow.ports.Spool`; used by one thread at a time."""

    def __init__(self, path: Path, head: tuple[bytes, int], layer: FileLayer, registry: dict[str, SpoolFile]) -> None:
        self.name = path.name
        self.synced = False
        self.bytes = 0
        self.crc = 0
        self._path = path
        self._layer = layer
        self._registry = registry
        self._rows = 0
        self._rows_of: Counter[int] = Counter()
        self._shapes: dict[Table, None] = {}
        content, seed = head
        self._encoder = Encoder(seed)
        self._fd = layer.create(path)
        self._put([content])

    @property
    def shapes(self) -> Sequence[Table]:
        return list(self._shapes)

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        """Append one piece.

        `subxids` (one per row of the piece, in index order) is each row's sub-transaction; None when they can no longer
        be rolled back.
        """
        rows = sum(b.rows.num_rows for b in batches)
        LogEnd.check_index(batches, rows)
        if subxids is not None:
            if len(subxids) != rows:
                raise InvariantViolated(f"spooling {rows} rows with {len(subxids)} sub-transactions")
            ids, counts = np.unique(subxids, return_counts=True)
            self._rows_of.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        self._rows += rows
        self._encoder.piece(rows, subxids)
        for batch in batches:
            if batch.rows.num_rows:
                self._shapes[batch.table] = None
                self._encoder.shape(batch.table, 0)
                self._encoder.rows(batch, 0)
        with storing(f"writing the spool {self._path}"):
            self._put(self._encoder.take())

    def finish(self) -> None:
        """End the transaction: no more pieces follow. Everything written is in the file (durable only with the log's
        next `sync`)."""

    def discard(self) -> None:
        """Remove the file, because the transaction was rolled back."""
        if self._fd >= 0:
            self.abandon()
            self._layer.unlink(self._path)

    def abandon(self) -> None:
        """Close the file and leave it to recovery."""
        self._registry.pop(self.name, None)
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._layer.close(fd)

    def rows_without(self, aborted: frozenset[int]) -> int:
        """Return how many rows remain if these sub-transactions are rolled back."""
        return self._rows - sum(self._rows_of[xid] for xid in aborted)

    def sync(self) -> None:
        """Make the file durable, and close it: it was attached, so nothing more is written to it."""
        if not self.synced:
            with syncing(self._path):
                self._layer.fsync(self._fd)
            self.synced = True
            self.abandon()

    def _put(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self.crc = crc32(part, self.crc)
        self.bytes += write_all(self._layer, self._fd, parts)


def announced_spool(spools: Mapping[str, SpoolFile], run: SpooledTransaction) -> SpoolFile:
    """Return the open spool that a transaction names.

    Raises:
        InvariantViolated: it is not open, or has another number of rows.
    """
    found = spools.get(run.spool)
    if found is None:
        raise InvariantViolated(f"attaching spool {run.spool}: no such spool is open")
    kept = found.rows_without(run.aborted)
    if kept != run.rows:
        raise InvariantViolated(f"attaching spool {run.spool}: it has {kept} rows, {run.rows} were announced")
    return found
