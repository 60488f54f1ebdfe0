"""Decodes COPY (FORMAT binary) to columns: the rows of a chunk.

A row is its number of columns, then each value's length (-1: NULL) and bytes. The server sends each row as a separate
CopyData message, so the ends of rows are known if the messages are passed one by one. In joined bytes they are found
without walking row by row: every offset that could begin a row is tried at once, and of those the ones that the first
row leads to are kept, in steps of 1, 2, 4, 8 … rows.

Format: chapter "COPY", section "Binary Format".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cdcflow.errors import InvariantViolated
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import Buffer, Cells, protocol_error, with_padding
from cdcflow.sources.postgres.decoders import COMPILED, Compiled, layout_of
from cdcflow.sources.postgres.types import DescribedTable, decode
from cdcflow.sources.postgres.wire import Joined, join_messages

_SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
_TRAILER = b"\xff\xff"


def decode_copy(
    data: bytes | memoryview | Sequence[bytes] | Joined,
    described: DescribedTable,
    compiled: Compiled | None = COMPILED,
) -> pa.RecordBatch:
    """Return the rows of a COPY (FORMAT binary) of `described.copy_expressions`, as `described.table.row_schema`.

    `data` is the joined bytes, or the CopyData messages in order (faster). It may contain the file's header and
    trailer. Joined messages are not copied again. If `compiled` is None, the plain decoder is used.

    Raises:
        SourceUnavailable: the bytes are not such rows.
        ConfigurationError: a value that the column's policy does not allow.
    """
    columns = len(described.codecs)
    if isinstance(data, bytes | memoryview):
        body = bytes(data)
        buffer = with_padding([body[_header(body) :]])
        start, end = _rows_found(buffer, columns)
    else:
        buffer, start, end = _rows_given(data if isinstance(data, Joined) else join_messages(data))
    if compiled is not None:
        rows = compiled.copied(buffer.raw, start, end, layout_of(compiled, described))
        if rows is not None:
            return rows
    arrays = []
    if len(start) and ((start + 2 > end).any() or (buffer.int16(start) != columns).any()):
        raise protocol_error(f"a COPY row does not have the {columns} columns that were asked for")
    at = start + 2
    for codec in described.codecs:
        size = buffer.int32(at)
        start = at + 4
        null = size < 0
        if null.any():
            if (size < -1).any():
                raise protocol_error("a COPY value with a negative length")
            size = np.where(null, 0, size)
        at = start + size
        if (at > end).any():
            raise protocol_error("a COPY value reaches beyond its row")
        cells = Cells(buffer, start, size, ~null if null.any() else None)
        arrays.append(decode(codec, cells, as_binary=codec.binary is not None))
    if (at != end).any():
        raise protocol_error("a COPY row goes on after its last column")
    return pa.RecordBatch.from_arrays(arrays, schema=described.table.row_schema)


def count_rows(messages: Joined) -> int:
    """Return how many rows these messages, the first of a COPY (FORMAT binary), contain."""
    return len(_rows_given(messages)[1])


def _header(body: bytes) -> int:
    """Return the size of the file header, 0 if the bytes have none."""
    if not body.startswith(_SIGNATURE):
        return 0
    size = len(_SIGNATURE) + 8
    if len(body) < size:
        raise protocol_error("a COPY header that ends early")
    flags, extension = struct.unpack_from(">II", body, len(_SIGNATURE))
    if flags & 0xFFFF0000 or size + extension > len(body):
        raise protocol_error("a COPY header that is not known")
    return size + int(extension)


def _rows_given(messages: Joined) -> tuple[Buffer, Int64s, Int64s]:
    """Return where rows begin and end if each is a message, without header and trailer."""
    buffer, lengths = Buffer(messages.data), messages.lengths
    end = np.cumsum(lengths)
    if (int(end[-1]) if len(end) else 0) != buffer.size or (lengths < 0).any():
        raise InvariantViolated("messages joined with lengths that are not theirs", runbook="stream-not-understood")
    if not len(end):
        return buffer, end, end
    start = end - lengths
    start[0] = _header(buffer.raw[: int(end[0])])
    if start[0] == end[0]:
        start, end = start[1:], end[1:]
    if len(end) and buffer.raw[int(start[-1]) : int(end[-1])] == _TRAILER:
        start, end = start[:-1], end[:-1]
    return buffer, start, end


def _rows_found(buffer: Buffer, columns: int) -> tuple[Int64s, Int64s]:
    """Return where rows begin and end in joined bytes."""
    stop = buffer.size
    ended = stop - 2 if buffer.raw[max(stop - 2, 0) : stop] == _TRAILER else stop
    none = np.zeros(0, np.int64)
    if not ended:
        return none, none
    offsets = np.arange(stop)
    begin = offsets[buffer.int16(offsets) == columns]
    at = begin + 2
    sound = at <= stop
    for _ in range(columns):
        sound &= at + 4 <= stop
        size = buffer.int32(np.where(sound, at, 0))
        at = np.where(sound, at + 4 + np.maximum(size, 0), at)
        sound &= (size >= -1) & (at <= stop)
    # What follows each possible row: a further row (its number), the end, or nothing valid.
    end, nowhere = len(begin), len(begin) + 1
    leads = np.searchsorted(begin, at)
    found = np.append(begin, -1)[leads] == at
    leads = np.where(found, leads, np.where((at == stop) | (at == ended), end, nowhere))
    leads = np.append(np.where(sound, leads, nowhere), (end, nowhere))
    reached = np.array([0 if len(begin) and begin[0] == 0 else nowhere])
    while True:
        # `leads` maps a row to the one as many rows later as are reached already, so each round doubles their number.
        onward = leads[reached]
        reached = np.concatenate([reached, onward[onward < end]])
        if (onward >= end).any():
            break
        leads = leads[leads]
    if not (onward == end).any() or (onward == nowhere).any():
        raise protocol_error("a COPY without whole rows")
    return begin[reached], at[reached]
