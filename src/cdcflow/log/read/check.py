"""Check a whole log: hashes, chain, order, gaplessness, and that every transaction is whole.

It only reads, may run alongside the daemon, and reports every fault instead of stopping at the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.errors import CdcflowError, InvariantViolated
from cdcflow.log.files import attached
from cdcflow.log.files.extents import Extent, counted_records, extents_of
from cdcflow.log.files.inventory import inventory
from cdcflow.log.files.layout import Layout, LogFile
from cdcflow.log.files.parquet import columns_of
from cdcflow.log.format import keyruns
from cdcflow.log.format.journal import CutMark, JournalHeader, Record
from cdcflow.log.format.numbers import Numbers
from cdcflow.log.format.rows import ShapeRows
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.model.change import Int64s
from cdcflow.model.table import COMMIT_TS, OFFSET, OP, TRANSACTION, table_from_json

TRIES_MAX = 3
"""How often a check of the unsealed part is repeated before a fault in it is reported: a daemon may be writing there.
"""
_BLOCK = 1 << 20
_Manifest = tuple[Segment, bytes]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `where` (a file) and a description."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check`. Without `faults` the log is whole; the other fields count what was read."""

    faults: tuple[Fault, ...]
    segments: int
    journals: int
    transactions: int
    rows: int
    bytes: int
    first_offset: int
    next_offset: int

    @property
    def is_whole(self) -> bool:
        return not self.faults


@dataclass(slots=True)
class Seen:
    """The state of a check so far."""

    faults: list[Fault] = field(default_factory=list)
    segments: int = 0
    journals: int = 0
    transactions: int = 0
    rows: int = 0
    bytes: int = 0
    next_offset: int = 1
    next_transaction: int = 1
    before: _Manifest | None = None
    cut: int = 0
    clock: int = 0

    def fault(self, where: Path | str, text: str) -> None:
        self.faults.append(Fault(str(where), text))

    def report(self, first_offset: int) -> CheckReport:
        counts = self.segments, self.journals, self.transactions, self.rows, self.bytes
        return CheckReport(tuple(self.faults), *counts, first_offset, self.next_offset)


def check(path: Path | Layout, *, deep: bool = False) -> CheckReport:
    """Read a log from beginning to end and report its faults.

    Always checked: manifests, their chain, every file's size and sha256, offsets and transactions without gaps, each
    row in its transaction. `deep` also reads every value and recounts the numbers in the manifests.

    Raises:
        ConfigurationError: there is no log, or a newer cdcflow wrote it.
    """
    layout = Layout.of(path)
    file = layout.log_file()
    seen = Seen(next_offset=file.first_offset)
    try:
        extents = _extents(layout, file, seen)
        _segments(layout, file, seen, deep=deep)
        for extent in extents:
            if extent.header.first_offset >= seen.next_offset:
                seen = _journal_or_segment(layout, file, extent, seen, deep=deep)
    except CdcflowError as error:
        seen.fault(layout.journals, str(error))
    return seen.report(file.first_offset)


def _extents(layout: Layout, file: LogFile, seen: Seen) -> list[Extent]:
    """Return the extent of each journal that counts for a daemon that opened the log now. An error that the daemon
    would raise is a fault."""
    if not layout.epoch.exists():
        return extents_of(layout)  # no daemon ever wrote here: a copy, or a history of a log in another place
    for _ in range(TRIES_MAX):
        try:
            found = inventory(layout, file)
            return [Extent(journal.header, journal.bytes, journal.checkpoint) for journal in found.journals]
        except (FileNotFoundError, InvariantViolated) as error:
            # Files vanish and grow while a daemon runs. Damage persists, so the check is repeated.
            refused = error
    seen.fault(layout.journals, str(refused))
    return []


# ── segments ────────────────────────────────────────────────────────────────────────────────────────────────


def _segments(layout: Layout, file: LogFile, seen: Seen, *, deep: bool) -> None:
    for first, last in layout.segment_offsets():
        if first >= max(file.first_offset, seen.next_offset):
            _segment(layout, file.log_id, first, last, seen, deep=deep)


def _segment(layout: Layout, log_id: str, first: int, last: int, seen: Seen, *, deep: bool) -> None:
    directory = layout.segment(first, last)
    seen.segments += 1
    try:
        segment, text = layout.manifest(first, last)
        _manifest(directory, segment, log_id, seen)
        seen.before = segment, text
        for file in segment.files:
            # Read from the store itself: a copy read earlier would hide what the store has lost since.
            _hash(directory / file.path, layout.file(segment, file, from_store=True), file, seen)
        headers = columns_of(layout.file(segment, segment.transactions_file))
        _headers(directory, headers, segment.first_transaction, first, seen)
        _check_clock(directory, segment.last_checkpoint().commit_clock, seen)
        _offsets(layout, segment, headers, seen)
        if deep:
            for file in segment.files:
                if file.table is not None:
                    _values(layout.file(segment, file), file, seen)
    except CdcflowError as error:
        seen.fault(directory, str(error))
    except FileNotFoundError as error:
        seen.fault(directory, f"{error.filename or 'a file'} is missing: offsets {first} to {last} cannot be read")
    except (OSError, pa.ArrowException) as error:
        seen.fault(directory, f"cannot be read ({type(error).__name__})")
    seen.next_offset = last + 1


def _manifest(directory: Path, segment: Segment, log_id: str, seen: Seen) -> None:
    if segment.log_id != log_id:
        seen.fault(directory, "it belongs to another log")
    if segment.first_offset != seen.next_offset:
        seen.fault(directory, f"offsets {seen.next_offset} to {segment.first_offset - 1} before it are missing")
    if seen.before is not None and not seen.before[0].is_continued_by(segment.previous, seen.before[1]):
        seen.fault(directory, "the hash chain breaks here: the manifest before is not the one that was sealed")
    if seen.segments > 1 and segment.first_transaction != seen.next_transaction:
        seen.fault(directory, f"it begins with transaction {segment.first_transaction}, not {seen.next_transaction}")
    if segment.first_cut <= seen.cut or segment.last_cut < segment.first_cut:
        seen.fault(directory, f"its cuts {segment.first_cut}-{segment.last_cut} do not follow cut {seen.cut}")
    checkpoint = segment.last_checkpoint()
    if (checkpoint.next_offset, checkpoint.cut) != (segment.last_offset + 1, segment.last_cut):
        seen.fault(directory, "its checkpoint does not match its last cut")
    seen.next_transaction = segment.last_transaction + 1
    seen.cut = segment.last_cut


def _hash(path: Path, here: Path, file: SegmentFile, seen: Seen) -> None:
    digest = hashlib.sha256()
    size = 0
    try:
        with here.open("rb") as content:
            while block := content.read(_BLOCK):
                digest.update(block)
                size += len(block)
    except FileNotFoundError:
        seen.fault(path, "it is missing")
        return
    seen.bytes += size
    if (size, digest.hexdigest()) != (file.bytes, file.sha256):
        seen.fault(path, f"its content differs from what was sealed ({size} bytes, {file.bytes} were sealed)")


def _headers(where: Path | str, headers: pa.Table | pa.RecordBatch, transaction: int, offset: int, seen: Seen) -> None:
    number, first, last = (headers.column(n).to_numpy() for n in ("number", "first_offset", "last_offset"))
    seen.transactions += len(number)
    if not len(number):
        return
    if number[0] != transaction or not (np.diff(number) == 1).all():
        seen.fault(where, "transaction numbers have gaps")
    if first[0] != offset or not (first[1:] == last[:-1] + 1).all() or not (last >= first - 1).all():
        seen.fault(where, "transactions do not follow each other without gaps")
    clock = headers.column("commit_clock").cast(pa.int64()).to_numpy()
    if not (np.diff(clock, prepend=seen.clock) > 0).all():
        seen.fault(where, "the commit clock does not increase")
    seen.clock = int(clock[-1])


def _check_clock(where: Path | str, clock: int, seen: Seen) -> None:
    """Check that a cut's clock is that of the last transaction, or a later one to which a heartbeat moved it."""
    if clock < seen.clock:
        seen.fault(where, "the commit clock goes back at a cut")
    seen.clock = max(seen.clock, clock)


def _offsets(layout: Layout, segment: Segment, headers: pa.Table, seen: Seen) -> None:
    """Check that every offset of the segment occurs once, in the transaction that has it, and that offsets ascend in
    each file."""
    directory = layout.segment(segment.first_offset, segment.last_offset)
    there = np.zeros(segment.last_offset - segment.first_offset + 1, np.bool_)
    number, last = headers.column("number").to_numpy(), headers.column("last_offset").to_numpy()
    count = 0
    for file in segment.files:
        if file.table is None:
            continue
        path = directory / file.path
        previous = 0
        with pq.ParquetFile(layout.file(segment, file)) as parquet:
            for batch in parquet.iter_batches(batch_size=1 << 17, columns=[OFFSET, TRANSACTION]):
                offsets: Int64s = batch.column(OFFSET).to_numpy()
                owner = np.searchsorted(last, offsets)
                if offsets[0] <= previous or not (np.diff(offsets) > 0).all():
                    seen.fault(path, "offsets are not in ascending order")
                if offsets.min() < segment.first_offset or offsets.max() > segment.last_offset:
                    seen.fault(path, "it has offsets that are not the segment's")
                    return
                if owner.max() >= len(number) or not (number[owner] == batch.column(TRANSACTION).to_numpy()).all():
                    seen.fault(path, "rows name transactions whose offsets do not include them")
                there[offsets - segment.first_offset] = True
                count += len(offsets)
                previous = int(offsets[-1])
    seen.rows += count
    if not there.all() or count != len(there):
        seen.fault(
            directory, f"it should have {len(there)} offsets once each; it has {int(there.sum())}, in {count} rows"
        )


def _values(path: Path, file: SegmentFile, seen: Seen) -> None:
    ops: dict[str, int] = {}
    table = table_from_json(file.table or {})
    schema = table.log_schema
    runs, keys = file.key_runs, list[pa.Array]()
    with pq.ParquetFile(path) as parquet:
        if not parquet.schema_arrow.equals(schema):
            seen.fault(path, "its columns differ from the shape in the manifest")
        for batch in parquet.iter_batches():
            batch.validate(full=True)
            if batch.column(COMMIT_TS).null_count:
                seen.fault(path, "rows have no commit time")
            for entry in pc.value_counts(batch.column(OP)).to_pylist():
                ops[entry["values"]] = ops.get(entry["values"], 0) + entry["counts"]
            if runs and table.key:
                keys.append(batch.column(table.key[0]))
    if ops != file.ops:
        seen.fault(path, "the number of changes differs from the manifest")
    if runs is not None and not (keys and keyruns.hold(runs, pa.concat_arrays(keys))):
        seen.fault(path, "its keys are not in the ranges of the manifest, or not exactly once")


# ── journals ────────────────────────────────────────────────────────────────────────────────────────────────


def _journal_or_segment(layout: Layout, file: LogFile, extent: Extent, seen: Seen, *, deep: bool) -> Seen:
    """Check a journal, or the segment into which it has been sealed in the meantime."""
    so_far = replace(seen, faults=[*seen.faults])
    try:
        _journal(layout, file.log_id, extent, so_far, deep=deep)
    except FileNotFoundError:
        _segments(layout, file, seen, deep=deep)
        return seen
    return so_far


def _journal(layout: Layout, log_id: str, extent: Extent, seen: Seen, *, deep: bool) -> None:
    path = layout.journal(extent.header.first_offset)
    seen.bytes += extent.bytes
    journal(
        path,
        log_id,
        extent.header,
        attached.with_attached_rows(layout, counted_records(layout, extent)),
        seen,
        deep=deep,
    )


def journal(
    path: Path | str, log_id: str, header: JournalHeader, found: Iterable[Record], seen: Seen, *, deep: bool
) -> None:
    """Check the records that follow one journal header. `path` names the journal in faults; `found` has no attached
    files."""
    seen.journals += 1
    if header.log_id != log_id:
        seen.fault(path, "it belongs to another log")
    if header.first_offset != seen.next_offset:
        seen.fault(path, f"it begins at offset {header.first_offset}, and offset {seen.next_offset} was expected")
    numbers = Numbers.after(header.base, lambda text: seen.fault(path, text))
    numbers.cut = max(numbers.cut, seen.cut)
    for record in found:
        numbers.take(record)
        match record:
            case TransactionHeaders():
                _headers(path, record.headers, record.first_transaction, record.first_offset, seen)
            case ShapeRows():
                seen.rows += len(record.offsets)
                if deep:
                    record.rows.validate(full=True)
            case CutMark():
                seen.cut = record.checkpoint.cut
                _check_clock(path, record.checkpoint.commit_clock, seen)
            case _:
                pass
    numbers.finish()
    seen.next_offset, seen.next_transaction = numbers.next_offset, numbers.next_transaction
