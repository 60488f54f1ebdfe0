"""Find rows in a file of a table by reading a few columns of a few row groups.

A row's number is its position in the file, including deleted and unread rows. No Python object is created per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cdcflow.log.files.parquet import THREADED_ROWS
from cdcflow.log.thread_priority import has_lower_priority
from cdcflow.model.table import MISSING
from cdcflow.tables.folders import Span
from cdcflow.tables.job.failures import reading

Numbers = NDArray[np.int64]
"""Numbers of rows in a file, ascending and unique."""

Int64s = NDArray[np.int64]

NONE: Numbers = np.array([], np.int64)

Ends = tuple[Any, Any]
"""A column's least and greatest value in a file: numbers (also days or microseconds) or texts."""

ROWS_AT_ONCE = 1 << 21
"""The keys of at most this many rows are held in memory, unless a single row group has more."""

FETCHED_BYTES = 32 << 20
"""At most this many bytes of a file are requested ahead, unless a single row group has more."""

SLICE_ROWS = 1 << 16
"""Deleted rows are filtered in slices of this many rows, by as many threads as there are processors."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file: its number, the number of its first row, and how many rows it has."""

    number: int
    first: int
    rows: int


class ScannedFile:
    """An open Parquet file of a table. Use it in a `with`.

    `schema`: the table's columns. `held`: the same columns, nested ones included, as files name them; a column that
    this file lacks is NULL in each row. `deleted` returns the numbers of the file's deleted rows. `place`: the name of
    the file in errors. `fetch` requests the parts of the file that are read next, where reading each alone is slow.
    """

    def __init__(
        self,
        file: pq.ParquetFile,
        schema: pa.Schema,
        held: pa.Schema,
        deleted: Callable[[], Numbers],
        place: Path | str = "",
        fetch: Callable[[Sequence[Span]], None] | None = None,
    ) -> None:
        self._place = place
        self._fetch = fetch
        self._file = file
        self._schema = schema
        self._types = self._file.schema_arrow  # pyarrow computes it each time
        self._leaves = _leaves(self._types)
        self._held = held
        self._names = {c: name for c, name in zip(schema.names, held.names, strict=True) if name in self._leaves}
        self._deleted = deleted
        sizes = [self._file.metadata.row_group(n).num_rows for n in range(self._file.metadata.num_row_groups)]
        firsts = accumulate(sizes, initial=0)
        self.groups = [RowGroup(n, first, size) for n, (first, size) in enumerate(zip(firsts, sizes, strict=False))]

    def __enter__(self) -> ScannedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close(force=True)

    def __len__(self) -> int:
        """Return how many rows the file has, including deleted ones."""
        return int(self._file.metadata.num_rows)

    @cached_property
    def deleted_rows(self) -> Numbers:
        """The numbers of the file's deleted rows."""
        return self._deleted()

    @cached_property
    def lives(self) -> NDArray[np.bool_]:
        """For each row, whether it is not deleted."""
        found = np.ones(len(self), bool)
        found[self.deleted_rows] = False
        return found

    def ends(self, column: str) -> list[Ends | None]:
        """Return the column's bounds in each row group; `None` if the file has none, or does not order them as SQL
        does."""
        name = self._names.get(column)
        if name is None:
            return [None] * len(self.groups)
        type_ = self._types.field(name).type
        leaf = self._leaves[name].start
        return [_ends(self._file.metadata.row_group(group.number).column(leaf), type_) for group in self.groups]

    def is_null(self, column: str) -> bool:
        """Return whether the file's statistics show that no row has a value in the column, or in anything nested in
        it."""
        if column not in self._names:
            return True
        told = (self._file.metadata.row_group(group.number) for group in self.groups)
        chunks = [one.column(leaf) for one in told for leaf in self._leaves[self._names[column]]]
        return all(c.statistics is not None and c.statistics.null_count == c.num_values for c in chunks)

    def size(self, groups: Sequence[RowGroup], columns: Sequence[str]) -> int:
        """Return how many bytes of the file must be read for these columns of these row groups."""
        leaves = [leaf for c in columns if c in self._names for leaf in self._leaves[self._names[c]]]
        told = (self._file.metadata.row_group(group.number) for group in groups)
        return sum(one.column(leaf).total_compressed_size for one in told for leaf in leaves)

    def read(self, groups: Sequence[RowGroup], columns: Sequence[str]) -> pa.Table:
        """Return these columns of all rows of these row groups, with the table's types."""
        return self._with_table_names(self._read(groups, columns), columns, sum(g.rows for g in groups))

    def living(self, columns: Sequence[str]) -> pa.Table:
        """Return these columns of all rows that are not deleted. One further row group is held in memory while it
        reads."""
        if not len(self.deleted_rows):
            return self.read(self.groups, columns)
        with ThreadPoolExecutor(pa.cpu_count()) as threads:
            groups = self._fetch_groups(self.groups, columns)
            parts = [part for group in groups for part in self._living(group, columns, threads)]
        return self._with_table_names(pa.concat_tables(parts), columns, len(self) - len(self.deleted_rows))

    def _living(self, group: RowGroup, columns: Sequence[str], threads: Executor) -> list[pa.Table]:
        found, lives = self._read([group], columns), pa.array(self.lives[group.first : group.first + group.rows])
        if not found.num_columns:
            return [found]

        def among(first: int) -> pa.Table:
            return found.slice(first, SLICE_ROWS).filter(lives.slice(first, SLICE_ROWS))

        if group.rows <= SLICE_ROWS:
            return [among(0)]
        return list(threads.map(among, range(0, group.rows, SLICE_ROWS)))

    def _read(self, groups: Sequence[RowGroup], columns: Sequence[str]) -> pa.Table:
        """Read those of the columns that may have a value in the file, in the file's types."""
        own = [self._names[c] for c in columns if self._has(c)]
        with reading(self._place):
            if self._fetch is not None:
                self._fetch([span for group in groups for span in self._spans(group, own)])
            is_large = sum(g.rows for g in groups) > THREADED_ROWS and not has_lower_priority()
            return self._file.read_row_groups([g.number for g in groups], columns=own, use_threads=is_large)

    def _fetch_groups(self, groups: Sequence[RowGroup], columns: Sequence[str]) -> Iterator[RowGroup]:
        """Yield the row groups one by one; the caller reads each by `_read` before the next. The parts of several are
        requested together."""
        if self._fetch is None:
            yield from groups
            return
        own = [self._names[c] for c in columns if self._has(c)]
        held = {group.number: self._spans(group, own) for group in groups}
        portion: list[RowGroup] = []
        size = 0
        for group in groups:
            more = sum(end - start for start, end in held[group.number])
            if portion and size + more > FETCHED_BYTES:
                self._fetch([span for one in portion for span in held[one.number]])
                yield from portion
                portion, size = [], 0
            portion.append(group)
            size += more
        self._fetch([span for one in portion for span in held[one.number]])
        yield from portion

    def _spans(self, group: RowGroup, own: Sequence[str]) -> list[Span]:
        """Return the byte ranges of these of the file's columns in a row group."""
        told = self._file.metadata.row_group(group.number)
        chunks = [told.column(leaf) for name in own for leaf in self._leaves[name]]
        starts = [c.dictionary_page_offset if c.has_dictionary_page else c.data_page_offset for c in chunks]
        return [(start, start + c.total_compressed_size) for start, c in zip(starts, chunks, strict=True)]

    def _has(self, column: str) -> bool:
        """Return whether the file may have a value in the column. Its statistics do not distinguish an empty list, or a
        struct of only NULLs, from NULL; for the column of missing columns both have the same meaning."""
        name = self._names.get(column)
        if name is None or (column != MISSING and pa.types.is_nested(self._types.field(name).type)):
            return name is not None
        return not self.is_null(column)

    def _with_table_names(self, found: pa.Table, columns: Sequence[str], count: int) -> pa.Table:
        """Return the columns with the table's names and types; NULL for those that were not read."""
        wanted = [self._schema.get_field_index(c) for c in columns]
        held = pa.schema([self._held.field(i) for i in wanted])
        read = set(found.column_names)

        def column(field: pa.Field) -> pa.ChunkedArray | pa.Array:
            return found.column(field.name).cast(field.type) if field.name in read else pa.nulls(count, field.type)

        rows = pa.table([column(field) for field in held], schema=held)
        return rename_columns(rows, pa.schema([self._schema.field(i) for i in wanted]))

    def find(self, groups: Sequence[RowGroup], keys: Sequence[str], pick: Callable[[pa.Table], Numbers]) -> Numbers:
        """Return the numbers of the rows in these row groups that are not deleted and whose keys `pick` selects. `pick`
        may return them in any order."""
        found = []
        for together in _together(groups):
            numbers = np.concatenate([np.arange(g.first, g.first + g.rows) for g in together])
            found.append(numbers[np.sort(pick(self.read(together, keys)))])
        wanted = np.concatenate([NONE, *found])
        return np.setdiff1d(wanted, self.deleted_rows, assume_unique=True)

    def take(self, numbers: Numbers, columns: Sequence[str]) -> pa.Table:
        """Return these columns of these rows."""
        parts = [pa.schema([self._schema.field(c) for c in columns]).empty_table()]
        ends = {g.number: np.searchsorted(numbers, [g.first, g.first + g.rows]) for g in self.groups}
        touched = [group for group in self.groups if ends[group.number][0] < ends[group.number][1]]
        for group in self._fetch_groups(touched, columns):
            begin, end = ends[group.number]
            parts.append(self.read([group], columns).take(pa.array(numbers[begin:end] - group.first)))
        return pa.concat_tables(parts)


def places_of(ascending: Int64s, keys: Int64s) -> Numbers:
    """Return the indexes, ascending, of the values that are among `keys`. Both are ascending; `keys` are unique."""
    first, end = np.searchsorted(ascending, keys), np.searchsorted(ascending, keys, "right")
    counts = end - first
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts) + np.arange(counts.sum())


def unique_places_of(ascending: Int64s, keys: Int64s) -> Numbers:
    """Return the same as `places_of` for values without repetitions. This takes one search instead of two."""
    if not len(ascending):
        return NONE
    at = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    found: Numbers = at[ascending[at] == keys]
    return found


def is_among(numbers: Numbers, listed: Numbers) -> NDArray[np.bool_]:
    """Return, for each of `numbers`, whether it is in `listed`, which is ascending and may be much longer. (`np.isin`
    would sort it again.)"""
    if not len(listed):
        return np.zeros(len(numbers), bool)
    at = np.minimum(np.searchsorted(listed, numbers), len(listed) - 1)
    found: NDArray[np.bool_] = listed[at] == numbers
    return found


def each_once(parts: Iterable[Numbers]) -> Numbers:
    """Return all of these numbers, each once, ascending. They are usually sorted already, so sorting is fast;
    `np.unique` would build a set."""
    numbers = np.sort(np.concatenate([NONE, *parts]), kind="stable")
    once: Numbers = numbers[np.diff(numbers, prepend=-1) > 0]
    return once


@dataclass(frozen=True, slots=True)
class RowMarks:
    """The rows of a file that are deleted after a commit: `all`, ascending. `more`: those that were not deleted before
    it; `None` if that is unknown."""

    all: Numbers
    more: Numbers | None = None

    @classmethod
    def of(cls, before: Numbers, found: Numbers) -> RowMarks:
        """Return the marks of a file in which the rows `before` were deleted, ascending, and the rows `found` are now.
        `before` may be much longer: it is copied, and not sorted again."""
        once = each_once([found])
        more = once[~is_among(once, before)]
        return cls(np.insert(before, np.searchsorted(before, more), more), more)


def rename_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the same columns, nested ones included, under other names."""
    said = schema.__arrow_c_schema__
    batches = [pa.RecordBatch._import_from_c_capsule(said(), b.__arrow_c_array__()[1]) for b in rows.to_batches()]
    return pa.Table.from_batches(batches, schema)


def _together(groups: Sequence[RowGroup]) -> list[list[RowGroup]]:
    """Return the row groups in batches that are read together."""
    found: list[list[RowGroup]] = []
    held = ROWS_AT_ONCE
    for group in groups:
        if held + group.rows > ROWS_AT_ONCE:
            found.append([])
            held = 0
        found[-1].append(group)
        held += group.rows
    return found


def _leaves(schema: pa.Schema) -> Mapping[str, range]:
    """Return the leaf columns that belong to each of a file's columns."""

    def count(type_: pa.DataType) -> int:
        if pa.types.is_nested(type_):
            return sum(count(type_.field(i).type) for i in range(type_.num_fields))
        return 1

    ends = list(accumulate((count(field.type) for field in schema), initial=0))
    return {field.name: range(ends[n], ends[n + 1]) for n, field in enumerate(schema)}


def _ends(chunk: pq.ColumnChunkMetaData, type_: pa.DataType) -> Ends | None:
    told = chunk.statistics
    if told is None or not told.has_min_max:
        return None
    if pa.types.is_integer(type_) or pa.types.is_date32(type_) or _is_micros(type_):
        return told.min_raw, told.max_raw
    if pa.types.is_string(type_):
        with suppress(UnicodeDecodeError):  # a text that was truncated
            return told.min_raw.decode(), told.max_raw.decode()
    return None


def _is_micros(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) and type_.unit == "us")
