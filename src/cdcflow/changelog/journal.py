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
from functools import lru_cache
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

SMALL_ROWS = 8  # up to this, compressing costs more than it saves
BATCH_BYTES_MAX = 128 << 20  # larger batches are split, so that no frame comes near FRAME_BYTES_MAX

_ROWS = struct.Struct("<IB3xqI4x")  # shape, bytes per gap, first offset, rows
_CUT = struct.Struct("<q")  # bytes of this journal that were durable when the cut was written
_GAPS: dict[int, npt.DTypeLike] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_BLOCK_TYPES = (pa.int64(), pa.int64(), pa.int64(), pa.uint64(), _TIMESTAMP, _TIMESTAMP)
_KINDS = {kind: pa.scalar(kind.value, pa.string()) for kind in Kind}
_NONSENSE = (pa.ArrowException, ValueError, KeyError, IndexError, TypeError, struct.error, OSError, EOFError)
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


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
        self._shapes: dict[Table, tuple[int, Messages]] = {}
        self._headers = Messages(TRANSACTIONS_SCHEMA)
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
            self._shapes[table] = len(self._shapes), Messages(table.change_schema)
            self._put(FrameKind.SCHEMA, _json({"version": version, "table": table.to_json()}))

    def rows(self, batch: ChangeBatch, first: int) -> None:
        """Rows of a shape that was introduced; the first row of the run (or piece) has offset `first`."""
        rows = batch.rows
        if rows.num_rows > SMALL_ROWS and rows.nbytes > BATCH_BYTES_MAX:
            half = rows.num_rows // 2
            self.rows(ChangeBatch(batch.table, batch.index[:half], rows.slice(0, half)), first)
            self.rows(ChangeBatch(batch.table, batch.index[half:], rows.slice(half)), first)
            return
        width, gaps = _gaps(batch.index)
        shape, messages = self._shapes[batch.table]
        head = _ROWS.pack(shape, width, first + int(batch.index[0]), rows.num_rows)
        self._put(FrameKind.ROWS, head + gaps if gaps else head, *messages.parts(rows))

    def transactions(self, headers: pa.RecordBatch) -> None:
        self._put(FrameKind.TRANSACTIONS, *self._headers.parts(headers))

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


class Messages:
    """Turns batches of one schema into encapsulated Arrow IPC messages without their schema, lz4 unless small."""

    def __init__(self, schema: pa.Schema) -> None:
        # Only a stream writer compresses, and it puts the schema first: that message is let go.
        self._sink = _Pieces()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, mode="w"), schema, options=_LZ4)
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema))

    def parts(self, batch: pa.RecordBatch) -> list[Part]:
        """One message, in pieces."""
        if batch.num_rows <= SMALL_ROWS:
            return [memoryview(batch.serialize())]
        self._sink.pieces = []
        self._writer.write_batch(batch)
        return self._sink.pieces


class _Pieces:
    """A file that keeps what is written as it comes."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[Part] = []

    def write(self, content: bytes) -> int:
        self.pieces.append(content)
        return len(content)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


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
    # The numbers of all columns go into one block of memory: for a run of one transaction, making an array from numpy
    # costs more than everything else.
    block = np.empty((6, count), np.int64)
    block[0] = np.arange(first_transaction, first_transaction + count)
    block[1, 0] = first_offset
    block[2] = ends + (first_offset - 1)
    block[1, 1:] = block[2, :-1] + 1
    block[3] = xid.view(np.int64)
    block[4] = commit_ts
    block[5] = commit_clock
    buffer = pa.py_buffer(block)
    number, first, last, xids, ts, clock = (
        pa.Array.from_buffers(t, count, [None, buffer.slice(i * 8 * count, 8 * count)], 0)
        for i, t in enumerate(_BLOCK_TYPES)
    )
    kinds = pa.repeat(_KINDS[kind], count)
    origins = pa.nulls(count, pa.string()) if origin is None else origin
    return pa.RecordBatch.from_arrays(
        [number, first, last, position, xids, ts, clock, kinds, origins], schema=TRANSACTIONS_SCHEMA
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
        except (
            pa.ArrowException,
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            struct.error,
            OSError,
            EOFError,
        ) as error:
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
                self.shapes.append(_shape(payload))
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


@lru_cache(maxsize=1024)
def _shape(payload: bytes) -> Shape:
    # Every journal tells its shapes anew, and a log's readers meet the same ones again and again.
    value = json.loads(payload)
    return Shape(table_from_json(value["table"]), value["version"])


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
