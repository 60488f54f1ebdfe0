"""Rows of one shape in one frame: one Arrow IPC message, kept small with little work.

Three of the log's columns are usually redundant: `_op` if all rows have the same, `_unchanged` and `_before` if they
are all NULL. They are then omitted from the message, and the frame's header records that.

A message of a few rows is mostly Arrow's description of its columns, the same each time. So the first such message of a
shape is the dictionary, and those after it are deflated with it (RFC 1951, preset dictionary): a tenth of the bytes.
Messages of up to some kilobytes are not compressed: Arrow starts its threads for each compressed message that it reads,
which takes ten times as long as reading it. Larger messages have lz4 buffers, Arrow's own compression, as long as that
makes them smaller: lz4 cannot shrink long values that appear random (digests, compressed documents), and takes as long
as decoding them did.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.model.change import ChangeBatch, Int64s
from cdcflow.model.table import BEFORE, OP, UNCHANGED, Table

SMALL_ROWS = 8  # up to this, compressing buffers one by one costs more than it saves
DEFLATED_BYTES_MAX = 8 << 10  # larger messages are not mostly description
UNCOMPRESSED_ROWS, UNCOMPRESSED_BYTES = (
    256,
    16 << 10,
)  # up to both, reading a compressed message costs more than it saves

NO_OP, NO_UNCHANGED, NO_BEFORE = 1, 2, 4
PLAIN_BYTES_MIN = 64 << 10  # smaller messages are no indication of the next ones
PLAIN_FROM = 0.9  # if lz4 leaves at least this share of a message's size, messages are written uncompressed ...
PLAIN_MESSAGES = 31  # ... this many times, until it is tried again
_DICTIONARY, _DEFLATED = 1, 2

_HEAD = struct.Struct("<IBBBBqII")
_BOUND = struct.Struct("<i")
_GAPS: dict[int, npt.DTypeLike] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)

Part = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ShapeEntry:
    """A shape that later frames may use. `version` is its number in the schema history (0 in a spool)."""

    table: Table
    version: int


@dataclass(frozen=True, slots=True)
class ShapeRows:
    """Rows of one shape; `offsets` ascend. In a spool they count from 0 within their piece.

    `stored` has the shape's columns except those in `left_out`; `op` is the op of all rows if `_op` is omitted.
    """

    shape: ShapeEntry
    offsets: Int64s
    stored: pa.RecordBatch
    left_out: int = 0
    op: str = ""

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows with all columns (`Table.change_schema`)."""
        if not self.left_out:
            return self.stored
        return with_omitted_columns(self.shape.table, self.stored, self.left_out, [self.op], [self.stored.num_rows])


def with_omitted_columns(
    table: Table, stored: pa.RecordBatch, left_out: int, ops: Sequence[str], counts: Sequence[int]
) -> pa.RecordBatch:
    """Return rows with the omitted columns restored: `ops[i]` is the op of `counts[i]` rows, one group after
    another."""
    columns = list(stored.columns)
    own = len(table.columns)
    count = stored.num_rows
    if left_out & NO_OP:
        letters = np.frombuffer("".join(ops).encode("ascii"), np.uint8)
        ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32))
        content = pa.py_buffer(np.repeat(letters, counts))
        columns.insert(own, pa.Array.from_buffers(pa.string(), count, [None, ends, content], 0))
    schema = table.change_schema
    for bit, column in ((NO_UNCHANGED, own + 1), (NO_BEFORE, own + 2)):
        if left_out & bit:
            columns.insert(column, pa.nulls(count, schema.field(column).type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@lru_cache(maxsize=4096)
def _stored_schema(table: Table, left_out: int) -> pa.Schema:
    gone = {name for bit, name in ((NO_OP, OP), (NO_UNCHANGED, UNCHANGED), (NO_BEFORE, BEFORE)) if left_out & bit}
    return pa.schema([field for field in table.change_schema if field.name not in gone])


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────


class RowsEncoder:
    """Encodes the rows of one shape for one file. `deflates`: the first small message is the dictionary for
    later ones."""

    def __init__(self, table: Table, number: int, *, deflates: bool = True) -> None:
        self._table = table
        self.number = number
        self._deflates = deflates
        self._messages: dict[int, _Messages] = {}

    def parts(self, batch: ChangeBatch, first: int) -> list[Part]:
        """Return the payload of a rows frame, in pieces. The first row of the run (or piece) has offset `first`."""
        rows, index = batch.rows, batch.index
        op, left_out = _left_out(rows)
        messages = self._messages.get(left_out)
        if messages is None:
            schema = _stored_schema(self._table, left_out)
            messages = self._messages[left_out] = _Messages(rows.schema, schema, deflates=self._deflates)
        form, size, message = messages.parts(rows)
        width, gaps = _gaps(index)
        offset, count = first + int(index[0]), rows.num_rows
        head = _HEAD.pack(self.number, width, op, left_out, form, offset, count, size)
        return [head + gaps if gaps else head, *message]


class _Messages:
    """Turns batches into encapsulated Arrow IPC messages of some of their columns, without the schema."""

    def __init__(self, whole: pa.Schema, stored: pa.Schema, *, deflates: bool) -> None:
        self._schema = stored
        self._deflates = deflates
        self._column_order = None if len(whole) == len(stored) else [whole.get_field_index(n) for n in stored.names]
        self._packed: _StreamWriter | None = None
        self._plain: _StreamWriter | None = None
        self._plain_left = 0
        self._template: zlib._Compress | None = None

    def parts(self, batch: pa.RecordBatch) -> tuple[int, int, list[Part]]:
        """Return the form of a message, its bytes before it was deflated (0: it was not), and the message in pieces."""
        if self._column_order is not None:
            batch = batch.select(self._column_order)
        if batch.num_rows <= SMALL_ROWS:
            message = memoryview(batch.serialize())
            if not self._deflates or len(message) > DEFLATED_BYTES_MAX:
                return 0, 0, [message]
            if self._template is None:
                self._template = _deflater(message.tobytes())
                return _DICTIONARY, 0, [message]
            deflater = self._template.copy()
            return _DEFLATED, len(message), [deflater.compress(message) + deflater.flush()]
        return 0, 0, self._large(batch)

    def _large(self, batch: pa.RecordBatch) -> list[Part]:
        if batch.num_rows <= UNCOMPRESSED_ROWS and len(message := memoryview(batch.serialize())) <= UNCOMPRESSED_BYTES:
            return [message]
        if self._plain_left:
            self._plain_left -= 1
            self._plain = self._plain or _StreamWriter(self._schema, _PLAIN)
            return self._plain.pieces(batch)
        self._packed = self._packed or _StreamWriter(self._schema, _LZ4)
        pieces = self._packed.pieces(batch)
        size = sum(map(len, pieces))
        if size >= PLAIN_BYTES_MIN and size > PLAIN_FROM * batch.nbytes:
            self._plain_left = PLAIN_MESSAGES
        return pieces


class _StreamWriter:
    """Writes encapsulated messages with one kind of compression. Only a stream writer can compress, and it writes the
    schema first, so that message is discarded."""

    def __init__(self, schema: pa.Schema, options: pa.ipc.IpcWriteOptions) -> None:
        self._sink = _Pieces()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, mode="w"), schema, options=options)
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema))

    def pieces(self, batch: pa.RecordBatch) -> list[Part]:
        found = self._sink.pieces = list[Part]()
        self._writer.write_batch(batch)
        return found


class _Pieces:
    """A file object that collects everything that is written to it, in pieces."""

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


def _deflater(dictionary: bytes) -> zlib._Compress:
    # The window must reach back over a message and the dictionary; a larger one costs time at every copy.
    window = min(15, max(10, (2 * len(dictionary) + 1024).bit_length()))
    return zlib.compressobj(1, zlib.DEFLATED, -window, 1, zlib.Z_DEFAULT_STRATEGY, dictionary)


def _left_out(rows: pa.RecordBatch) -> tuple[int, int]:
    """Return the op of all rows (as its character code; 0 if they differ), and the set of redundant columns."""
    own = rows.num_columns - 3
    count = rows.num_rows
    op = _only_op(rows.column(own), count)
    left_out = NO_OP if op else 0
    if rows.column(own + 1).null_count == count:
        left_out |= NO_UNCHANGED
    if rows.column(own + 2).null_count == count:
        left_out |= NO_BEFORE
    return op, left_out


def _only_op(ops: pa.StringArray, count: int) -> int:
    _, ends, content = ops.buffers()
    if content is None:
        return 0
    bounds = memoryview(ends)
    (first,) = _BOUND.unpack_from(bounds, 4 * ops.offset)
    (last,) = _BOUND.unpack_from(bounds, 4 * (ops.offset + count))
    letters = bytes(memoryview(content)[first:last])
    return letters[0] if len(letters) == count and letters.count(letters[:1]) == count else 0


def _gaps(index: Int64s) -> tuple[int, bytes]:
    """Return the gaps between the offsets of rows: the width of a number in bytes (0: there are no gaps), and for each
    row after the first the number of rows of other shapes before it."""
    if int(index[-1]) - int(index[0]) == len(index) - 1:
        return 0, b""
    gaps = np.diff(index) - 1
    most = int(gaps.max())
    width = next(w for w in (1, 2, 4, 8) if most < 1 << 8 * w)
    text = gaps.astype(_GAPS[width]).tobytes()
    return width, text + b"\0" * (-len(text) % 8)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────


class RowsDecoder:
    """Decodes the rows frames of one file, in the order of the file: small messages need earlier ones."""

    def __init__(self) -> None:
        self._dictionaries: dict[tuple[int, int], bytes] = {}

    def rows(self, payload: bytes, shapes: Sequence[ShapeEntry]) -> ShapeRows:
        """Return the content of a rows frame. Raises ValueError, an Arrow error or a similar one if it is invalid."""
        number, width, op, left_out, form, first, count, size = _HEAD.unpack_from(payload)
        shape = shapes[number]
        begin = _HEAD.size
        if width:
            offsets = _offsets(payload, width, first, count)
            begin += width * (count - 1) + (-width * (count - 1) % 8)
        else:
            offsets = np.arange(first, first + count, dtype=np.int64)
        content = memoryview(payload)[begin:]
        message: Part = content
        if form == _DEFLATED:
            message = self._inflate(content, size, (number, left_out))
        elif form == _DICTIONARY:
            self._dictionaries[number, left_out] = bytes(content[:DEFLATED_BYTES_MAX])
        stored = pa.ipc.read_record_batch(pa.py_buffer(message), _stored_schema(shape.table, left_out))
        stored.validate()
        if stored.num_rows != count or bool(left_out & NO_OP) != bool(op) or op > 127:
            raise ValueError("the batch does not have the rows that it should")
        return ShapeRows(shape, offsets, stored, left_out, chr(op) if op else "")

    def _inflate(self, content: memoryview, size: int, key: tuple[int, int]) -> bytes:
        if size > DEFLATED_BYTES_MAX:
            raise ValueError("a deflated message is too large")
        inflater = zlib.decompressobj(-15, self._dictionaries[key])
        message = inflater.decompress(content, size + 1)
        if len(message) != size:
            raise ValueError("a deflated message does not have its size")
        return message


def rows_extent(payload: bytes) -> tuple[int, int, int, int]:
    """Return four facts about a rows frame without reading its batch: its first offset, its last one, the number of its
    rows, and the sum of their offsets. Raises ValueError or struct.error if the frame is invalid."""
    _, width, _, _, _, first, count, _ = _HEAD.unpack_from(payload)
    if not width:
        return first, first + count - 1, count, count * first + count * (count - 1) // 2
    offsets = _offsets(payload, width, first, count)
    return first, int(offsets[-1]), count, int(offsets.sum())


def is_needless(payload: bytes, before: int) -> bool:
    """Return whether a rows frame has only offsets below `before`, and no later frame depends on it. False if it is
    invalid: decoding it reports the error."""
    try:
        return _HEAD.unpack_from(payload)[4] != _DICTIONARY and rows_extent(payload)[1] < before
    except (struct.error, ValueError, KeyError):
        return False


def _offsets(payload: bytes, width: int, first: int, count: int) -> Int64s:
    gaps = np.frombuffer(payload, np.dtype(_GAPS[width]).newbyteorder("<"), count - 1, _HEAD.size).astype(np.int64)
    if count > 1 and int(gaps.min()) < 0:
        raise ValueError("the offsets do not ascend")
    offsets = np.empty(count, np.int64)
    offsets[0] = first
    offsets[1:] = first + np.cumsum(gaps + 1)
    return offsets
