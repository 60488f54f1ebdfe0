"""The content of a journal's frames, and how it is encoded and decoded.

schema        a table's shape, before the first rows that have it
transactions  the headers of one appended run, with their numbers and offsets (see `transactions`)
rows          rows of one shape of that run, with their offsets (see `rows`)
attach        names a spool that has rows of that run
file          names a Parquet file that has rows of that run, all of one shape
progress      the changes, since the last frame of this kind, to the larger part of the checkpoint
cut           the rest of a checkpoint: everything before it may be read

One appended run is `transactions`, then its `rows`, `attach` or `file`. Backfill progress has an entry per table, and
mostly stays the same from cut to cut: the journal's header has all of it, and after that only changes to it are
written.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.framing import (
    FileKind,
    Frame,
    FrameKind,
    Framer,
    Header,
    Part,
    encode_header,
    frame_bytes,
    frames,
)
from cdcflow.log.format.rows import SMALL_ROWS, RowsDecoder, RowsEncoder, ShapeEntry, ShapeRows, rows_extent
from cdcflow.log.format.segment import SegmentFile
from cdcflow.log.format.transactions import TransactionHeaders, extent
from cdcflow.model.change import ChangeBatch, Int64s
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.model.table import Table, table_from_json

BATCH_BYTES_MAX = 4 << 20  # larger batches are split: a reader holds a whole frame in memory

FILE_PAYLOAD_BYTES = 8 << 10
"""The payload size of a FILE frame, which is reserved in the journal before the file is written. It holds the ends of
64 key ranges."""

_NUMBER_MAX = 1 << 62
_CUT = struct.Struct("<qqqqqqB")  # the fields of `CutMark`; its position, a text, follows them
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_NONSENSE = (
    pa.ArrowException,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    struct.error,
    zlib.error,
    OSError,
    EOFError,
)


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The header of a journal: where it begins, and how much of the journal before it counts.

    `base` is the checkpoint that this journal continues. The journal before it (`previous`: its first offset) counts up
    to byte `previous_bytes`: anything that a replaced writer appends after that byte is not part of the log.
    """

    log_id: str
    epoch: Epoch
    base: Checkpoint
    previous: int | None = None
    previous_bytes: int = 0

    @property
    def first_offset(self) -> Offset:
        return self.base.next_offset

    def encode(self) -> tuple[bytes, int]:
        """Return the header's bytes, and the seed for the frames that follow."""
        return encode_header(FileKind.JOURNAL, self.value())

    def value(self) -> dict[str, object]:
        """Return the header as JSON; `from_header` reads it."""
        return {
            "log_id": self.log_id,
            "epoch": self.epoch,
            "first_offset": self.first_offset,
            "checkpoint": json.loads(self.base.to_json()),
            "previous": self.previous,
            "previous_bytes": self.previous_bytes,
        }

    @classmethod
    def from_header(cls, header: Header) -> JournalHeader:
        value = header.value
        return cls(
            value["log_id"],
            Epoch(value["epoch"]),
            Checkpoint.from_json(json.dumps(value["checkpoint"])),
            value["previous"],
            value["previous_bytes"],
        )


# ── what the frames hold ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AttachedSpool:
    """The record that one transaction's rows are in a spool. `bytes` and `crc` (of the whole file up to that byte)
    verify the spool's content."""

    spool: str
    first_offset: int
    rows: int
    bytes: int
    crc: int
    aborted: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """The file's name among the spools."""
        return self.spool


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """The record that all rows of one transaction are in a Parquet file, in the format of the segment that will contain
    it. `file` is its future entry in the manifest, except for the path, which is its name among the spools."""

    shape: ShapeEntry
    file: SegmentFile

    @property
    def name(self) -> str:
        """The file's name among the spools."""
        return self.file.path

    @property
    def first_offset(self) -> int:
        return self.file.first_offset

    @property
    def rows(self) -> int:
        return self.file.rows


@dataclass(frozen=True, slots=True)
class CutMark:
    """A cut. `durable` bytes of the journal had been synced when it was written.

    The checkpoint's `progress` and `source` are those of the header and the progress frames before it.
    """

    checkpoint: Checkpoint
    durable: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """The record that the checkpoint's `progress` or `source` has changed, starting here."""


@dataclass(frozen=True, slots=True)
class SpoolPiece:
    """The record that a piece of a spool begins: `rows` rows follow, of these sub-transactions (`None`: they can no
    longer be rolled back)."""

    rows: int
    subxids: npt.NDArray[np.uint64] | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A frame that the caller chose not to decode."""

    kind: FrameKind


Attached = AttachedSpool | AttachedFile
"""Rows that are stored next to the journal."""
Record = (
    ShapeEntry
    | ShapeRows
    | TransactionHeaders
    | AttachedSpool
    | AttachedFile
    | Progressed
    | CutMark
    | SpoolPiece
    | Skipped
)
_Later = Callable[[], list[Part]]


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────


class Encoder:
    """Turns records into frames for one file.

    One thread may add records while another takes frames: the cheap work is done by the first, checksums are left to
    the second.
    """

    def __init__(self, seed: int, base: Checkpoint | None = None) -> None:
        base = base or Checkpoint()
        self._framer = Framer(seed)
        self._shapes: dict[Table, RowsEncoder] = {}
        self._progress = base.progress
        self._source = base.source
        self._queue: deque[tuple[FrameKind, int, list[Part] | _Later]] = deque()
        self._taken = 0
        self.bytes = 0
        """Total size of all frames, including those that were not taken yet."""

    @property
    def waiting(self) -> int:
        """The bytes of the frames that were not taken yet."""
        return self.bytes - self._taken

    def knows(self, table: Table) -> bool:
        return table in self._shapes

    def take(self) -> list[Part]:
        """Return the frames added since the last call, as buffers that are ready for one write."""
        parts: list[Part] = []
        while self._queue:
            kind, size, payload = self._queue.popleft()
            parts += self._framer.frame(kind, *(payload() if callable(payload) else payload))
            self._taken += size
        return parts

    def drop(self) -> None:
        """Discard the frames that were not taken yet; no record may be added after that."""
        self._queue.clear()

    def payloads(self) -> list[tuple[FrameKind, list[Part]]]:
        """Return the frames added since the last call, like `take`, but as payloads without framing: for a container
        that has its own."""
        found: list[tuple[FrameKind, list[Part]]] = []
        while self._queue:
            kind, size, payload = self._queue.popleft()
            found.append((kind, payload() if callable(payload) else payload))
            self._taken += size
        return found

    def apart(self, tables: Iterable[Table]) -> dict[Table, RowsEncoder]:
        """Return an encoder for each of these shapes, which were introduced already. A thread that uses one inserts
        the frames of rows that it returns between the frames of this object."""
        return {table: RowsEncoder(table, self._shapes[table].number, deflates=False) for table in tables}

    def shape(self, table: Table, version: int) -> None:
        """Add the frame that introduces a shape, once per file."""
        if table not in self._shapes:
            self._shapes[table] = RowsEncoder(table, len(self._shapes))
            self._put(FrameKind.SCHEMA, [_json({"version": version, "table": table.to_json()})])

    def rows(self, batch: ChangeBatch, first: int) -> None:
        """Add rows of a shape that was introduced. The first row of the run (or piece) has offset `first`."""
        rows = batch.rows
        # The total buffer size includes what a slice keeps alive and is quick to compute; its own bytes are not.
        large = rows.num_rows > SMALL_ROWS and rows.get_total_buffer_size() > BATCH_BYTES_MAX
        if large and rows.nbytes > BATCH_BYTES_MAX:
            half = rows.num_rows // 2
            self.rows(ChangeBatch(batch.table, batch.index[:half], rows.slice(0, half)), first)
            self.rows(ChangeBatch(batch.table, batch.index[half:], rows.slice(half)), first)
            return
        self._put(FrameKind.ROWS, self._shapes[batch.table].parts(batch, first))

    def transactions(self, transactions: TransactionHeaders) -> None:
        self._put(FrameKind.TRANSACTIONS, [transactions.encode()])

    def attach(self, attach: AttachedSpool) -> None:
        value = {
            "spool": attach.spool,
            "first_offset": attach.first_offset,
            "rows": attach.rows,
            "bytes": attach.bytes,
            "crc": attach.crc,
            "aborted": sorted(attach.aborted),
        }
        self._put(FrameKind.ATTACH, [_json(value)])

    def file(self, table: Table, written: Callable[[], SegmentFile]) -> None:
        """Add a file with rows of a shape that was introduced. The thread that takes the frame calls `written`, which
        writes the file."""
        number = self._shapes[table].number
        size = frame_bytes(FILE_PAYLOAD_BYTES)
        self._queue.append((FrameKind.FILE, size, lambda: [_file_payload(number, written())]))
        self.bytes += size

    def cut(self, checkpoint: Checkpoint, durable: int) -> None:
        if checkpoint.progress is not self._progress or checkpoint.source is not self._source:
            self._say_progress(checkpoint)
        position = checkpoint.position
        head = _CUT.pack(
            durable,
            checkpoint.next_offset,
            checkpoint.next_transaction,
            checkpoint.cut,
            checkpoint.commit_clock,
            checkpoint.epoch,
            position is not None,
        )
        self._put(FrameKind.CUT, [head if position is None else head + position.text.encode()])

    def piece(self, rows: int, subxids: npt.NDArray[np.uint64] | None) -> None:
        ids = b"" if subxids is None else np.ascontiguousarray(subxids, "<u8").tobytes()
        self._put(FrameKind.PIECE, [rows.to_bytes(8, "little") + ids])

    def _say_progress(self, checkpoint: Checkpoint) -> None:
        # Checkpoints are immutable, and a changed one is a different object: a cut of an idle table costs the
        # same whether there are ten tables or ten thousand.
        value = progress_change(self._progress, checkpoint.progress)
        if checkpoint.source != self._source:
            value["source"] = dict(checkpoint.source)
        self._progress, self._source = checkpoint.progress, checkpoint.source
        if value:
            self._put(FrameKind.PROGRESS, [_json(value)])

    def _put(self, kind: FrameKind, payload: list[Part]) -> None:
        size = frame_bytes(sum(map(len, payload)))
        self._queue.append((kind, size, payload))
        self.bytes += size


def progress_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the difference between two JSON objects: {} if they are equal; `entries` by member, to be merged into
    those of that member; or the whole new object as `progress`."""
    if before == after:
        return {}
    entries: dict[str, Any] = {}
    if before.keys() == after.keys():
        for name, value in after.items():
            known = before[name]
            if known == value:
                continue
            if not (isinstance(known, dict) and isinstance(value, dict) and known.keys() <= value.keys()):
                break
            entries[name] = {k: v for k, v in value.items() if k not in known or known[k] != v}
        else:
            return {"entries": entries}
    return {"progress": dict(after)}


def progress_after(before: Mapping[str, Any], change: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object `before` after a change that `progress_change` computed."""
    if "progress" in change:
        whole: dict[str, Any] = change["progress"]
        return whole
    changed = {name: {**before[name], **entries} for name, entries in change.get("entries", {}).items()}
    return {**before, **changed} if changed else before


def _file_payload(number: int, file: SegmentFile) -> bytes:
    told = {name: value for name, value in asdict(file).items() if name not in ("table", "version")}
    text = _json({"shape": number, "file": told})
    if len(text) > FILE_PAYLOAD_BYTES:  # keys with longer texts than any known so far
        return _file_payload(number, replace(file, key_min=None, key_max=None, key_runs=None))
    return text.ljust(FILE_PAYLOAD_BYTES)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────


class Decoder:
    """Turns frames back into records. Each file that is read has one, starting at its header."""

    def __init__(self, name: str, header: Header) -> None:
        self.name = name
        self._shapes: list[ShapeEntry] = []
        self._rows = RowsDecoder()
        checkpoint = header.value.get("checkpoint") or {}
        self._progress: Mapping[str, Any] = checkpoint.get("progress") or {}
        self._source: Mapping[str, str] = checkpoint.get("source") or {}

    def record(self, frame: Frame) -> Record:
        """Return the content of a frame.

        Raises:
            InvariantViolated: the checksum is right but the content is invalid: cdcflow did not write it like this.
        """
        if not frame.payload:
            return Skipped(frame.kind)
        try:
            return self._record(frame.kind, frame.payload)
        except _NONSENSE as error:
            # Arrow's messages can quote bytes of the content, so only the kind of the error is reported.
            raise self._nonsense(frame, type(error).__name__) from None

    def extent(self, frame: Frame) -> tuple[int, int, int, int]:
        """Return the arguments for `numbers.Numbers` from a transactions or rows frame, without decoding all of it.
        Raises InvariantViolated like `record`."""
        try:
            return (extent if frame.kind is FrameKind.TRANSACTIONS else rows_extent)(frame.payload)
        except _NONSENSE as error:
            raise self._nonsense(frame, type(error).__name__) from None

    def _nonsense(self, frame: Frame, error: str) -> InvariantViolated:
        return InvariantViolated(
            f"reading {self.name}: the {frame.kind.name.lower()} frame at byte {frame.at} is complete, but its "
            f"content is invalid ({error})",
            runbook="log-damaged",
        )

    def _record(self, kind: FrameKind, payload: bytes) -> Record:
        match kind:
            case FrameKind.ROWS:
                return self._rows.rows(payload, self._shapes)
            case FrameKind.TRANSACTIONS:
                return TransactionHeaders.decode(payload)
            case FrameKind.CUT:
                return self._cut(payload)
            case FrameKind.SCHEMA:
                self._shapes.append(_shape(payload))
                return self._shapes[-1]
            case FrameKind.ATTACH:
                value = json.loads(payload)
                return AttachedSpool(**{**value, "aborted": frozenset(value["aborted"])})
            case FrameKind.FILE:
                value = json.loads(payload)
                shape = self._shapes[value["shape"]]
                file = SegmentFile.of({**value["file"], "table": shape.table.to_json(), "version": shape.version})
                return AttachedFile(shape, file)
            case FrameKind.PROGRESS:
                change = json.loads(payload)
                if not change.keys() <= {"progress", "entries", "source"} or not change:
                    raise ValueError("not a change of the progress")
                self._progress = progress_after(self._progress, change)
                self._source = change.get("source", self._source)
                return Progressed()
            case FrameKind.PIECE:
                rows = int.from_bytes(payload[:8], "little")
                ids = np.frombuffer(payload, "<u8", offset=8)
                if len(ids) not in (0, rows):
                    raise ValueError("sub-transactions do not match the rows")
                return SpoolPiece(rows, ids if len(ids) else None)

    def _cut(self, payload: bytes) -> CutMark:
        durable, offset, transaction, cut, clock, epoch, placed = _CUT.unpack_from(payload)
        position = Position(payload[_CUT.size :].decode()) if placed else None
        numbers = (durable, offset, transaction, cut, clock, epoch)
        if min(numbers) < 0 or max(numbers) >= _NUMBER_MAX:
            raise ValueError("not numbers of a checkpoint")
        if placed > 1 or (not placed and len(payload) > _CUT.size):
            raise ValueError("a position that does not exist")
        checkpoint = Checkpoint(
            position, Offset(offset), transaction, cut, clock, Epoch(epoch), self._progress, self._source
        )
        return CutMark(checkpoint, durable)


@lru_cache(maxsize=1024)
def _shape(payload: bytes) -> ShapeEntry:
    # Every journal repeats its shapes, and a log's readers decode the same ones again and again.
    value = json.loads(payload)
    return ShapeEntry(table_from_json(value["table"]), value["version"])


def durable_bytes(frame: Frame) -> int:
    """Return how much of the file was durable when the frame of this cut was written."""
    durable: int = _CUT.unpack_from(frame.payload)[0]
    return durable


def cut_number(payload: bytes) -> int:
    """Return the cut number of a cut's frame."""
    number: int = _CUT.unpack_from(payload)[3]
    return number


def records(
    file: BinaryIO, header: Header, name: str, *, end: int | None = None, skip: frozenset[FrameKind] = frozenset()
) -> Iterator[Record]:
    """Yield the records of a file whose header has just been read. See `framing.frames`."""
    decoder = Decoder(name, header)
    for frame in frames(file, header, end=end, skip=skip):
        yield decoder.record(frame)


@dataclass(frozen=True, slots=True)
class Owners:
    """The transaction of each row, by offset: the headers of consecutive transactions, in columns."""

    first_offset: int
    last_offset: Int64s
    number: Int64s
    commit_ts: Int64s

    @classmethod
    def of(cls, headers: pa.RecordBatch) -> Owners:
        """Return the owners for the headers of consecutive transactions (`TRANSACTIONS_SCHEMA`)."""
        last, number = headers.column("last_offset").to_numpy(), headers.column("number").to_numpy()
        return cls(
            headers.column("first_offset")[0].as_py(),
            last,
            number,
            headers.column("commit_ts").view(pa.int64()).to_numpy(),
        )

    def log_rows(self, table: Table, offsets: Int64s, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the log's columns (`Table.log_schema`): with offset, transaction and commit time.

        `offsets` ascend. Raises InvariantViolated if one of them belongs to none of these transactions.
        """
        counts = self.counts(table, offsets)
        commit_ts = pa.array(np.repeat(self.commit_ts, counts)).view(_TIMESTAMP)
        columns = [pa.array(offsets), pa.array(np.repeat(self.number, counts)), commit_ts, *rows.columns]
        return pa.RecordBatch.from_arrays(columns, schema=table.log_schema)

    def counts(self, table: Table, offsets: Int64s) -> Int64s:
        """Return how many of these rows each transaction has. Raises InvariantViolated like `log_rows`."""
        ends = np.searchsorted(offsets, self.last_offset, side="right")
        if len(offsets) and (offsets[0] < self.first_offset or ends[-1] != len(offsets)):
            raise InvariantViolated(
                f"reading rows of {table.id} with offsets from {offsets[0]} to {offsets[-1]}: their transactions have"
                f" {self.first_offset} to {self.last_offset[-1]}"
            )
        return np.diff(ends, prepend=0)  # 0 for a transaction without rows here
