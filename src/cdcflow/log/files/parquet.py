"""One Parquet file of a segment, written from front to back: its encodings, its row groups, its hash.

The encodings were chosen by measurement (docs/changelog-format.md has the results): numbers, dates and timestamps as
differences, which costs nothing and leaves nothing for zstd to compress; texts with few distinct values in a
dictionary; everything else plain; zstd 1 over all. Bounds only for the columns that readers use to skip: `_offset` and
the key.

Encoding takes two thirds of the cost of a segment. It may run in a separate thread (`TaskThread`) while the caller
reads and gathers the next row group; the resulting bytes are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.model.table import OFFSET, OP, UNCHANGED

GROUP_ROWS_MAX = 128 << 10
WRITTEN_BYTES = 1 << 20  # per write: each write waits for the interpreter
THREADED_ROWS = 16 << 10  # below this, handing columns to threads takes longer than reading them
SAMPLE_ROWS = 1 << 10
SAMPLE_REPEATS = 4  # a text column gets a dictionary if its values occur this often in the sample

PLAIN_ORDER = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp)


def _is_short_decimal(found: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(found) and found.precision <= 18)


_STEPPING = (*PLAIN_ORDER, pa.types.is_time, _is_short_decimal)  # stored as 32- or 64-bit integers


def columns_of(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all columns of a file, or these.

    `pq.read_table` does the same, but first imports `pyarrow.dataset`, which each process would have to load.
    """
    with pq.ParquetFile(path) as file:
        found = file.read(columns)
    return found if columns is None else found.select(columns)


class SegmentTarget(Protocol):
    """A file of a segment that is written from front to back, and closed when it is whole."""

    def write(self, content: bytes, /) -> int: ...
    def close(self) -> None: ...


OpenTarget = Callable[[str], SegmentTarget]


class _Hashed:
    """Passes writes on to a target and computes their hash, so that no file has to be read again for it."""

    def __init__(self, target: SegmentTarget) -> None:
        self._target = target
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.closed = False
        self.given_up = False

    def write(self, content: bytes) -> int:
        if not self.given_up:
            self._hash.update(content)
            self.bytes += len(content)
            self._target.write(content)
        return len(content)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._target.close()

    def tell(self) -> int:
        return self.bytes

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _settings(schema: pa.Schema, rows: pa.Table, key: Sequence[str]) -> dict[str, object]:
    """Return how a file's columns are encoded, chosen from its first rows. `key`: the columns that get bounds."""
    texts = [f.name for f in schema if _is_text(f.type) and f.name != OP]
    steps = [f.name for f in schema if f.type != pa.bool_() and any(stepping(f.type) for stepping in _STEPPING)]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [OP, f"{UNCHANGED}.list.element", *repeating(rows.select(texts))],
        "column_encoding": dict.fromkeys(steps, "DELTA_BINARY_PACKED"),
        "store_decimal_as_integer": True,
        "write_statistics": [OFFSET, *key] if key else True,
    }


def _is_text(found: pa.DataType) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_binary(found))


def repeating(rows: pa.Table) -> list[str]:
    """Return the columns whose dictionary is smaller than their values, judging by the first rows."""
    sample = rows.slice(0, SAMPLE_ROWS)
    return [f.name for f in rows.schema if not pa.types.is_nested(f.type) and _repeats(sample.column(f.name))]


def _repeats(column: pa.ChunkedArray) -> bool:
    return bool(pc.count_distinct(column).as_py() * SAMPLE_REPEATS <= len(column))


class TaskThread:
    """A thread that does one task at a time, while its owner prepares the next. It starts with the first task."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Start a task; if one is running, wait until it is done first."""
        self.wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "cdcflow-encode")
        self._under_way = self._thread.submit(work)

    def wait(self) -> None:
        """Wait until the running task is done. Raises the task's error."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Wait for the running task, and ignore its error."""
        if self._thread is not None:
            self._thread.shutdown()


class Parquet:
    """One Parquet file that is being written. It gathers rows and writes them as row groups. `key`: the columns that
    get bounds (empty: all).

    With `encoder`, row groups are encoded in that thread, in turn with those of other files of the same segment.
    """

    def __init__(
        self, name: str, schema: pa.Schema, target: SegmentTarget, key: Sequence[str], encoder: TaskThread | None = None
    ) -> None:
        self.name = name
        self._out = _Hashed(target)
        self.schema = schema
        self._key = key
        self._encoder = encoder
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile  # both are set with the first rows
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self.gathered_bytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        self.gathered_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._gathered_rows >= GROUP_ROWS_MAX:
            self.put()

    def put(self) -> None:
        """Write the gathered rows, or start writing them in the encoder's thread. May raise the error of an earlier
        `put`."""
        if not self._gathered_rows:
            return
        rows = self._take_rows()
        if self._encoder is None:
            self._encode(rows)
        else:
            self._encoder.do(partial(self._encode, rows))

    def give_up(self) -> None:
        """Close the file without another write: the segment is abandoned. No task may be running any longer."""
        self._out.given_up = True
        if self._writer is not None:
            self._writer.close()
        self._out.close()

    def close(self) -> tuple[int, str]:
        """Finish the file, and return the bytes and sha256 of the whole file."""
        if self._encoder is not None:
            self._encoder.wait()
        rows = self._take_rows()
        self._encode(rows)
        self._open_writer(rows).close()
        self._sink.close()  # also closes the target
        return self._out.bytes, self._out.sha256

    def _take_rows(self) -> pa.Table:
        rows = pa.Table.from_batches(self._gathered, self.schema)
        self._gathered, self._gathered_rows, self.gathered_bytes = [], 0, 0
        return rows

    def _encode(self, rows: pa.Table) -> None:
        writer = self._open_writer(rows)
        if rows.num_rows:
            writer.write_table(rows, row_group_size=GROUP_ROWS_MAX)

    def _open_writer(self, rows: pa.Table) -> pq.ParquetWriter:
        if self._writer is None:
            settings = _settings(self.schema, rows, self._key)
            self._sink = pa.PythonFile(self._out, mode="w")
            if rows.nbytes > WRITTEN_BYTES:  # unbuffered for a small table: there may be thousands
                self._sink = pa.BufferedOutputStream(self._sink, WRITTEN_BYTES)
            self._writer = pq.ParquetWriter(self._sink, self.schema, **settings)
        return self._writer
