"""Sealed change logs of any size, written in columns: input of a merge, without a source and without a capture.

The segments are as the capture seals them: one Parquet file a table, sorted by offset, with a manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.log.files.layout import Layout, LogFile
from cdcflow.log.files.segment_writer import HAND_ON_ROWS, file_name
from cdcflow.log.files.tally import ShapeTally
from cdcflow.log.format.rows import ShapeEntry
from cdcflow.log.format.segment import TRANSACTIONS_SCHEMA, Segment, SegmentFile
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position, SourceIdentity
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Column, Table, TableId
from cdcflow.model.types import ColumnType

ROW_GROUP = 1 << 17
COLUMNS: Mapping[str, pa.DataType] = {
    "id": pa.int64(),
    "qty": pa.int32(),
    "price": pa.float64(),
    "at": pa.timestamp("us", tz="UTC"),
    "note": pa.string(),
    "doc": pa.string(),
}


def table(name: str) -> Table:
    """A table of six columns with the key `id`."""
    columns = tuple(Column(n, i, ColumnType(str(a), a)) for i, (n, a) in enumerate(COLUMNS.items(), start=1))
    return Table(TableId("shop", name), 1, columns, ("id",))


def rows(ids: np.ndarray[Any, Any], seed: int) -> pa.RecordBatch:
    """A row for each id, in the columns of `COLUMNS`; other seeds give other values."""
    chance = np.random.default_rng(seed)
    count = len(ids)
    words = pa.array([hashlib.md5(str(n).encode()).hexdigest() for n in range(4096)])  # noqa: S324 - just words
    picked = [words.take(pa.array(chance.integers(0, 4096, count))) for _ in range(2)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids.astype(np.int64)),
            pa.array(chance.integers(0, 1000, count).astype(np.int32)),
            pa.array(chance.random(count)),
            pa.array(1_700_000_000_000_000 + chance.integers(0, 10**12, count), pa.timestamp("us", tz="UTC")),
            *picked,
        ],
        names=list(COLUMNS),
    )


def begin(root: Path, log_id: str) -> None:
    """An empty log."""
    root.mkdir(parents=True, exist_ok=True)
    source = SourceIdentity("postgres", "1", "shop")
    Layout(root).log_json.write_text(LogFile(log_id, source, "2026-01-01").to_json())


def seal(
    root: Path,
    log_id: str,
    offsets: tuple[int, int],
    cut: int,
    files: Sequence[SegmentFile],
    progress: Mapping[str, Mapping[str, Any]],
    commit_clock: int | None = None,
) -> None:
    """The manifest of a segment whose files are written: a segment of one cut, each change a transaction.
    `commit_clock`: that of its last transaction, if requested."""
    first, last = offsets
    checkpoint = Checkpoint(
        position=Position(f"0/{last + 1:X}"),
        next_offset=Offset(last + 1),
        next_transaction=last + 1,
        cut=cut,
        commit_clock=1_700_000_000_000_000 + last + 1 if commit_clock is None else commit_clock,
        epoch=Epoch(1),
        progress={"version": 1, "tables": dict(progress)},
    )
    segment = Segment(
        log_id=log_id,
        first_offset=first,
        last_offset=last,
        first_transaction=first,
        last_transaction=last,
        first_cut=cut,
        last_cut=cut,
        files=tuple(files),
        checkpoint=json.loads(checkpoint.to_json()),
        previous="",
        epoch=1,
    )
    (Layout(root).segment(first, last) / "segment.json").write_text(segment.to_json())


def entry(path: Path, shape: Table, version: int, written: pa.Table, sha256: str = "") -> SegmentFile:
    """What sealing returns for a file with these rows of the log, which is written."""
    tally = ShapeTally(ShapeEntry(shape, version))
    for batch in written.to_batches(max_chunksize=HAND_ON_ROWS):
        tally.add(batch, 0)
    return tally.entry(path.name, path.stat().st_size, sha256)


@dataclass
class SealedLog:
    """A log that grows by one segment at a time. `has_transactions`: with the file of its transactions."""

    root: Path
    next_offset: int = 1
    cut: int = 0
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    has_transactions: bool = False

    def __post_init__(self) -> None:
        begin(self.root, "log-of-a-bench")

    def segment(self, changes: Mapping[Table, pa.RecordBatch], op: str, unchanged: tuple[str, ...] = ()) -> int:
        """Seal these rows, all by the same kind of change; the cut. `unchanged`: columns that every change omitted."""
        first = self.next_offset
        self.cut += 1
        room = Layout(self.root).segment(first, first + sum(b.num_rows for b in changes.values()) - 1)
        room.mkdir(parents=True)
        files = []
        for shape, batch in changes.items():
            files.append(self._file(room, shape, batch, op, unchanged))
            self.next_offset += batch.num_rows
            self.progress[str(shape.id)] = {"state": "done", "generation": 1, "since": 1}
        if self.has_transactions:
            files.append(_transactions(room, first, self.next_offset - 1))
        seal(self.root, "log-of-a-bench", (first, self.next_offset - 1), self.cut, files, self.progress)
        return self.cut

    def _file(
        self, room: Path, shape: Table, batch: pa.RecordBatch, op: str, unchanged: tuple[str, ...]
    ) -> SegmentFile:
        count, first = batch.num_rows, self.next_offset
        offsets = pa.array(np.arange(first, first + count))
        named: dict[str, pa.Array] = {
            OFFSET: offsets,
            TRANSACTION: offsets,
            COMMIT_TS: offsets.cast(pa.timestamp("us", tz="UTC")),
            OP: pa.array([op]).take(pa.array(np.zeros(count, np.int64))),
        }
        schema = shape.log_schema
        for column in schema:
            if column.name in batch.schema.names and column.name not in unchanged:
                named[column.name] = batch[column.name]
            elif column.name == UNCHANGED and unchanged:
                named[UNCHANGED] = pa.array([list(unchanged)], column.type).take(pa.array(np.zeros(count, np.int64)))
            elif column.name not in named:
                named[column.name] = pa.nulls(count, column.type)
        assert BEFORE in named
        path = room / file_name(shape, 1)
        written = pa.Table.from_arrays([named[c.name].cast(c.type) for c in schema], schema=schema)
        pq.write_table(written, path, row_group_size=ROW_GROUP, compression="zstd")
        return entry(path, shape, 1, written)


__all__ = ["COLUMNS", "SealedLog", "begin", "entry", "rows", "seal", "table"]


def _transactions(room: Path, first: int, last: int) -> SegmentFile:
    """A transaction for each offset."""
    numbers = pa.array(np.arange(first, last + 1))
    count = last + 1 - first
    times = pa.array(np.arange(first, last + 1) + 1_700_000_000_000_000).cast(pa.timestamp("us", tz="UTC"))
    columns = {
        **dict.fromkeys(("number", "first_offset", "last_offset"), numbers),
        "position": pc.binary_join_element_wise("0", numbers.cast(pa.string()), "/"),
        "xid": numbers.cast(pa.uint64()),
        **dict.fromkeys(("commit_ts", "commit_clock"), times),
        "kind": pa.array(["source"]).take(pa.array(np.zeros(count, np.int64))),
        "origin": pa.nulls(count, pa.string()),
    }
    path = room / "transactions.parquet"
    pq.write_table(pa.table(columns, TRANSACTIONS_SCHEMA), path, row_group_size=ROW_GROUP)
    return SegmentFile(path.name, count, path.stat().st_size, "")
