"""Rows of result sets (text protocol) as Arrow columns, equal to what the binary log gives for the same rows."""

from __future__ import annotations

import pyarrow as pa

from cdcflow.sources.mysql.rows import Extents
from cdcflow.sources.mysql.shapes import DescribedTable
from cdcflow.sources.mysql.types import ServerColumn


def quoted(name: str) -> str:
    """An identifier in SQL, whatever characters it has (hard case S01)."""
    return "`" + name.replace("`", "``") + "`"


def select_expression(column: ServerColumn) -> str:
    """What a chunk's SELECT asks for so that no bit of this column's values is lost on the way."""
    raise NotImplementedError


def decode(described: DescribedTable, data: bytes, rows: Extents) -> pa.RecordBatch:
    """Rows of `SELECT <select_expression of every column>`, in `described.table.row_schema`.

    `rows` are the row packets' payloads in `data` (without their headers). Where `buffers.PAD` bytes follow the last
    one, nothing is copied. The session's character set must be utf8mb4 and its time zone +00:00.

    Raises:
        SourceUnavailable: the bytes cannot be such rows.
        ConfigurationError: a value has no place in its column's type; by name.
    """
    raise NotImplementedError
