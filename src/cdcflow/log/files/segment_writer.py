"""Turn a journal into a segment: frames in, Parquet per table shape out, in memory that does not grow with the journal.

Rows that are already in a separate file are adopted with that file: the file of their shape that is being written ends
before them, and a new one begins after them. So of two files of one shape one ends before the other begins.

Rows are gathered per shape until they fill a row group. There are two bounds: a row group's rows, and the bytes
gathered over all shapes (if these are exceeded, the largest is written early). The same amount again may be in flight
to the files at that time.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.log.files.parquet import OpenTarget, Parquet, TaskThread
from cdcflow.log.files.tally import ShapeTally
from cdcflow.log.format.journal import AttachedFile, AttachedSpool, CutMark, Owners, Progressed, Record
from cdcflow.log.format.rows import ShapeEntry, ShapeRows, with_omitted_columns
from cdcflow.log.format.segment import TRANSACTIONS_SCHEMA, Segment, SegmentFile, newest_xid
from cdcflow.log.format.transactions import TransactionHeaders, join_headers
from cdcflow.model.change import Int64s, Kind
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.model.table import Table

HAND_ON_ROWS = 16 << 10
HAND_ON_RUNS = 1 << 10  # small runs; more at once would keep other threads from running
NAME_MAX = 200
GATHERED_BYTES_MAX = 32 << 20


TakeOver = Callable[[AttachedFile, str], None]
"""Adds an attached file to the segment being written, under a name."""


def _nothing_attached(record: AttachedFile, _name: str) -> None:
    raise InvariantViolated(f"sealing a journal: it names a file ({record.name}), and no file was expected")


def file_name(table: Table, version: int, part: int = 1) -> str:
    """Return a Parquet file's name in its segment; `part` counts the files of one shape in it. Every character that is
    not plainly safe is percent-encoded, including dots in names, so that no table's name can reach outside the
    directory or be mistaken for another's (hard case S11). A name that is too long for a file system ends with `~` and
    a hash instead."""
    schema, name = (quote(p, safe="").replace(".", "%2E").replace("~", "%7E") for p in (table.id.schema, table.id.name))
    full = f"{schema}.{name}"
    if full.startswith("_"):
        full = f"%5F{full[1:]}"  # Spark treats files with a leading underscore as hidden, and would silently skip them
    if len(full) > NAME_MAX:
        full = f"{full[: NAME_MAX - 33]}~{hashlib.sha256(full.encode()).hexdigest()[:32]}"
    return f"{full}.{version}.parquet" if part == 1 else f"{full}.{version}-{part}.parquet"


@lru_cache(maxsize=1024)
def check_storable(table: Table) -> None:
    """Raise ConfigurationError if Parquet cannot hold a column. Called before the first row of the column is in a
    journal."""
    for column in table.log_schema:
        try:
            with pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([column])):
                pass
        except pa.ArrowNotImplementedError:  # Arrow's error if Parquet has no such type
            raise ConfigurationError(
                f"storing {table.id}: Parquet has no type for column {column.name} ({column.type})",
                remedy="capture the column as text, or leave the table out",
                runbook="value-not-representable",
            ) from None


def seal(
    records: Iterator[Record],
    spooled: Callable[[AttachedSpool], Iterator[ShapeRows]],
    open_target: OpenTarget,
    *,
    log_id: str,
    base: Checkpoint,
    epoch: Epoch,
    previous: str,
    previous_offset: int | None = None,
    xid_newest: int | None = None,
    take_over: TakeOver = _nothing_attached,
) -> Segment:
    """Write the Parquet files of one segment from a journal's records, and return its manifest.

    `base` is the checkpoint at which the journal begins; `previous`, `previous_offset` and `xid_newest` are taken from
    the segment before (see `Segment`). `take_over` places attached files next to the written ones. On return every file
    is closed, nothing is synced.
    """
    writing = _Writing(open_target, xid_newest, take_over)
    try:
        first_cut, checkpoint = _write_records(records, spooled, writing)
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
        previous_offset=previous_offset,
        xid_min=writing.ids.least,
        xid_max=writing.ids.most,
        xid_newest=writing.ids.newest,
    )


def _write_records(
    records: Iterator[Record], spooled: Callable[[AttachedSpool], Iterator[ShapeRows]], writing: _Writing
) -> tuple[int, Checkpoint]:
    """Write all records. Return the number of the first cut, and the checkpoint of the last one."""
    versions: dict[Table, int] = {}
    checkpoint: Checkpoint | None = None
    first_cut = 0
    for record in records:
        match record:
            case ShapeEntry():
                versions[record.table] = record.version
            case TransactionHeaders():
                writing.transactions(record)
            case ShapeRows():
                writing.rows(record)
            case AttachedSpool():
                for rows in spooled(record):
                    shape = ShapeEntry(rows.shape.table, versions[rows.shape.table])
                    writing.rows(replace(rows, shape=shape))
            case AttachedFile():
                writing.file(record)
            case CutMark():
                checkpoint = record.checkpoint
                first_cut = first_cut or checkpoint.cut
            case Progressed():
                pass
            case _:
                raise InvariantViolated(f"sealing a journal: a {type(record).__name__} does not belong there")
    if checkpoint is None:
        raise InvariantViolated("sealing a journal: it has no cut")
    return first_cut, checkpoint


@dataclass(slots=True)
class _Ids:
    """Computes the bounds of the transaction ids of a segment (see `Segment`)."""

    newest: int | None
    least: int | None = None
    most: int | None = None

    def add(self, runs: Sequence[TransactionHeaders]) -> None:
        found = [r.xid for r in runs if r.kind is Kind.SOURCE]
        if found:
            ids = np.concatenate(found).astype(np.uint32)  # the low 32 bits
            least, most = int(ids.min()), int(ids.max())
            self.least = least if self.least is None else min(self.least, least)
            self.most = most if self.most is None else max(self.most, most)
            self.newest = newest_xid(self.newest, ids)


@dataclass(slots=True)
class _Gathered:
    """Rows of one shape waiting to be written to its file: many small frames become one batch."""

    parquet: Parquet
    tally: ShapeTally
    rows: list[ShapeRows] = field(default_factory=list)
    last_offset: int = 0

    def add(self, rows: ShapeRows) -> None:
        first = int(rows.offsets[0])
        if first <= self.last_offset:
            table = self.tally.shape.table.id
            raise InvariantViolated(f"sealing {table}: offset {first} comes after {self.last_offset}")
        self.last_offset = int(rows.offsets[-1])
        self.rows.append(rows)

    def hand_on(self, owners: Owners) -> None:
        if not self.rows:
            return
        table = self.tally.shape.table
        left_out, rows = _together(table, self.rows)
        batch = owners.log_rows(table, _concatenate([r.offsets for r in self.rows]), rows)
        self.rows = []
        self.tally.add(batch, left_out)
        self.parquet.add(batch)


def _together(table: Table, rows: Sequence[ShapeRows]) -> tuple[int, pa.RecordBatch]:
    """Return some rows of one shape as one batch. Also return, as a set of bits, the columns that the batch lacks,
    because they are not stored in any of the rows; 0 if the batch has all columns."""
    left_out = rows[0].left_out
    if any(r.left_out != left_out for r in rows):
        whole = pa.Table.from_batches([r.rows for r in rows], table.change_schema)
        return 0, whole.combine_chunks().to_batches()[0]
    stored = rows[0].stored
    if len(rows) > 1:
        stored = pa.Table.from_batches([r.stored for r in rows]).combine_chunks().to_batches()[0]
    counts = [len(r.offsets) for r in rows]
    return left_out, with_omitted_columns(table, stored, left_out, [r.op for r in rows], counts) if left_out else stored


def _concatenate(arrays: list[Int64s]) -> Int64s:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class _Writing:
    """The files of one segment, as they grow."""

    def __init__(self, open_target: OpenTarget, xid_newest: int | None, take_over: TakeOver) -> None:
        self._open = open_target
        self._take_over = take_over
        self._encoder = TaskThread()
        self._tables: dict[ShapeEntry, _Gathered] = {}
        self._parts: Counter[ShapeEntry] = Counter()
        self._done: list[SegmentFile] = []
        name = "transactions.parquet"
        self._transactions = Parquet(name, TRANSACTIONS_SCHEMA, open_target(name), (), self._encoder)
        self._runs: list[TransactionHeaders] = []
        self._runs_known = 0  # how many of them (0 or 1) have their headers in the file already
        self._rows = 0
        self._bytes = 0
        self.ids = _Ids(xid_newest)

    def transactions(self, run: TransactionHeaders) -> None:
        if len(self._runs) >= HAND_ON_RUNS:
            self._hand_on()
        self._runs.append(run)

    def rows(self, rows: ShapeRows) -> None:
        gathered = self._tables.get(rows.shape)
        if gathered is None:
            table = rows.shape.table
            name = self._next_name(rows.shape)
            parquet = Parquet(name, table.log_schema, self._open(name), table.key, self._encoder)
            gathered = self._tables[rows.shape] = _Gathered(parquet, ShapeTally(rows.shape))
        gathered.add(rows)
        self._rows += len(rows.offsets)
        self._bytes += rows.stored.get_total_buffer_size()
        if self._rows >= HAND_ON_ROWS or self._bytes >= GATHERED_BYTES_MAX:
            self._hand_on()

    def file(self, attached: AttachedFile) -> None:
        """Add an attached file with the run's rows. The open file of its shape, which has the rows before them, is
        closed."""
        gathered = self._tables.get(attached.shape)
        if gathered is not None:
            self._hand_on()
            self._done.append(gathered.tally.file(gathered.parquet))
            del self._tables[attached.shape]
        name = self._next_name(attached.shape)
        self._take_over(attached, name)
        self._done.append(replace(attached.file, path=name))

    def _next_name(self, shape: ShapeEntry) -> str:
        self._parts[shape] += 1
        return file_name(shape.table, shape.version, self._parts[shape])

    def _hand_on(self) -> None:
        if not self._rows and len(self._runs) == self._runs_known:
            return
        headers = join_headers(self._runs)
        owners = Owners.of(headers)
        for gathered in self._tables.values():
            gathered.hand_on(owners)
        new = self._runs[self._runs_known :]
        if new:
            self._transactions.add(headers.slice(headers.num_rows - sum(len(r.ends) for r in new)))
            self.ids.add(new)
        self._runs, self._runs_known = self._runs[-1:], 1  # the last run may continue
        self._rows = self._bytes = 0
        files = [self._transactions, *(g.parquet for g in self._tables.values())]
        while sum(f.gathered_bytes for f in files) > GATHERED_BYTES_MAX:
            max(files, key=lambda f: f.gathered_bytes).put()

    def give_up(self) -> None:
        self._encoder.close()
        for parquet in (self._transactions, *(g.parquet for g in self._tables.values())):
            parquet.give_up()

    def close(self) -> Iterator[SegmentFile]:
        self._hand_on()
        size, sha256 = self._transactions.close()
        yield SegmentFile(self._transactions.name, self._transactions.rows, size, sha256)
        yield from self._done
        for gathered in self._tables.values():
            yield gathered.tally.file(gathered.parquet)
        self._encoder.close()
