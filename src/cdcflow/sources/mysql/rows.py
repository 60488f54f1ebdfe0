"""Row images of the binary log as Arrow columns."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pyarrow as pa

from cdcflow.model.change import Int64s
from cdcflow.sources.mysql.shapes import DescribedTable


class RowKind(enum.Enum):
    """What a ROWS event does."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Extents:
    """Where the rows of ROWS events lie: bytes `start` (inclusive) to `end` (exclusive) of a buffer, per event."""

    start: Int64s
    end: Int64s


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Changes of one table shape in order; `counts` says how many of them come from each extent."""

    rows: pa.RecordBatch
    counts: Int64s


def changes(
    described: DescribedTable,
    data: bytes,
    extents: Extents,
    kind: RowKind,
    present_before: bytes,
    present_after: bytes,
    partial_json: bool = False,
) -> DecodedRows:
    """The rows of ROWS events of one table shape, one kind and one pair of column bitmaps.

    `data` may go on behind the last extent; where `buffers.PAD` bytes follow it, nothing is copied.

    Raises:
        SourceUnavailable: the bytes cannot be rows of this table.
        ConfigurationError: a value has no place in its column's type, or a row comes without its key; by name.
    """
    raise NotImplementedError
