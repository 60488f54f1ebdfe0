"""Choose the files of the change log that a query's tasks read: those that may have a row that passes its filters.

    filters on _offset                      narrow the range
    on the first column of the key          skip files by the bounds in their manifests
    on commit time, a lower bound           skip segments that ended before

Spark filters every row again, so a filter that is not understood is ignored here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from cdcflow.log.read.alignment import sources
from cdcflow.log.read.feed import COMMIT_TIMESTAMP
from cdcflow.log.read.moments import clock_of
from cdcflow.model.table import COMMIT_TS, OFFSET, Table
from cdcflow.tables.segments import InputFile

PARTITION_BYTES = 32 << 20
"""Bytes of Parquet files per task: a task gets several small files, or a part of a large one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a file to read: offsets from `first` to `last`, both inclusive."""

    file: InputFile
    first: int
    last: int


class Pieces(InputPartition):
    """The pieces of files that one task reads, sorted by offset."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(tuple(pieces))
        self.pieces = tuple(pieces)


def pack_files(files: Sequence[InputFile], first: int, last: int) -> list[InputPartition]:
    """Return tasks of about the same size that together read the files' rows between two offsets."""
    found: list[InputPartition] = []
    together: list[Piece] = []
    size = 0
    for file in files:
        slim = _slim(file)
        low, high = max(first, file.file.first_offset), min(last, file.file.last_offset)
        if file.file.bytes > PARTITION_BYTES:
            count = -(-file.file.bytes // PARTITION_BYTES)
            step = -(-(high - low + 1) // count)
            found += [Pieces([Piece(slim, at, min(high, at + step - 1))]) for at in range(low, high + 1, step)]
            continue
        if together and size + file.file.bytes > PARTITION_BYTES:
            found.append(Pieces(together))
            together, size = [], 0
        together.append(Piece(slim, low, high))
        size += file.file.bytes
    return [*found, *([Pieces(together)] if together else [])]


def narrow_range(first: int, last: int, filters: Sequence[Filter]) -> tuple[int, int]:
    """Return a range of offsets, narrowed by filters on `_offset`."""
    for one in filters:
        if getattr(one, "attribute", None) != (OFFSET,):
            continue
        match one:
            case EqualTo(value=int(value)):
                first, last = max(first, value), min(last, value)
            case GreaterThan(value=int(value)):
                first = max(first, value + 1)
            case GreaterThanOrEqual(value=int(value)):
                first = max(first, value)
            case LessThan(value=int(value)):
                last = min(last, value - 1)
            case LessThanOrEqual(value=int(value)):
                last = min(last, value)
            case _:
                pass
    return first, last


def may_have(file: InputFile, target: Table, filters: Sequence[Filter]) -> bool:
    """Return whether a file may have a row that passes all filters, according to its manifest."""
    return all(_may_have(file, target, one) for one in filters)


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _may_have(file: InputFile, target: Table, one: Filter) -> bool:
    name = getattr(one, "attribute", None)
    value = getattr(one, "value", None)
    if name in ((COMMIT_TS,), (COMMIT_TIMESTAMP,)) and isinstance(one, GreaterThan | GreaterThanOrEqual):
        # The clock at a segment's end is at least as late as all commit times up to it.
        clock = file.segment.checkpoint.get("commit_clock")
        is_known = isinstance(value, datetime) and value.tzinfo is not None and isinstance(clock, int)
        return not (is_known and isinstance(clock, int) and clock < clock_of(value))  # type: ignore[arg-type]
    if not file.shape.key or file.file.key_min is None or file.file.key_max is None:
        return True
    own = dict(zip((c.name for c in target.columns), sources(file.shape, target), strict=True))
    column = own.get(name[0]) if isinstance(name, tuple) and len(name) == 1 else None
    if column is None or column.name != file.shape.key[0]:
        return True
    low, high = _key_bounds(file, column.type.arrow)
    if low is None or high is None:
        return True
    match one:
        case EqualTo():
            return not _is_alike(value, low) or low <= value <= high
        case In(value=values):
            return any(not _is_alike(each, low) or low <= each <= high for each in values)
        case GreaterThan() | GreaterThanOrEqual():
            return not _is_alike(value, low) or value <= high
        case LessThan() | LessThanOrEqual():
            return not _is_alike(value, low) or value >= low
        case _:
            return True


def _key_bounds(file: InputFile, arrow: pa.DataType) -> tuple[Any, Any]:
    """Return the bounds of the first key column if it has whole numbers or dates; `None` for other types."""
    texts = (str(file.file.key_min), str(file.file.key_max))
    if pa.types.is_integer(arrow):
        return int(texts[0]), int(texts[1])
    if pa.types.is_date(arrow):
        try:
            return date.fromisoformat(texts[0]), date.fromisoformat(texts[1])
        except ValueError:  # a year outside the range of Python's dates
            return None, None
    return None, None


def _is_alike(value: object, bound: object) -> bool:
    return type(value) is type(bound)


def _slim(file: InputFile) -> InputFile:
    """Return the file without those parts of its segment that no task needs: a checkpoint may be large."""
    segment = replace(file.segment, checkpoint={}, files=(), seams=(), backfills=())
    return replace(file, segment=segment, file=replace(file.file, table=None, key_runs=None))
