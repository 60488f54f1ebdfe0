"""Indexes of the values in a column of a file (`value_places`), and which of them this process has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from cdcflow.tables.local.stored_columns import StoredPlace
from cdcflow.tables.local.table_files import File, NewFile, TableFiles
from cdcflow.tables.local.value_places import BY_HASH, BY_VALUE, PLACES, Hashes, ValuePlaces, open_places

Parts = Callable[[], Iterable[pa.ChunkedArray]]
"""A function that returns a column of a file, part by part."""


def index_of(
    table: TableFiles[File], file: File, column: str, rows: int, parts: Parts, *, at_once: bool
) -> ValuePlaces | None:
    """Return the index of a column of a file that has this number of rows; `None` if it has no index. `at_once`: create
    it even if it was not needed before."""
    what = _kind_of(table, column)
    read = partial(_read, table, table.stored_place(file, column, what), column, rows, parts)
    return PLACES.offer((table.content_of(file, column), what), rows, read, at_once=at_once)


def index_new_file(table: TableFiles[Any], file: NewFile, column: str, values: pa.ChunkedArray) -> None:
    """Create the index of a column of a file that was just written. `values`: the column, in the order of the file."""
    what = _kind_of(table, column)
    place = table.stored_place_of_new(file, column, what)
    read = partial(_read, table, place, column, len(values), lambda: map(_as_column, values.chunks))
    PLACES.offer((table.content_of_new(file, column), what), len(values), read, at_once=True)


def indexed_columns(table: TableFiles[File], files: Sequence[File]) -> list[str]:
    """Return the columns for which this process has an index of at least one of these files."""
    kinds = {name: _kind_of(table, name) for name in table.schema.names}
    return [
        n for n, what in kinds.items() if any(PLACES.get((table.content_of(f, n), what)) is not None for f in files)
    ]


def hashes_of(table: TableFiles[Any], values: pa.ChunkedArray) -> Hashes:
    """Return a hash of each value, by DuckDB."""
    rows = pa.table({"v": values})
    hashed = table.session.over_own(rows, lambda given: f"SELECT hash(v) AS h FROM {given}")  # noqa: S608  cdcflow's own
    found: Hashes = hashed.column(0).to_numpy()
    return found


def has_whole_numbers(type_: pa.DataType) -> bool:
    """Return whether values of a type are found by themselves, not by a hash."""
    return bool(pa.types.is_signed_integer(type_))


def _kind_of(table: TableFiles[Any], column: str) -> str:
    type_ = table.schema.field(column).type
    return BY_VALUE if has_whole_numbers(type_) else f"{BY_HASH} as {type_}"


def _read(
    table: TableFiles[Any], place: StoredPlace | None, column: str, rows: int, parts: Parts
) -> ValuePlaces | None:
    is_whole = has_whole_numbers(table.schema.field(column).type)
    return open_places(place, rows, parts, None if is_whole else partial(hashes_of, table))


def _as_column(values: pa.Array) -> pa.ChunkedArray:
    return pa.chunked_array([values])
