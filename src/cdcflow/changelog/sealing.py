"""From journal to segment: frames in, Parquet per table shape out, in memory that does not grow with the journal.

Rows are gathered per shape until they make a row group. Two bounds hold: a row group's rows, and the bytes gathered
over all shapes (then the fullest goes out early). As much again may be on its way into the files meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.changelog.journal import Attach, CutMark, Owners, Progressed, Record
from cdcflow.changelog.keyruns import KeyRuns
from cdcflow.changelog.parquet import PLAIN_ORDER, Beside, OpenTarget, Parquet
from cdcflow.changelog.rows import NO_BEFORE, NO_UNCHANGED, Rows, Shape, filled
from cdcflow.changelog.segment import TRANSACTIONS_SCHEMA, Segment, SegmentFile, newest_xid
from cdcflow.changelog.transactions import Transactions, joined
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.change import DELETE, INSERT, READ, Int64s, Kind
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.model.table import BEFORE, OFFSET, OP, UNCHANGED, Table

HAND_ON_ROWS = 16 << 10
HAND_ON_RUNS = 1 << 10  # of small runs; more at once would keep other threads from running
NAME_MAX = 200
GATHERED_BYTES_MAX = 32 << 20


def file_name(table: Table, version: int) -> str:
    """A Parquet file's name in its segment. Whatever is not plainly safe is percent-encoded, dots in names too,
    so that no table's name can reach outside the directory or be taken for another's (hard case S11). What is too
    long for a file system ends with `~` and a hash instead."""
    schema, name = (quote(p, safe="").replace(".", "%2E").replace("~", "%7E") for p in (table.id.schema, table.id.name))
    full = f"{schema}.{name}"
    if full.startswith("_"):
        full = f"%5F{full[1:]}"  # what begins so is hidden from Spark, which would read nothing without a word
    if len(full) > NAME_MAX:
        full = f"{full[: NAME_MAX - 33]}~{hashlib.sha256(full.encode()).hexdigest()[:32]}"
    return f"{full}.{version}.parquet"


@lru_cache(maxsize=1024)
def check_storable(table: Table) -> None:
    """ConfigurationError if Parquet cannot hold a column: before the first row of it is in a journal, not after."""
    for column in table.log_schema:
        try:
            with pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([column])):
                pass
        except pa.ArrowNotImplementedError:  # how Arrow says that Parquet has no such type
            raise ConfigurationError(
                f"storing {table.id}: Parquet has no type for column {column.name} ({column.type})",
                remedy="capture the column as text, or leave the table out",
                runbook="value-not-representable",
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
    previous_offset: int | None = None,
    xid_newest: int | None = None,
) -> Segment:
    """Write the Parquet files of one segment from a journal's records, and return its manifest.

    `base` is the checkpoint that the journal begins at; `previous`, `previous_offset` and `xid_newest` come from the
    segment before (see `Segment`). On return every file is closed, nothing is synced.
    """
    writing = _Writing(open_target, xid_newest)
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
        previous_offset=previous_offset,
        xid_min=writing.ids.least,
        xid_max=writing.ids.most,
        xid_newest=writing.ids.newest,
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
                writing.transactions(record)
            case Rows():
                writing.rows(record)
            case Attach():
                for rows in spooled(record):
                    shape = Shape(rows.shape.table, versions[rows.shape.table])
                    writing.rows(replace(rows, shape=shape))
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
class Tally:
    """What the manifest tells of one shape's rows."""

    shape: Shape
    first_offset: int = 0
    last_offset: int = 0
    ops: dict[str, int] = field(default_factory=dict)
    partial: int = 0
    moved: int = 0
    key_min: pa.Scalar | None = None
    key_max: pa.Scalar | None = None
    key_runs: KeyRuns = field(default_factory=KeyRuns)

    def add(self, batch: pa.RecordBatch, left_out: int) -> None:
        """Count rows of the log; `left_out` says which of their columns were not stored (see `rows`)."""
        offsets = batch.column(OFFSET)
        self.first_offset = self.first_offset or offsets[0].as_py()
        self.last_offset = offsets[-1].as_py()
        for entry in pc.value_counts(batch.column(OP)).to_pylist():  # at most one entry an op
            self.ops[entry["values"]] = self.ops.get(entry["values"], 0) + entry["counts"]
        if not left_out & NO_UNCHANGED:
            self.partial += _count(batch, UNCHANGED, pc.not_equal(batch.column(OP), DELETE))
        if not left_out & NO_BEFORE:
            self.moved += _count(batch, BEFORE, pc.equal(batch.column(OP), INSERT))
        self._bound_key(batch)
        self._run_key(batch)

    def file(self, parquet: Parquet) -> SegmentFile:
        """Close the file that has these rows; its entry in the manifest."""
        return self.entry(parquet.name, *parquet.close())

    def entry(self, name: str, size: int, sha256: str) -> SegmentFile:
        """The manifest's entry of a file of this name, size and content."""
        return SegmentFile(
            name,
            sum(self.ops.values()),
            size,
            sha256,
            self.shape.table.to_json(),
            self.shape.version,
            self.first_offset,
            self.last_offset,
            _text(self.key_min),
            _text(self.key_max),
            dict(sorted(self.ops.items())),
            self.partial,
            self.moved,
            self.key_runs.text(),
        )

    def _run_key(self, batch: pa.RecordBatch) -> None:
        key = self.shape.table.key[:1]
        if key and self.ops.keys() <= {INSERT, READ}:
            self.key_runs.add(batch.column(key[0]))
        else:  # a merge has to reduce it anyway
            self.key_runs.give_up()

    def _bound_key(self, batch: pa.RecordBatch) -> None:
        key = self.shape.table.key[:1]
        if not key or not any(plain(batch.schema.field(key[0]).type) for plain in PLAIN_ORDER):
            return
        found = pc.min_max(batch.column(key[0]))
        if found["min"].is_valid:
            # Not `min_element_wise`: Arrow has none for times with a zone.
            ends = pa.array([self.key_min, self.key_max, found["min"], found["max"]], found["min"].type)
            found = pc.min_max(ends)
            self.key_min, self.key_max = found["min"], found["max"]


def _count(batch: pa.RecordBatch, column: str, where: pa.Array) -> int:
    """Rows with a value in `column`, among those of `where`."""
    values = batch.column(column)
    if values.null_count == len(values):
        return 0
    return int(pc.sum(pc.and_(pc.is_valid(values), where)).as_py() or 0)


@dataclass(slots=True)
class _Ids:
    """The bounds of the transaction ids of a segment (see `Segment`)."""

    newest: int | None
    least: int | None = None
    most: int | None = None

    def add(self, runs: Sequence[Transactions]) -> None:
        found = [r.xid for r in runs if r.kind is Kind.SOURCE]
        if found:
            ids = np.concatenate(found).astype(np.uint32)  # the low 32 bits
            least, most = int(ids.min()), int(ids.max())
            self.least = least if self.least is None else min(self.least, least)
            self.most = most if self.most is None else max(self.most, most)
            self.newest = newest_xid(self.newest, ids)


@dataclass(slots=True)
class _Gathered:
    """Rows of one shape on their way into its file: many small frames become one batch."""

    parquet: Parquet
    tally: Tally
    rows: list[Rows] = field(default_factory=list)
    last_offset: int = 0

    def add(self, rows: Rows) -> None:
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
        batch = owners.log_rows(table, _one([r.offsets for r in self.rows]), rows)
        self.rows = []
        self.tally.add(batch, left_out)
        self.parquet.add(batch)


def _together(table: Table, rows: Sequence[Rows]) -> tuple[int, pa.RecordBatch]:
    """All columns of some rows of one shape as one batch, and which of these columns none of the rows has stored."""
    left_out = rows[0].left_out
    if any(r.left_out != left_out for r in rows):
        whole = pa.Table.from_batches([r.rows for r in rows], table.change_schema)
        return 0, whole.combine_chunks().to_batches()[0]
    stored = rows[0].stored
    if len(rows) > 1:
        stored = pa.Table.from_batches([r.stored for r in rows]).combine_chunks().to_batches()[0]
    counts = [len(r.offsets) for r in rows]
    return left_out, filled(table, stored, left_out, [r.op for r in rows], counts) if left_out else stored


def _one(arrays: list[Int64s]) -> Int64s:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class _Writing:
    """The files of one segment, as they grow."""

    def __init__(self, open_target: OpenTarget, xid_newest: int | None) -> None:
        self._open = open_target
        self._beside = Beside()
        self._tables: dict[Shape, _Gathered] = {}
        name = "transactions.parquet"
        self._transactions = Parquet(name, TRANSACTIONS_SCHEMA, open_target(name), (), self._beside)
        self._runs: list[Transactions] = []
        self._runs_known = 0  # of them, those whose headers are in the file already: one or none
        self._rows = 0
        self._bytes = 0
        self.ids = _Ids(xid_newest)

    def transactions(self, run: Transactions) -> None:
        if len(self._runs) >= HAND_ON_RUNS:
            self._hand_on()
        self._runs.append(run)

    def rows(self, rows: Rows) -> None:
        gathered = self._tables.get(rows.shape)
        if gathered is None:
            table = rows.shape.table
            name = file_name(table, rows.shape.version)
            parquet = Parquet(name, table.log_schema, self._open(name), table.key, self._beside)
            gathered = self._tables[rows.shape] = _Gathered(parquet, Tally(rows.shape))
        gathered.add(rows)
        self._rows += len(rows.offsets)
        self._bytes += rows.stored.get_total_buffer_size()
        if self._rows >= HAND_ON_ROWS or self._bytes >= GATHERED_BYTES_MAX:
            self._hand_on()

    def _hand_on(self) -> None:
        if not self._rows:
            return
        headers = joined(self._runs)
        owners = Owners.of(headers)
        for gathered in self._tables.values():
            gathered.hand_on(owners)
        new = self._runs[self._runs_known :]
        if new:
            self._transactions.add(headers.slice(headers.num_rows - sum(len(r.ends) for r in new)))
            self.ids.add(new)
        self._runs, self._runs_known = self._runs[-1:], 1  # the last run may go on
        self._rows = self._bytes = 0
        files = [self._transactions, *(g.parquet for g in self._tables.values())]
        while sum(f.gathered_bytes for f in files) > GATHERED_BYTES_MAX:
            max(files, key=lambda f: f.gathered_bytes).put()

    def give_up(self) -> None:
        self._beside.close()
        for parquet in (self._transactions, *(g.parquet for g in self._tables.values())):
            parquet.give_up()

    def close(self) -> Iterator[SegmentFile]:
        self._hand_on()
        size, sha256 = self._transactions.close()
        yield SegmentFile(self._transactions.name, self._transactions.rows, size, sha256)
        for gathered in self._tables.values():
            yield gathered.tally.file(gathered.parquet)
        self._beside.close()


def _text(scalar: pa.Scalar | None) -> str | None:
    return None if scalar is None else str(scalar.cast(pa.string()).as_py())
