"""The rows of a table at a version, and the rows that differ between two of its versions, for derived tables.

The difference is found from the files and their deleted rows, so it does not matter what changed the rows: a merge, a
new backfill, a truncate, another program. Compaction writes the same rows again; its commits are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.cut import CutTable
from cdcflow.tables.job.past_tables import VersionGone
from cdcflow.tables.local.column_indexes import has_whole_numbers, hashes_of, index_of
from cdcflow.tables.local.decoded_columns import reads_most, take_rows
from cdcflow.tables.local.file_keys import KNOWN
from cdcflow.tables.local.scan import NONE, Numbers, ScannedFile
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.local.value_places import Hashes
from cdcflow.tables.merge.modes import CURRENT, mode_of_properties

SEARCHED_ROWS = 1 << 14
"""If this process wrote a file and keeps its rows, up to this many are searched without opening the file."""


class InputVersion:
    """The rows of one version of a table. `close` it."""

    def __init__(self, table: FileTable[Any], entry: CutTable) -> None:
        """Open a version of a table, the one that a cut's entry shows.

        Raises:
            VersionGone: the table no longer has that version.
        """
        self.table = table
        self.entry = entry
        found = table.snapshot()
        if found is None or (entry.id and found.id != entry.id) or found.version < entry.version:
            raise VersionGone("another table is in its folder")
        if entry.commit and table.commit_of(entry.version) != entry.commit:
            raise VersionGone("another version has its number")
        self.properties: Mapping[str, str] = found.properties
        if found.version != entry.version:
            table.as_of(entry.version)

    def close(self) -> None:
        self.table.close()

    @property
    def columns(self) -> Mapping[str, str]:
        """The source's columns, and those that the table's mode adds, with Arrow's types."""
        mode = mode_of_properties(self.properties) or CURRENT
        hidden = (MISSING,) if mode.keeps_changes else (OFFSET, MISSING)
        own = [field for field in self.table.schema if field.name not in hidden]
        return {field.name: str(_plain(field.type)) for field in own}

    @property
    def row_schema(self) -> pa.Schema:
        """The schema of `columns` as other packages get them."""
        return pa.schema([pa.field(name, _plain(self.table.schema.field(name).type)) for name in self.columns])

    def row_count(self) -> int:
        """Return about how many rows the version has, including deleted ones."""
        return sum(self.table.row_count(file) for file in self.table.files())

    def empty(self, columns: Sequence[str]) -> pa.Table:
        return pa.schema([self.table.schema.field(name) for name in columns]).empty_table()

    def rows(self, columns: Sequence[str]) -> pa.Table:
        """Return these columns of all rows."""
        return pa.concat_tables([self.empty(columns), *self.parts(columns)])

    def parts(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield these columns of all rows, a file at a time."""
        for file in self.table.files():
            yield self.table.read(file, columns).select(columns)

    def may_have_null(self, column: str) -> bool:
        return any(self.table.may_have_null(file, column) for file in self.table.files())

    def rows_with(self, columns: Sequence[str], column: str, values: pa.ChunkedArray) -> pa.Table:
        """Return these columns of the rows that have one of the values in `column`."""
        found = find_rows(self.table, columns, column, values)
        return pa.concat_tables([self.empty(columns), *(rows for _, _, rows in found)])


OpenVersion = Callable[[int], InputVersion]
"""A function that opens another version of a table.

Raises:
    VersionGone: the table no longer has it.
"""


def find_rows(
    table: FileTable[Any], columns: Sequence[str], column: str, values: pa.ChunkedArray
) -> Iterator[tuple[int, Numbers, pa.Table]]:
    """Find the rows of a table that have one of the values in `column`. Yield, for each file with such rows, the file's
    index, the rows' numbers in it, and these columns of the rows."""
    wanted = _Values(values, table.schema.field(column).type)
    files = table.files()
    for n, ends in enumerate(table.bounds(files, column)):
        if not wanted.may_be_within(ends):
            continue
        rows = table.written_rows(files[n])
        if rows is not None and len(rows) <= SEARCHED_ROWS:
            numbers = np.setdiff1d(wanted.pick(rows.select([column])), table.deleted_rows(files[n]), assume_unique=True)
            if len(numbers):
                yield n, numbers, rows.select(columns).take(pa.array(numbers))
            continue
        with table.open_file(files[n]) as opened:
            numbers = _find(table, files[n], column, opened, wanted)
            if len(numbers):
                yield n, numbers, take_rows(table, files[n], opened, numbers, columns)


def _find(table: FileTable[Any], file: Any, column: str, opened: ScannedFile, wanted: _Values) -> Numbers:
    """Return the numbers of the rows of a file with one of the values. The file's index is used if there is one."""
    groups = [g for g, ends in zip(opened.groups, opened.ends(column), strict=True) if wanted.may_be_within(ends)]
    if not groups:
        return NONE
    # The index that merges use exists only for columns without NULL.
    known = KNOWN.get(table.content_of(file, column))
    if known is not None and wanted.ascending is not None:
        return known.find(wanted.ascending, opened.deleted_rows).numbers
    if wanted.can_be_indexed:
        index = index_of(
            table, file, column, len(opened), partial(_parts, opened, column), at_once=reads_most(opened, groups)
        )
        if index is not None and wanted.ascending is not None:
            return index.find(wanted.ascending, opened.deleted_rows, null=wanted.has_null)
        if index is not None:
            found = index.find_hashes(wanted.hashes(table), opened.deleted_rows, null=wanted.has_null)
            return found[wanted.pick(take_rows(table, file, opened, found, [column]))] if len(found) else found
    return opened.find(groups, [column], wanted.pick)


def _parts(opened: ScannedFile, column: str) -> Iterator[pa.ChunkedArray]:
    """Yield a column of all rows of a file, a row group at a time."""
    return (opened.read([group], [column]).column(0) for group in opened.groups)


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return the type in one form, whichever format's reader returned it."""
    if pa.types.is_large_string(type_):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(type_) else type_


class _Values:
    """Values that are searched for in a column of this type."""

    def __init__(self, values: pa.ChunkedArray, type_: pa.DataType) -> None:
        """Prepare the search. `ascending` gets the values in order, without NULL, if they are whole numbers."""
        is_whole = has_whole_numbers(type_)
        self.type = pa.int64() if is_whole else type_
        found = pc.unique(values.cast(self.type))
        self._listed = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        self._known = self._listed.drop_null()
        self.has_null = len(self._known) < len(self._listed)
        self.ascending = np.sort(self._known.to_numpy()) if is_whole else None
        # Two values of a floating-point type may be equal, and have different bytes.
        self.can_be_indexed = not (pa.types.is_nested(type_) or pa.types.is_floating(type_))
        self._hashes: Hashes | None = None

    def hashes(self, table: FileTable[Any]) -> Hashes:
        """Return the hashes of the values."""
        if self._hashes is None:
            self._hashes = hashes_of(table, pa.chunked_array([self._known], self.type))
        return self._hashes

    def may_be_within(self, ends: tuple[Any, Any] | None) -> bool:
        if ends is None or self.has_null or self.ascending is None or not isinstance(ends[0], int):
            return True
        low, high = (np.searchsorted(self.ascending, ends[0]), np.searchsorted(self.ascending, ends[1], "right"))
        return bool(low < high)

    def pick(self, rows: pa.Table) -> Numbers:
        column = rows.column(0).cast(self.type)
        found: Numbers = pc.indices_nonzero(pc.is_in(column, value_set=self._listed)).to_numpy().astype(np.int64)
        return found


def changed_rows(
    old: InputVersion, new: InputVersion, columns: Sequence[str], rows_max: int, open_version: OpenVersion
) -> tuple[pa.Table, pa.Table] | None:
    """Return the rows that the older version has and the newer one has not, and the reverse, each as a bag. Equal rows
    may be in both. `open_version` opens the versions in between that are needed.

    Return `None` if there are more than `rows_max`, if the columns have changed, or if the difference is no longer
    known.
    """
    spans = _spans(old, new, open_version)
    if not all(_have_same(columns, *span) for span in spans):
        return None
    gone, come = [old.empty(columns)], [new.empty(columns)]
    left = rows_max
    with suppress(VersionGone, FileNotFoundError):
        for span in spans:
            left -= _add_changed_rows(*span, columns, left, gone, come)
            if left < 0:
                return None
        schema = new.empty(columns).schema
        before, after = (pa.concat_tables([rows.cast(schema) for rows in found]) for found in (gone, come))
        return before, after
    return None


def _spans(old: InputVersion, new: InputVersion, open_version: OpenVersion) -> list[tuple[InputVersion, InputVersion]]:
    """Return pairs of versions between which rows may have changed. In between are commits of compaction, which
    replaces files and keeps their rows."""
    now = {new.table.path_of(file) for file in new.table.files()}
    if all(old.table.path_of(file) in now for file in old.table.files()):
        return [(old, new)]
    found, begin = [], old
    try:
        for before, after in new.table.compactions_since(old.entry.version):
            if before != begin.entry.version:
                found.append((begin, open_version(before)))
            begin = new if after == new.entry.version else open_version(after)
    except (VersionGone, FileNotFoundError):
        return [(old, new)]
    return found if begin is new else [*found, (begin, new)]


def _have_same(columns: Sequence[str], old: InputVersion, new: InputVersion) -> bool:
    """Return whether two versions have the same columns of these names."""
    if any(name not in old.columns or old.columns[name] != new.columns.get(name) for name in columns):
        return False
    # Another column may have got the name, and then no file changes.
    return all(old.table.column_id(name) == new.table.column_id(name) for name in columns)


def _add_changed_rows(
    old: InputVersion,
    new: InputVersion,
    columns: Sequence[str],
    rows_max: int,
    gone: list[pa.Table],
    come: list[pa.Table],
) -> int:
    """Append the rows that differ between two versions to `gone` and `come`, and return how many these are. If there
    are more than `rows_max`, append nothing, or only some."""
    before = {old.table.path_of(file): file for file in old.table.files()}
    after = {new.table.path_of(file): file for file in new.table.files()}
    whole = sum(old.table.row_count(before[path]) for path in before.keys() - after.keys())
    whole += sum(new.table.row_count(after[path]) for path in after.keys() - before.keys())
    if whole > rows_max:
        return whole
    gone += [old.table.read(before[path], columns).select(columns) for path in before.keys() - after.keys()]
    come += [new.table.recall(after[path], columns).select(columns) for path in after.keys() - before.keys()]
    for path in before.keys() & after.keys():
        one, other = before[path], after[path]
        if old.table.marks_of(one) == new.table.marks_of(other):
            continue
        was, is_ = old.table.deleted_rows(one), new.table.deleted_rows(other)
        deleted, restored = np.setdiff1d(is_, was), np.setdiff1d(was, is_)
        whole += len(deleted) + len(restored)
        if whole > rows_max:
            return whole
        with old.table.open_file(one) as opened:
            gone.append(take_rows(old.table, one, opened, deleted, columns))
        if len(restored):
            with new.table.open_file(other) as opened:
                come.append(take_rows(new.table, other, opened, restored, columns))
    return whole
