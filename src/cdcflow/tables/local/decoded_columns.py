"""Decoded columns of files, as Arrow has them in memory, kept by a process that derives tables repeatedly.

Reading rows at random places of a file costs as much as reading all of its rows, because Parquet is decoded a row group
at a time. Files never change, so a column is decoded once, into a file that is mapped into memory (`stored_columns`);
after that, reading a row costs only its bytes, and the kernel can take the pages back. This happens the first time that
most of a column has to be decoded anyway, and for files that compaction has just written (`columns_in_use`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdcflow.tables.local.file_keys import KnownColumns
from cdcflow.tables.local.scan import Numbers, RowGroup, ScannedFile
from cdcflow.tables.local.stored_columns import MappedArrays, open_or_store
from cdcflow.tables.local.table_files import File, NewFile, TableFiles

BYTES_MAX = 1 << 30
"""At most about this many bytes of decoded columns are kept."""

ROWS_MIN, PART_MIN = 1 << 18, 4
"""Limits for decoding a column. If the row groups with the requested rows have fewer rows than the first number, or
less than a quarter (1 / the second number) of the file's rows, only these groups are read, which is faster."""

_ROW_BYTES = 8


class DecodedColumn:
    """The values of a column of a file, by the numbers of the file's rows."""

    is_mapped = True

    def __init__(self, stored: MappedArrays) -> None:
        self._parts, self._memory = stored.parts, stored.memory
        self._firsts = np.cumsum([0, *map(len, self._parts)])
        self.bytes = len(stored.memory.buffer)

    def take(self, numbers: Numbers) -> list[pa.Array]:
        """Return the values of some rows, whose numbers ascend."""
        ends = np.searchsorted(numbers, self._firsts)
        found = [
            part.take(pa.array(numbers[begin:end] - first))
            for part, first, begin, end in zip(self._parts, self._firsts, ends, ends[1:], strict=False)
            if begin < end
        ]
        self._memory.give_back()
        return found


DECODED: KnownColumns[DecodedColumn] = KnownColumns(BYTES_MAX, row_bytes=_ROW_BYTES)
"""The decoded columns of this process."""


def reads_most(opened: ScannedFile, groups: Sequence[RowGroup]) -> bool:
    """Return whether reading these row groups costs about as much as reading the whole file."""
    return sum(group.rows for group in groups) >= max(ROWS_MIN, len(opened) // PART_MIN)


def take_rows(
    table: TableFiles[File], file: File, opened: ScannedFile, numbers: Numbers, columns: Sequence[str]
) -> pa.Table:
    """Return these columns of some rows of a file, whose numbers ascend."""
    groups = [g for g in opened.groups if np.diff(np.searchsorted(numbers, [g.first, g.first + g.rows]))[0]]
    if not reads_most(opened, groups):
        return opened.take(numbers, columns)
    schema = pa.schema([table.schema.field(name) for name in columns])
    held = {name: _column(table, file, opened, name) for name in columns}
    others = [name for name, column in held.items() if column is None]
    found = dict(zip(others, opened.take(numbers, others).columns, strict=True)) if others else {}
    for name, column in held.items():
        if column is not None:
            found[name] = pa.chunked_array(column.take(numbers), schema.field(name).type)
    return pa.table([found[name] for name in columns], schema=schema)


def _column(table: TableFiles[File], file: File, opened: ScannedFile, name: str) -> DecodedColumn | None:
    """Return a decoded column of a file; `None` if it is not kept, and is not decoded now either."""
    type_ = table.schema.field(name).type
    place = table.stored_place(file, name, _kind_of(type_))

    def decode() -> DecodedColumn:
        return DecodedColumn(open_or_store(place, lambda: (type_, _decode(opened, name), ())))

    return DECODED.offer((table.content_of(file, name), str(type_)), len(opened), decode, at_once=True)


def keep_new_column(table: TableFiles[Any], file: NewFile, name: str, values: pa.ChunkedArray) -> None:
    """Keep a column of a file that was just written. `values`: the column, in the order of the file."""
    type_ = table.schema.field(name).type
    place = table.stored_place_of_new(file, name, _kind_of(type_))

    def copy() -> DecodedColumn:
        return DecodedColumn(open_or_store(place, lambda: (type_, values.chunks, ())))

    DECODED.offer((table.content_of_new(file, name), str(type_)), len(values), copy, at_once=True)


def kept_columns(table: TableFiles[File], files: Sequence[File]) -> list[str]:
    """Return the columns that this process keeps decoded for at least one of these files."""
    types = {field.name: str(field.type) for field in table.schema}
    return [n for n, t in types.items() if any(DECODED.get((table.content_of(f, n), t)) is not None for f in files)]


def _kind_of(type_: pa.DataType) -> str:
    return f"values as {type_}"


def _decode(opened: ScannedFile, name: str) -> Iterator[pa.Array]:
    for group in opened.groups:
        yield from opened.read([group], [name]).column(0).chunks
