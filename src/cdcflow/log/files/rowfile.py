"""Rows that are written to Parquet only once: a file next to the journal, which the later segment adopts unchanged.

    run of one shape ─▶ Parquet, with offsets ─▶ journal: name, length, sha256, bounds ─▶ linked into the segment

The rows of a large chunk need no replay, so writing them to the journal first gains nothing. The file is written when
the offsets of its rows are known, and before the cut after it counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdcflow.errors import InvariantViolated
from cdcflow.log.files.parquet import Parquet, SegmentTarget
from cdcflow.log.files.tally import ShapeTally
from cdcflow.log.format.journal import AttachedFile
from cdcflow.log.format.rows import NO_BEFORE, NO_UNCHANGED, ShapeEntry, ShapeRows
from cdcflow.log.format.segment import SegmentFile
from cdcflow.model.change import Kind, Run
from cdcflow.model.table import BEFORE, OFFSET, UNCHANGED, Table

BATCH_ROWS = 64 << 10
_BLOCK = 1 << 20
_TIMESTAMP = pa.timestamp("us", tz="UTC")


def table_of(run: Run) -> Table | None:
    """Return the shape of a run's rows if they may be in a separate file, which requires that they are one transaction
    of a chunk and have one shape; otherwise `None`."""
    if run.kind is not Kind.READ or run.transactions != 1:
        return None
    shapes = {batch.table for batch in run.batches if batch.rows.num_rows}
    return shapes.pop() if len(shapes) == 1 else None


def write(
    run: Run, table: Table, name: str, target: SegmentTarget, *, first_offset: int, transaction: int
) -> SegmentFile:
    """Write the rows of a run (see `table_of`) to a file, with offsets starting at `first_offset`. Return its entry for
    a manifest, without table and version. The target is closed on return.

    Raises whatever the target raises; the file is then not whole.
    """
    tally = ShapeTally(ShapeEntry(table, 0))
    parquet = Parquet(name, table.log_schema, target, table.key)
    try:
        for batch in run.batches:
            if batch.rows.num_rows:
                rows = _log_rows(table, batch.rows, first_offset + int(batch.index[0]), transaction, run.last_commit_ts)
                tally.add(rows, _says_nothing(batch.rows))
                parquet.add(rows)
        return tally.file(parquet)
    except BaseException:
        parquet.give_up()
        raise


def _log_rows(
    table: Table, rows: pa.RecordBatch, first_offset: int, transaction: int, commit_ts: int
) -> pa.RecordBatch:
    count = rows.num_rows
    columns = [
        pa.array(np.arange(first_offset, first_offset + count, dtype=np.int64)),
        pa.array(np.full(count, transaction, np.int64)),
        pa.array(np.full(count, commit_ts, np.int64)).view(_TIMESTAMP),
        *rows.columns,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.log_schema)


def _says_nothing(rows: pa.RecordBatch) -> int:
    left_out = 0
    for bit, name in ((NO_UNCHANGED, UNCHANGED), (NO_BEFORE, BEFORE)):
        if rows.column(name).null_count == rows.num_rows:
            left_out |= bit
    return left_out


def is_whole(path: Path, record: AttachedFile) -> bool:
    """Return whether the file is the same as when it was attached. Raises FileNotFoundError if it does not exist."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return (size, digest.hexdigest()) == (record.file.bytes, record.file.sha256)


def rows(path: Path, record: AttachedFile) -> Iterator[ShapeRows]:
    """Yield the rows of an attached file, with their offsets.

    Raises:
        FileNotFoundError: the file does not exist: a segment has adopted it, or it was deleted.
        InvariantViolated: the file does not have the rows that were attached.
    """
    table = record.shape.table
    following = record.first_offset
    try:
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS):
                found = batch if batch.schema.equals(table.log_schema) else batch.cast(table.log_schema)
                offsets = found.column(OFFSET).to_numpy()
                if not np.array_equal(offsets, np.arange(following, following + len(offsets))):
                    raise _damaged_file(path, "its offsets are not those that were attached")
                following += len(offsets)
                stored = pa.RecordBatch.from_arrays(found.columns[3:], schema=table.change_schema)
                yield ShapeRows(record.shape, offsets, stored)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _damaged_file(path, f"it cannot be read ({type(error).__name__})") from None
    if following != record.first_offset + record.rows:
        raise _damaged_file(path, f"it has {following - record.first_offset} rows, {record.rows} were attached")


def _damaged_file(path: Path, text: str) -> InvariantViolated:
    return InvariantViolated(
        f"reading {path}: {text}",
        remedy="run `cdcflow log check`, and restore the file from a copy",
        runbook="log-damaged",
    )
