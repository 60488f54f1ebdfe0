"""What the journal's frames hold, and the way there and back.

schema        a table's shape, before the first rows that have it
transactions  the headers of one appended run, with their numbers and offsets
rows          rows of one shape of that run: their offsets, then one Arrow IPC message without its schema
attach        rows of that run that lie in a spool
cut           a checkpoint: everything before it may be seen

One appended run is `transactions`, then its `rows` or `attach`. Rows carry their offsets as gaps (how many rows of
other tables lie before each), in the fewest bytes that hold them: none at all for a run of one table.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.changelog.framing import FileKind, Frame, FrameKind, Framer, Header, Part, encode_header, frames
from cdcflow.changelog.segment import TRANSACTIONS_SCHEMA
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import ChangeBatch, Int64s, Kind, Run, SpooledTransaction
from cdcflow.model.position import Checkpoint, Epoch, Offset
from cdcflow.model.table import Table, table_from_json

SMALL_BYTES = 4096  # below this, compressing costs more than it saves
WIDE_BYTES = 256 << 10  # from here on, several threads compress
BATCH_BYTES_MAX = 128 << 20  # larger batches are split, so that no frame comes near FRAME_BYTES_MAX

_ROWS = struct.Struct("<IB3xqI4x")  # shape, bytes per gap, first offset, rows
_CUT = struct.Struct("<q")  # bytes of this journal that were durable when the cut was written
_GAPS: dict[int, npt.DTypeLike] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_FAST = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_WIDE = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The head of a journal: where it begins, and how much of the journal before it counts.

    `base` is the checkpoint that this journal continues. `previous_bytes` (with `previous`, its first offset) bounds
    the journal before: whatever a stale writer puts behind that byte is not part of the log.
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
        """The bytes, and the seed for the frames that follow."""
        return encode_header(
            FileKind.JOURNAL,
            {
                "log_id": self.log_id,
                "epoch": self.epoch,
                "first_offset": self.first_offset,
                "checkpoint": json.loads(self.base.to_json()),
                "previous": self.previous,
                "previous_bytes": self.previous_bytes,
            },
        )

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
class Shape:
    """A shape that the frames after it may use. `version` is its number in the schema history (0 in a spool)."""

    table: Table
    version: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one shape; `offsets` ascend. In a spool they count within their piece from 0."""

    shape: Shape
    offsets: Int64s
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Transactions:
    """The headers of one appended run, as `TRANSACTIONS_SCHEMA` says."""

    headers: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Attach:
    """One transaction's rows are in a spool. `bytes` and `crc` (of the whole file up to there) say what it must be."""

    spool: str
    first_offset: int
    rows: int
    bytes: int
    crc: int
    aborted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CutMark:
    """A cut. `durable` bytes of the journal had been synced when it was written."""

    checkpoint: Checkpoint
    durable: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a spool begins: `rows` rows follow, of these sub-transactions (None: they stay)."""

    rows: int
    subxids: npt.NDArray[np.uint64] | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A frame that the caller did not want to have read."""

    kind: FrameKind


Record = Shape | Rows | Transactions | Attach | CutMark | Piece | Skipped


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────


class Encoder:
    """Turns records into frames for one file. Pieces come back as a flat list of buffers, ready for one write."""

    def __init__(self, seed: int) -> None:
        self._framer = Framer(seed)
        self._shapes: dict[Table, int] = {}
        self.parts: list[Part] = []
        self.bytes = 0

    def knows(self, table: Table) -> bool:
        return table in self._shapes

    def take(self) -> list[Part]:
        """The buffers framed since the last call."""
        parts, self.parts, self.bytes = self.parts, [], 0
        return parts

    def shape(self, table: Table, version: int) -> None:
        """Introduce a shape, once a file."""
        if table not in self._shapes:
            self._shapes[table] = len(self._shapes)
            self._put(FrameKind.SCHEMA, _json({"version": version, "table": table.to_json()}))

    def rows(self, batch: ChangeBatch, first: int) -> None:
        """Rows of a shape that was introduced; the first row of the run (or piece) has offset `first`."""
        rows = batch.rows
        if rows.nbytes > BATCH_BYTES_MAX and rows.num_rows > 1:
            half = rows.num_rows // 2
            self.rows(ChangeBatch(batch.table, batch.index[:half], rows.slice(0, half)), first)
            self.rows(ChangeBatch(batch.table, batch.index[half:], rows.slice(half)), first)
            return
        width, gaps = _gaps(batch.index)
        head = _ROWS.pack(self._shapes[batch.table], width, first + int(batch.index[0]), rows.num_rows)
        self._put(FrameKind.ROWS, head + gaps if gaps else head, message(rows))

    def transactions(self, headers: pa.RecordBatch) -> None:
        self._put(FrameKind.TRANSACTIONS, message(headers))

    def attach(self, attach: Attach) -> None:
        value = {
            "spool": attach.spool,
            "first_offset": attach.first_offset,
            "rows": attach.rows,
            "bytes": attach.bytes,
            "crc": attach.crc,
            "aborted": sorted(attach.aborted),
        }
        self._put(FrameKind.ATTACH, _json(value))

    def cut(self, checkpoint: Checkpoint, durable: int) -> None:
        self._put(FrameKind.CUT, _CUT.pack(durable) + checkpoint.to_json().encode())

    def piece(self, rows: int, subxids: npt.NDArray[np.uint64] | None) -> None:
        ids = b"" if subxids is None else np.ascontiguousarray(subxids, "<u8").tobytes()
        self._put(FrameKind.PIECE, rows.to_bytes(8, "little") + ids)

    def _put(self, kind: FrameKind, *parts: Part) -> None:
        framed, size = self._framer.frame(kind, *parts)
        self.parts += framed
        self.bytes += size


def message(batch: pa.RecordBatch) -> memoryview:
    """A batch as one encapsulated Arrow IPC message without its schema; lz4 unless it is small."""
    size = batch.nbytes
    if size < SMALL_BYTES:
        return memoryview(batch.serialize())
    # Only a stream writer compresses, and it puts the schema first: that message is left out again.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_FAST if size < WIDE_BYTES else _WIDE) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    return memoryview(sink.getvalue())[len(batch.schema.serialize()) : end]


def headers(
    run: Run | SpooledTransaction, first_offset: int, first_transaction: int, commit_clock: Int64s
) -> pa.RecordBatch:
    """The headers of a run that gets these numbers."""
    match run:
        case Run():
            count, ends, kind = run.transactions, run.ends, run.kind
            xid, commit_ts, position, origin = run.xid, run.commit_ts, run.position, run.origin
        case SpooledTransaction():
            count, ends, kind = 1, np.array([run.rows], np.int64), Kind.SOURCE
            xid, commit_ts = run.xids, np.array([run.commit_ts], np.int64)
            position, origin = pa.array([run.position], pa.string()), pa.array([run.origin], pa.string())
    last = ends + (first_offset - 1)
    first = np.empty_like(last)
    first[:1] = first_offset
    first[1:] = last[:-1] + 1
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(first_transaction, first_transaction + count, dtype=np.int64)),
            pa.array(first),
            pa.array(last),
            position,
            pa.array(xid),
            pa.array(commit_ts).view(_TIMESTAMP),
            pa.array(commit_clock).view(_TIMESTAMP),
            pa.repeat(pa.scalar(kind.value), count),
            pa.nulls(count, pa.string()) if origin is None else origin,
        ],
        schema=TRANSACTIONS_SCHEMA,
    )


def _gaps(index: Int64s) -> tuple[int, bytes]:
    """How many foreign rows lie before each row but the first: bytes per number, and the numbers."""
    if int(index[-1]) - int(index[0]) == len(index) - 1:
        return 0, b""
    gaps = np.diff(index) - 1
    most = int(gaps.max())
    width = next(w for w in (1, 2, 4, 8) if most < 1 << 8 * w)
    text = gaps.astype(_GAPS[width]).tobytes()
    return width, text + b"\0" * (-len(text) % 8)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Decoder:
    """Turns frames back into records. One per file that is read; knows the shapes met so far."""

    name: str
    shapes: list[Shape] = field(default_factory=list)

    def record(self, frame: Frame) -> Record:
        """What a frame holds.

        Raises:
            InvariantViolated: the checksum was right and the content is not: cdcflow did not write it so.
        """
        if not frame.payload:
            return Skipped(frame.kind)
        try:
            return self._record(frame.kind, frame.payload)
        except (pa.ArrowException, ValueError, KeyError, IndexError, TypeError, struct.error, OSError) as error:
            # Arrow's messages can quote bytes of the content, so only the kind of the error is told.
            raise InvariantViolated(
                f"reading {self.name}: the {frame.kind.name.lower()} frame at byte {frame.at} is whole but makes no "
                f"sense ({type(error).__name__})"
            ) from None

    def _record(self, kind: FrameKind, payload: bytes) -> Record:
        match kind:
            case FrameKind.ROWS:
                return self._rows(payload)
            case FrameKind.TRANSACTIONS:
                return Transactions(read_message(payload, TRANSACTIONS_SCHEMA))
            case FrameKind.SCHEMA:
                value = json.loads(payload)
                self.shapes.append(Shape(table_from_json(value["table"]), value["version"]))
                return self.shapes[-1]
            case FrameKind.ATTACH:
                value = json.loads(payload)
                return Attach(**{**value, "aborted": frozenset(value["aborted"])})
            case FrameKind.CUT:
                checkpoint = Checkpoint.from_json(payload[_CUT.size :])
                return CutMark(checkpoint, _CUT.unpack_from(payload)[0])
            case FrameKind.PIECE:
                rows = int.from_bytes(payload[:8], "little")
                ids = np.frombuffer(payload, "<u8", offset=8)
                if len(ids) not in (0, rows):
                    raise ValueError("sub-transactions do not match the rows")
                return Piece(rows, ids if len(ids) else None)

    def _rows(self, payload: bytes) -> Rows:
        number, width, first, count = _ROWS.unpack_from(payload)
        shape = self.shapes[number]
        size = width * (count - 1)
        if width:
            gaps = np.frombuffer(payload, np.dtype(_GAPS[width]).newbyteorder("<"), count - 1, _ROWS.size)
            offsets = np.empty(count, np.int64)
            offsets[0] = first
            offsets[1:] = first + np.cumsum(gaps.astype(np.int64) + 1)
        else:
            offsets = np.arange(first, first + count, dtype=np.int64)
        begin = _ROWS.size + size + (-size % 8)
        rows = read_message(memoryview(payload)[begin:], shape.table.change_schema)
        if rows.num_rows != count:
            raise ValueError("the batch does not have the rows that it should")
        return Rows(shape, offsets, rows)


def rows_head(payload: bytes) -> tuple[int, int]:
    """First offset and number of rows of a rows frame, without reading its batch."""
    _, _, first, count = _ROWS.unpack_from(payload)
    return first, count


def read_message(message: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """A batch from an encapsulated Arrow IPC message; its structure is checked."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    batch.validate()
    return batch


def records(
    file: BinaryIO, header: Header, name: str, *, end: int | None = None, skip: frozenset[FrameKind] = frozenset()
) -> Iterator[Record]:
    """The records of a file whose head has just been read. See `framing.frames`."""
    decoder = Decoder(name)
    for frame in frames(file, header, end=end, skip=skip):
        yield decoder.record(frame)


@dataclass(frozen=True, slots=True)
class Owners:
    """Which transaction each row belongs to: the headers of consecutive transactions, in columns."""

    last_offset: Int64s
    number: Int64s
    commit_ts: Int64s

    @classmethod
    def of(cls, headers: list[pa.RecordBatch]) -> Owners:
        return cls(*(_joined(headers, name) for name in ("last_offset", "number", "commit_ts")))

    def log_rows(self, table: Table, offsets: Int64s, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as the log shows them (`Table.log_schema`): with offset, transaction and commit time."""
        # A transaction without rows ends where the one before it ended, and the search finds the earlier one.
        owner = np.searchsorted(self.last_offset, offsets)
        commit_ts = pa.array(self.commit_ts[owner]).view(_TIMESTAMP)
        columns = [pa.array(offsets), pa.array(self.number[owner]), commit_ts, *rows.columns]
        return pa.RecordBatch.from_arrays(columns, schema=table.log_schema)


def _joined(headers: list[pa.RecordBatch], name: str) -> Int64s:
    columns = [batch.column(name) for batch in headers]
    numbers = [(c.view(pa.int64()) if c.type == _TIMESTAMP else c).to_numpy() for c in columns]
    return numbers[0] if len(numbers) == 1 else np.concatenate(numbers)
