"""Rows of result sets (text protocol) as Arrow columns, equal to what the binary log gives for the same rows.

A row is one packet, in which each cell has its length before it, or is the byte FB for NULL. So the cells of a column
are found for all rows at once, and the next column's begin where they end.

`decode` is the reference decoder. The compiled one (`decoders.py`) gives the same.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdcflow.sources.buffers import PAD, Buffer, Cells, padded, protocol_error
from cdcflow.sources.mysql.codecs import quoted, select_expression
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.shapes import DescribedTable

__all__ = ["decode", "quoted", "select_expression"]

_NULL, _TWO, _THREE, _EIGHT = 0xFB, 0xFC, 0xFD, 0xFE


def decode(described: DescribedTable, data: bytes, rows: Extents) -> pa.RecordBatch:
    """Rows of `SELECT <select_expression of every column>`, in `described.table.row_schema`.

    `rows` are the row packets' payloads in `data` (without their headers). Where `buffers.PAD` bytes follow the last
    one, nothing is copied. The session's character set must be utf8mb4 and its time zone +00:00.

    Raises:
        SourceUnavailable: the bytes cannot be such rows.
        ConfigurationError: a value has no place in its column's type; by name.
    """
    reached = int(rows.end.max()) if len(rows.end) else 0
    buffer = Buffer(data) if reached + PAD <= len(data) else padded([data])
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
        raise protocol_error("a row of a result set goes on after its columns")
    return found
