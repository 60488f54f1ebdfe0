"""Result sets (text protocol): where rows are in the received bytes, and rows as Arrow columns. Pure.

    packet   length(3) number(1) │ payload         a row: one packet; FE and less than 9 bytes: the end; FF: an error

A row is one packet, in which each cell is preceded by its length, or is the byte FB for NULL. So the cells of a column
are found for all rows at once, and the next column's cells begin where they end. The columns equal those that the
binary log yields for the same rows.

`row_packets` and `decode` are the reference decoders. The compiled ones (`decoders.py`) return the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import PAD, Buffer, Cells, protocol_error, with_padding
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.tables import DescribedTable

PACKET_MAX = 0xFFFFFF
"""The length of every packet of a row of 16 MiB and more, except the last."""
PACKET_HEADER = 4
NEEDS_MORE, ENDED, OTHER = 0, 1, 2
"""Why no more packets were taken. NEEDS_MORE: the last packet is incomplete; ENDED: the result has ended; OTHER: the
packet is not a whole row, but a part of a long row, or an error."""


@dataclass(frozen=True, slots=True)
class Framed:
    """Row packets found in bytes: their payloads, the offset of the first packet that was not taken, and the reason."""

    start: Int64s
    end: Int64s
    reached: int
    state: int


def row_packets(data: bytes) -> Framed:
    """Find the row packets at the beginning of `data`."""
    starts: list[int] = []
    at, size, state = 0, len(data), NEEDS_MORE
    ends: list[int] = []
    while at + PACKET_HEADER <= size:
        length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        stop = at + PACKET_HEADER + length
        if stop > size:
            break
        first = data[at + PACKET_HEADER] if length else 0
        if first >= 0xFE or length == PACKET_MAX:
            state = ENDED if first == 0xFE and length < 9 else OTHER
            if state == ENDED or first == 0xFF or length == PACKET_MAX:
                break
        starts.append(at + PACKET_HEADER)
        ends.append(stop)
        at = stop
    return Framed(np.array(starts, np.int64), np.array(ends, np.int64), at, state)


_NULL, _TWO, _THREE, _EIGHT = 0xFB, 0xFC, 0xFD, 0xFE


def decode(described: DescribedTable, data: bytes, rows: Extents) -> pa.RecordBatch:
    """Decode rows of `SELECT <select_expression of every column>`, in `described.table.row_schema`.

    `rows` are the row packets' payloads in `data` (without their headers). If `buffers.PAD` bytes follow the last one,
    nothing is copied. The session's character set must be utf8mb4 and its time zone +00:00.

    Raises:
        SourceUnavailable: the bytes cannot be such rows.
        ConfigurationError: its column's Arrow type cannot hold a value; the message names the column.
    """
    reached = int(rows.end.max()) if len(rows.end) else 0
    buffer = Buffer(data) if reached + PAD <= len(data) else with_padding([data])
    columns = _cells(buffer, rows, len(described.codecs))
    arrays = [codec.result(cells, codec.where) for codec, cells in zip(described.codecs, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=described.table.row_schema)


def _cells(buffer: Buffer, rows: Extents, columns: int) -> list[Cells]:
    at, end = rows.start, rows.end
    found = []
    for _ in range(columns):
        if (at >= end).any():
            raise protocol_error("a row of a result set ends before its columns")
        first = buffer.bytes[at]
        null = first == _NULL
        size, header = first.astype(np.int64), np.ones(len(at), np.int64)
        if len(first) and int(first.max()) >= _NULL:
            size[null] = 0
            for mark, kind, width in ((_TWO, "<u2", 2), (_THREE, "<u4", 3), (_EIGHT, "<i8", 8)):
                long = first == mark
                size[long] = buffer.values(kind, at[long] + 1).astype(np.int64) & (
                    (1 << 8 * width) - 1 if width < 8 else -1
                )
                header[long] = 1 + width
        start = at + header
        if (first == 0xFF).any() or (size < 0).any() or (size > end - start).any():
            raise protocol_error("a value of a result set reaches beyond its row")
        at = start + size
        found.append(Cells(buffer, start, size, ~null if null.any() else None))
    if (at != end).any():
        raise protocol_error("a row of a result set continues after its columns")
    return found


def cells_of(data: bytes, start: int, end: int) -> list[bytes | None]:
    """Return the cells of one row of a result set, None for NULL.

    Raises:
        SourceUnavailable: the bytes are not such a row.
    """
    cells: list[bytes | None] = []
    at = start
    while at < end:
        first, at = data[at], at + 1
        if first == _NULL:
            cells.append(None)
            continue
        width = _WIDTHS.get(first, 0)
        size = int.from_bytes(data[at : at + width], "little") if width else first
        at += width
        if first == 0xFF or at + size > end:
            raise SourceUnavailable("the server sent a row that ends before its columns")
        cells.append(data[at : at + size])
        at += size
    return cells


_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
