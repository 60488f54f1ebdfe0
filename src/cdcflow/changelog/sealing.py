"""From journal to segment: frames in, Parquet per table shape out, in memory that does not grow with the journal.

Rows are gathered per shape until they make a row group. Two bounds hold: a row group's rows, and the bytes gathered
over all shapes (then the fullest goes out early).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.changelog.journal import Attach, CutMark, Owners, Record, Rows, Shape, Transactions
from cdcflow.changelog.segment import TRANSACTIONS_SCHEMA, Segment, SegmentFile
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.change import DELETE, INSERT, Int64s
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Table

GROUP_ROWS_MAX = 128 << 10
HAND_ON_ROWS = 16 << 10
NAME_MAX = 200
GATHERED_BYTES_MAX = 64 << 20

_PLAIN_ORDER = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp)


class Target(Protocol):
    """One file of the segment being made: written from front to back, and closed when it is whole."""

    def write(self, content: bytes, /) -> int: ...
    def close(self) -> None: ...


OpenTarget = Callable[[str], Target]


def file_name(table: Table, version: int) -> str:
    """A Parquet file's name in its segment. Whatever is not plainly safe is percent-encoded, dots in names too,
    so that no table's name can reach outside the directory or be taken for another's (hard case S11). What is too
    long for a file system ends with `~` and a hash instead."""
    schema, name = (quote(p, safe="").replace(".", "%2E").replace("~", "%7E") for p in (table.id.schema, table.id.name))
    full = f"{schema}.{name}"
    if len(full) > NAME_MAX:
        full = f"{full[: NAME_MAX - 33]}~{hashlib.sha256(full.encode()).hexdigest()[:32]}"
    return f"{full}.{version}.parquet"


@lru_cache(maxsize=1024)
def check_storable(table: Table) -> None:
    """ConfigurationError if Parquet cannot hold a column: before the first row of it is in a journal, not after."""
    for column in table.row_schema:
        try:
            with pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([column])):
                pass
        except pa.ArrowNotImplementedError:  # how Arrow says that Parquet has no such type
            raise ConfigurationError(
                f"storing {table.id}: Parquet has no type for column {column.name} ({column.type})",
                remedy="capture the column as text, or leave the table out",
            ) from None


def seal(
    records: Iterator[Record],
    spooled: Callable[[Attach], Iterator[Rows]],
    open_target: OpenTarget,
    *,
    log_id: str,
    base: Checkpoint,
    epoch: Epoch,
    previous: str,
) -> Segment:
    """Write the Parquet files of one segment from a journal's records, and return its manifest.

    `base` is the checkpoint that the journal begins at. On return every file is closed, nothing is synced.
    """
    writing = _Writing(open_target)
    try:
        first_cut, checkpoint = _written(records, spooled, writing)
        files = tuple(writing.close())
    except BaseException:
        writing.give_up()
        raise
    return Segment(
        log_id=log_id,
        first_offset=base.next_offset,
        last_offset=checkpoint.next_offset - 1,
        first_transaction=base.next_transaction,
        last_transaction=checkpoint.next_transaction - 1,
        first_cut=first_cut,
        last_cut=checkpoint.cut,
        files=files,
        checkpoint=json.loads(checkpoint.to_json()),
        previous=previous,
        epoch=epoch,
    )


def _written(
    records: Iterator[Record], spooled: Callable[[Attach], Iterator[Rows]], writing: _Writing
) -> tuple[int, Checkpoint]:
    """Hand all records on; the number of the first cut, and the last one's checkpoint."""
    versions: dict[Table, int] = {}
    checkpoint: Checkpoint | None = None
    first_cut = 0
    for record in records:
        match record:
            case Shape():
                versions[record.table] = record.version
            case Transactions():
                writing.transactions(record.headers)
            case Rows():
                writing.rows(record)
            case Attach():
                for rows in spooled(record):
                    shape = Shape(rows.shape.table, versions[rows.shape.table])
                    writing.rows(Rows(shape, rows.offsets, rows.rows))
            case CutMark():
                checkpoint = record.checkpoint
                first_cut = first_cut or checkpoint.cut
            case _:
                raise InvariantViolated(f"sealing a journal: a {type(record).__name__} does not belong there")
    if checkpoint is None:
        raise InvariantViolated("sealing a journal: it has no cut")
    return first_cut, checkpoint


class _Hashed:
    """Passes writes on to a target and keeps their hash, so that no file is read again for it."""

    def __init__(self, target: Target) -> None:
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

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self.bytes

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class _Parquet:
    """One Parquet file being written; what it gathers goes out as row groups."""

    def __init__(self, name: str, schema: pa.Schema, target: Target, *, rows_of_table: bool) -> None:
        self.name = name
        self._out = _Hashed(target)
        numbers = (OFFSET, TRANSACTION, COMMIT_TS) if rows_of_table else ("number", "first_offset", "last_offset")
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._out, mode="w"),
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[OP, f"{UNCHANGED}.list.element"] if rows_of_table else ["kind", "origin"],
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        )
        self._schema = schema
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
        """Write what is gathered."""
        if self._gathered_rows:
            self._writer.write_table(pa.Table.from_batches(self._gathered, self._schema), row_group_size=GROUP_ROWS_MAX)
        self._gathered, self._gathered_rows, self.gathered_bytes = [], 0, 0

    def give_up(self) -> None:
        """Close the file without another write: the segment will not be."""
        self._out.given_up = True
        self._writer.close()
        self._out.close()

    def close(self) -> tuple[int, str]:
        """Bytes and sha256 of the whole file."""
        self.put()
        self._writer.close()
        self._out.close()
        return self._out.bytes, self._out.sha256


@dataclass(slots=True)
class _Tally:
    """What the manifest tells of one shape's rows."""

    shape: Shape
    first_offset: int = 0
    last_offset: int = 0
    ops: dict[str, int] = field(default_factory=dict)
    partial: int = 0
    moved: int = 0
    key_min: pa.Scalar | None = None
    key_max: pa.Scalar | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column(OFFSET)
        self.first_offset = self.first_offset or offsets[0].as_py()
        self.last_offset = offsets[-1].as_py()
        for entry in pc.value_counts(batch.column(OP)).to_pylist():  # at most one entry an op
            self.ops[entry["values"]] = self.ops.get(entry["values"], 0) + entry["counts"]
        self.partial += _count(batch, UNCHANGED, pc.not_equal(batch.column(OP), DELETE))
        self.moved += _count(batch, BEFORE, pc.equal(batch.column(OP), INSERT))
        self._bound_key(batch)

    def _bound_key(self, batch: pa.RecordBatch) -> None:
        key = self.shape.table.key[:1]
        if not key or not any(plain(batch.schema.field(key[0]).type) for plain in _PLAIN_ORDER):
            return
        found = pc.min_max(batch.column(key[0]))
        if found["min"].is_valid:
            known = self.key_min is not None
            self.key_min = pc.min_element_wise(self.key_min, found["min"]) if known else found["min"]
            self.key_max = pc.max_element_wise(self.key_max, found["max"]) if known else found["max"]


def _count(batch: pa.RecordBatch, column: str, where: pa.Array) -> int:
    """Rows with a value in `column`, among those of `where`."""
    values = batch.column(column)
    if values.null_count == len(values):
        return 0
    return int(pc.sum(pc.and_(pc.is_valid(values), where)).as_py() or 0)


@dataclass(slots=True)
class _Gathered:
    """Rows of one shape on their way into its file: many small frames become one batch."""

    parquet: _Parquet
    tally: _Tally
    offsets: list[Int64s] = field(default_factory=list)
    rows: list[pa.RecordBatch] = field(default_factory=list)
    last_offset: int = 0

    def add(self, rows: Rows) -> None:
        first = int(rows.offsets[0])
        if first <= self.last_offset:
            table = self.tally.shape.table.id
            raise InvariantViolated(f"sealing {table}: offset {first} comes after {self.last_offset}")
        self.last_offset = int(rows.offsets[-1])
        self.offsets.append(rows.offsets)
        self.rows.append(rows.rows)

    def hand_on(self, owners: Owners) -> None:
        if not self.rows:
            return
        table = self.tally.shape.table
        rows = pa.Table.from_batches(self.rows, table.change_schema).combine_chunks().to_batches()[0]
        batch = owners.log_rows(table, np.concatenate(self.offsets), rows)
        self.offsets, self.rows = [], []
        self.tally.add(batch)
        self.parquet.add(batch)


class _Writing:
    """The files of one segment, as they grow."""

    def __init__(self, open_target: OpenTarget) -> None:
        self._open = open_target
        self._tables: dict[tuple[str, str, int], _Gathered] = {}
        name = "transactions.parquet"
        self._transactions = _Parquet(name, TRANSACTIONS_SCHEMA, open_target(name), rows_of_table=False)
        self._headers: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def transactions(self, headers: pa.RecordBatch) -> None:
        self._headers.append(headers)
        self._transactions.add(headers)

    def rows(self, rows: Rows) -> None:
        shape = rows.shape
        key = (shape.table.id.schema, shape.table.id.name, shape.version)
        if key not in self._tables:
            name = file_name(shape.table, shape.version)
            parquet = _Parquet(name, shape.table.log_schema, self._open(name), rows_of_table=True)
            self._tables[key] = _Gathered(parquet, _Tally(shape))
        self._tables[key].add(rows)
        self._rows += rows.rows.num_rows
        self._bytes += rows.rows.nbytes
        if self._rows >= HAND_ON_ROWS or self._bytes >= GATHERED_BYTES_MAX:
            self._hand_on()

    def _hand_on(self) -> None:
        if not self._rows:
            return
        owners = Owners.of(self._headers)
        for gathered in self._tables.values():
            gathered.hand_on(owners)
        self._headers = self._headers[-1:]  # the last run may go on
        self._rows = self._bytes = 0
        files = [self._transactions, *(g.parquet for g in self._tables.values())]
        while sum(f.gathered_bytes for f in files) > GATHERED_BYTES_MAX:
            max(files, key=lambda f: f.gathered_bytes).put()

    def give_up(self) -> None:
        for parquet in (self._transactions, *(g.parquet for g in self._tables.values())):
            parquet.give_up()

    def close(self) -> Iterator[SegmentFile]:
        self._hand_on()
        size, sha256 = self._transactions.close()
        yield SegmentFile(self._transactions.name, self._transactions.rows, size, sha256)
        for gathered in self._tables.values():
            parquet, tally = gathered.parquet, gathered.tally
            size, sha256 = parquet.close()
            yield SegmentFile(
                parquet.name,
                parquet.rows,
                size,
                sha256,
                tally.shape.table.to_json(),
                tally.shape.version,
                tally.first_offset,
                tally.last_offset,
                _text(tally.key_min),
                _text(tally.key_max),
                dict(sorted(tally.ops.items())),
                tally.partial,
                tally.moved,
            )


def _text(scalar: pa.Scalar | None) -> str | None:
    return None if scalar is None else str(scalar.cast(pa.string()).as_py())
