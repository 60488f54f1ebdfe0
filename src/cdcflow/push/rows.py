"""The current rows of collections, which their only writer must know before it decides.

    offsets   1 ────────────── indexed ──────────────── latest ─ ─ ─ being written
    answered  by the log's index │ by what is cached here        │

What was written and is not indexed yet is cached here, as rows or as whole batches of a bulk request; in addition, some
rows that were read before. There is one writer, so the cache is never out of date. Of one key the higher offset counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import InvariantViolated
from cdcflow.log.index.keyhash import Hashes, hashes
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.query.row import text_of
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.change import DELETE
from cdcflow.model.table import LOG_COLUMNS, OFFSET, OP, Table
from cdcflow.push.operations import Row
from cdcflow.push.schemas import CollectionShape

Key = tuple[Any, ...]
ROWS_KEPT = 20_000
BYTES_KEPT = 32 << 20
"""The limit on cached rows that are already indexed. Rows that are not indexed yet are cached in addition."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The state of a row since an offset; `None` if there is no row."""

    offset: int
    row: Row | None
    bytes: int


class PendingRows:
    """Changes of one table that are not indexed yet, in columns. `rows`: the columns of the table, and `_op`."""

    def __init__(self, table: Table, first_offset: int, offsets: npt.NDArray[np.int64], rows: pa.RecordBatch) -> None:
        self.table = table
        self.last_offset = int(offsets[-1]) if len(offsets) else first_offset
        self.bytes: int = int(rows.nbytes) + 24 * rows.num_rows
        self._offsets = offsets
        self._rows = rows
        found = hashes([rows.column(name) for name in table.key])
        self._order = np.argsort(found, kind="stable")
        self.hashes: Hashes = found[self._order]

    def newest(self, key: Key, wanted: np.uint64) -> tuple[int, Row | None] | None:
        """Return the last change of a key: its offset, and the row afterwards (None if it was deleted).

        None if the key has no change here.
        """
        low, high = np.searchsorted(self.hashes, wanted, "left"), np.searchsorted(self.hashes, wanted, "right")
        for at in reversed(self._order[low:high]):
            row = self._rows.slice(int(at), 1).to_pylist()[0]
            if tuple(row[name] for name in self.table.key) == key:
                values = {name: value for name, value in row.items() if name not in LOG_COLUMNS}
                return int(self._offsets[at]), None if row[OP] == DELETE else values
        return None

    def are_deleted(self, wanted: Hashes) -> npt.NDArray[np.int8]:
        """Return, for each hash, 1 if its last change here deletes the row, 0 if it does not, and -1 if it has no
        change here."""
        if not len(self.hashes):
            return np.full(len(wanted), -1, np.int8)
        at = np.searchsorted(self.hashes, wanted, "right") - 1
        is_there = (at >= 0) & (self.hashes[np.maximum(at, 0)] == wanted)
        deleted = pc.equal(self._rows.column(OP), DELETE).to_numpy(zero_copy_only=False)[self._order[np.maximum(at, 0)]]
        return np.where(is_there, deleted.astype(np.int8), np.int8(-1))


class CollectionRows:
    """The rows of all collections. Used by the writer's thread alone; `log` is opened for it."""

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._kept: dict[str, OrderedDict[Key, _Kept]] = {}
        self._bytes = 0
        self._batches: list[PendingRows] = []
        self._in_log: set[str] = set()
        self._indexed = 0

    @property
    def bytes(self) -> int:
        """The approximate size of the cache. Any thread may read it."""
        return self._bytes + sum((batch.bytes for batch in tuple(self._batches)), 0)

    def begin(self, reader: LogReader) -> None:
        """Cache the rows that the log has and its index lacks: those of an earlier run."""
        self._in_log = {table.name for table in reader.table_shapes()}
        self._indexed = max(self._log.indexed_to(), self._log.first_offset() - 1)
        end = int(reader.newest_checkpoint().next_offset) - 1
        if self._indexed < end:
            for shape, _, rows in reader.read_rows(self._indexed + 1, end):
                for part in rows.combine_chunks().to_batches():
                    offsets = part.column(OFFSET).to_numpy()
                    self._batches.append(PendingRows(shape, int(offsets[0]), offsets, part))

    def now(self, shape: CollectionShape, key: Key) -> Row | None:
        """Return the row of a key, whole, after the latest change.

        Raises:
            SinkUnavailable, InvariantViolated: the log cannot be read.
        """
        kept = self._kept.setdefault(shape.name, OrderedDict())
        found = kept.get(key)
        newest = (found.offset, found.row) if found is not None else None
        wanted = _hash(shape.table, key)
        for batch in self._batches:
            if batch.table.id == shape.table.id and (said := batch.newest(key, wanted)) is not None:
                newest = said if newest is None or said[0] > newest[0] else newest
        if newest is None:
            newest = self._indexed, self._of_log(shape, key, wanted)
            self._keep(shape, key, *newest)
        elif found is not None:
            kept.move_to_end(key)
        row = newest[1]
        return None if row is None else {name: row.get(name) for name in shape.properties}

    def record_row(self, shape: CollectionShape, key: Key, offset: int, row: Row | None) -> None:
        """Record that a row was appended at an offset; `row` None: that it was deleted."""
        self._keep(shape, key, offset, row)
        self._in_log.add(shape.name)

    def written_in_bulk(self, shape: CollectionShape, first_offset: int, rows: pa.RecordBatch) -> None:
        """Record that rows were appended, starting at an offset. `rows`: the table's columns, and `_op`."""
        offsets = np.arange(first_offset, first_offset + rows.num_rows, dtype=np.int64)
        batch = PendingRows(shape.table, first_offset, offsets, rows)
        self._batches.append(batch)
        self._in_log.add(shape.name)
        kept = self._kept.get(shape.name)
        if kept:
            # A cached row must not outlive the batch: then the older one would count.
            own = np.isin(_hashes(shape.table, list(kept)), batch.hashes)
            for key in [key for key, is_there in zip(kept, own, strict=True) if is_there]:
                if batch.newest(key, _hash(shape.table, key)) is not None:
                    self._bytes -= kept.pop(key).bytes

    def may_be_there(self, shape: CollectionShape, wanted: Hashes) -> npt.NDArray[np.bool_]:
        """Return, for each hash of a key, whether a row may exist. False is certain."""
        found = np.zeros(len(wanted), np.bool_)
        if shape.name in self._in_log:
            found = self._log.may_have(shape.table.id, wanted, self._indexed)
        for batch in self._batches:
            if batch.table.id == shape.table.id:
                said = batch.are_deleted(wanted)
                found = np.where(said < 0, found, said == 0)
        kept = self._kept.get(shape.name)
        if kept:
            own = _hashes(shape.table, list(kept))
            there = np.array([one.row is not None for one in kept.values()], np.bool_)
            # Of two keys with one hash either may exist.
            found = (found & ~np.isin(wanted, own[~there])) | np.isin(wanted, own[there])
        return found

    def forget_indexed(self) -> None:
        """Release the rows that the index has. To be called from time to time, between two transactions."""
        indexed = self._log.indexed_to()
        if indexed <= self._indexed:
            return
        self._indexed = indexed
        self._batches = [batch for batch in self._batches if batch.last_offset > indexed]
        for kept in self._kept.values():
            while kept and (len(kept) > ROWS_KEPT or self._bytes > BYTES_KEPT):
                key, oldest = next(iter(kept.items()))
                if oldest.offset > indexed:
                    break
                del kept[key]
                self._bytes -= oldest.bytes

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _of_log(self, shape: CollectionShape, key: Key, wanted: np.uint64) -> Mapping[str, Any] | None:
        if shape.name not in self._in_log or not self._indexed:
            return None
        if not self._log.may_have(shape.table.id, np.array([wanted], np.uint64), self._indexed)[0]:
            return None
        types = [shape.table.row_schema.field(name).type for name in shape.table.key]
        texts = [text_of(value, of) for value, of in zip(key, types, strict=True)]
        found = self._log.get(str(shape.table.id), *texts, as_of=self._indexed)
        if found.state == "not known" or found.unknown:
            raise InvariantViolated(
                f"looking for a row of {shape.table.id}: "
                f"{'; '.join(found.notes) or 'the log does not have all of its values'}",
                runbook="log-damaged",
            )
        return found.values

    def _keep(self, shape: CollectionShape, key: Key, offset: int, row: Row | None) -> None:
        kept = self._kept.setdefault(shape.name, OrderedDict())
        before = kept.pop(key, None)
        size = 100 if row is None else sum(len(value) if isinstance(value, str) else 50 for value in row.values())
        kept[key] = _Kept(offset, row, size)
        self._bytes += size - (0 if before is None else before.bytes)


def _hashes(table: Table, keys: list[Key]) -> Hashes:
    types = [table.row_schema.field(name).type for name in table.key]
    return hashes([pa.array([key[n] for key in keys], of) for n, of in enumerate(types)])


def _hash(table: Table, key: Key) -> np.uint64:
    return _hashes(table, [key])[0]  # type: ignore[no-any-return]  # an element of an array of them
