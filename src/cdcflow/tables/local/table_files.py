"""The files of a table and its commits: the part of a table that each format implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from cdcflow.model.file_layout import FileLayout, SortColumn
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.file_rewrites import Touched
from cdcflow.tables.local.recently_used import RecentlyUsed
from cdcflow.tables.local.scan import Ends, Numbers, RowMarks, ScannedFile
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.local.stored_columns import FOLDER, StoredPlace, drop_stored
from cdcflow.tables.merge.format import Format

WRITTEN_BYTES_MAX, WRITTEN_FILE_BYTES_MAX = 64 << 20, 8 << 20
"""Limits on the rows that this process keeps of files that it wrote: the bytes of all of them, and the bytes of one
file."""

WRITTEN: RecentlyUsed[pa.Table] = RecentlyUsed(WRITTEN_BYTES_MAX)
"""The rows of small files that this process wrote, also of those that are deleted since."""

File = TypeVar("File")

NewFile = Any
"""A file that is written and not yet in a commit, as the format describes it."""


@dataclass(slots=True)
class HeldFiles:
    """The paths of a table's files that compaction is rewriting. Merges of the same process only mark rows in them: if
    a merge rewrote one, the work of the compaction would be wasted."""

    paths: frozenset[str] = frozenset()


class TableFiles(ABC, Generic[File]):
    """The files of a table, in the version that was read last. Each method that changes it makes one commit."""

    rules: Format

    def __init__(self, name: str, bytes_max: int | None) -> None:
        """`name`: for messages. `bytes_max`: a table that would need more bytes of files in memory is left to Spark."""
        self.name = name
        self.bytes_max = bytes_max
        self.memory_bytes: int | None = None
        """How much memory DuckDB may use for this table, in a separate database. `None`: it uses the database that
        sessions share."""
        self.held = HeldFiles()

    @cached_property
    def session(self) -> DuckSession:
        return DuckSession(self.memory_bytes)

    @property
    @abstractmethod
    def order(self) -> tuple[SortColumn, ...]:
        """The order of the rows in each of its files; empty if none is set."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the table."""

    @abstractmethod
    def create(
        self,
        columns: pa.Schema,
        properties: Mapping[str, str],
        metadata: Mapping[str, Any],
        rules: Format | None = None,
    ) -> None:
        """Create the table, even if remains of another table with its name exist. `rules`: the format, for a table of a
        different kind than most."""

    @abstractmethod
    def add(self, columns: pa.Schema, metadata: Mapping[str, Any]) -> None:
        """Add columns after the existing ones."""

    @abstractmethod
    def describe(self, properties: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        """Set properties."""

    def lay_out(self, layout: FileLayout, properties: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        """Give new files a different layout, and set properties, in one commit."""
        self.describe(properties, metadata)

    @abstractmethod
    def rename(self, old: str, new: str, metadata: Mapping[str, Any]) -> None:
        """Rename a column."""

    @abstractmethod
    def widen(self, name: str, type_: pa.DataType, metadata: Mapping[str, Any]) -> None:
        """Change a column's type to one that holds all of its values."""

    @abstractmethod
    def append(self, rows: pa.Table, metadata: Mapping[str, Any], app: str, version: int, keep: int) -> None:
        """Add rows in one commit to a table that keeps only its latest `keep` versions. The rows have the table's
        schema."""

    @abstractmethod
    def load(self, parts: Iterable[pa.Table], metadata: Mapping[str, Any], app: str, version: int) -> None:
        """Add rows in one commit, as `append` does, with only one part in memory at a time."""

    @abstractmethod
    def has(self, app: str, version: int) -> bool:
        """Return whether the table has recorded this transaction, or a later one of the same app."""

    @property
    @abstractmethod
    def marks_rows(self) -> bool:
        """Whether changed rows are marked in their files; otherwise the files are rewritten."""

    @abstractmethod
    def files(self) -> Sequence[File]:
        """Return the files of the table. Raises HandOver if only Spark can read or write this table."""

    @abstractmethod
    def size_of(self, file: File) -> int:
        """Return a file's size in bytes."""

    def partition_of(self, file: File) -> Hashable:
        """Return a key of a file's partition: it is the same for all files of one partition."""
        return None

    def in_partitions(
        self, files: Sequence[File], chosen: Sequence[int], key: Sequence[str], keys: Callable[[], pa.Table]
    ) -> Sequence[int]:
        """Return those of the indexes `chosen` whose files are in partitions that may have a row with one of the keys.
        `key`: the names of the key's columns."""
        return chosen

    @abstractmethod
    def deletions(self, file: File) -> Touched:
        """Return how many of a file's rows are deleted, and its size."""

    @abstractmethod
    def deleted_rows(self, file: File) -> Numbers:
        """Return the numbers of a file's deleted rows."""

    def marks_of(self, file: File) -> Hashable:
        """Return a key of a file's deleted rows: it is the same in two versions of the table only if the same rows are
        deleted."""
        return self.deleted_rows(file).tobytes()

    @abstractmethod
    def compactions_since(self, version: int) -> list[tuple[int, int]]:
        """Return the commits of cdcflow after `version` that only compacted files, the earliest first: for each, the
        version before it, and its own."""

    @abstractmethod
    def column_id(self, column: str) -> Hashable:
        """Return what identifies a column of the table, whatever its current name is."""

    @abstractmethod
    def content_of(self, file: File, column: str) -> Hashable:
        """Return a key that identifies a file's values in a column, and does not depend on the column's current
        name."""

    @abstractmethod
    def content_of_new(self, file: NewFile, column: str) -> Hashable:
        """Return the same key for a file of `write_files`."""

    @abstractmethod
    def identity_of(self, file: File) -> Hashable:
        """Return what identifies a file and its content, whatever the version of the table."""

    @property
    @abstractmethod
    def folder_on_disk(self) -> Path | None:
        """The table's folder on this machine; `None` if it is in an object store."""

    @abstractmethod
    def path_on_disk(self, file: File) -> Path | None:
        """Return the path of a file on this machine; `None` if it is in an object store."""

    @abstractmethod
    def path_of_new_on_disk(self, file: NewFile) -> Path | None:
        """Return the same for a file of `write_files`."""

    def stored_place(self, file: File, column: str, what: str) -> StoredPlace | None:
        """Return where `what` is computed from a column of a file is stored; `None` if it cannot be stored."""
        folder, path = self.folder_on_disk, self.path_on_disk(file)
        if folder is None or path is None:
            return None
        return StoredPlace(folder, path, self.content_of(file, column), what)

    def stored_place_of_new(self, file: NewFile, column: str, what: str) -> StoredPlace | None:
        """Return the same as `stored_place` for a file of `write_files`."""
        folder, path = self.folder_on_disk, self.path_of_new_on_disk(file)
        if folder is None or path is None:
            return None
        return StoredPlace(folder, path, self.content_of_new(file, column), what)

    def drop_stored(self) -> None:
        """Remove what is stored for files that the current version of the table does not have."""
        if (folder := self.folder_on_disk) is not None and (folder / FOLDER).exists():
            drop_stored(folder, [path for file in self.files() if (path := self.path_on_disk(file)) is not None])

    def keep_written(self, identity: Hashable, rows: pa.Table) -> None:
        """Keep the rows of a file that was just written, if they are few. They have the order of the file."""
        if rows.nbytes <= WRITTEN_FILE_BYTES_MAX and rows.schema.equals(self.schema):
            WRITTEN.keep((identity, self.layout), rows.combine_chunks(), rows.nbytes)

    def written_rows(self, file: File) -> pa.Table | None:
        """Return all rows of a file, including deleted ones; `None` unless this process wrote it, for a table with the
        same columns, and keeps its rows."""
        found = WRITTEN.get((self.identity_of(file), self.layout))
        return found if found is not None and len(found) == self.row_count(file) else None

    @abstractmethod
    def read(self, file: File, columns: Sequence[str]) -> pa.Table:
        """Return these columns of a file's rows that are not deleted, with the table's types."""

    def recall(self, file: File, columns: Sequence[str]) -> pa.Table:
        """Return the same as `read`, without reading the file if this process wrote it and keeps its rows."""
        rows = self.written_rows(file)
        if rows is None:
            return self.read(file, columns)
        deleted = self.deleted_rows(file)
        if not len(deleted):
            return rows.select(columns)
        lives = np.ones(len(rows), bool)
        lives[deleted] = False
        return rows.select(columns).filter(pa.array(lives))

    def recall_rows(self, files: Sequence[File]) -> pa.Table:
        """Return the rows of some files, as `recall` does."""
        names = self.schema.names
        return pa.concat_tables([self.schema.empty_table(), *(self.recall(file, names) for file in files)])

    @abstractmethod
    def bounds(self, files: Sequence[File], column: str) -> Sequence[Ends | None]:
        """Return a column's bounds in each file; `None` if the format does not keep them, or does not order them as SQL
        does."""

    @abstractmethod
    def may_have_null(self, file: File, column: str) -> bool:
        """Return whether a row of a file, perhaps a deleted one, may have NULL in a column: the format does not record
        that none has."""

    @abstractmethod
    def open_file(self, file: File) -> ScannedFile:
        """Open a file."""

    @abstractmethod
    def replace(
        self,
        old: Sequence[File],
        new: pa.Table | None,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        marked: Sequence[tuple[File, RowMarks]] = (),
    ) -> None:
        """Make one commit that removes the files `old`, adds the rows `new`, and records cdcflow's metadata. For each
        file in `marked`, exactly these rows are deleted."""

    @property
    @abstractmethod
    def layout(self) -> Hashable:
        """Return a key that changes whenever the columns or the partitions of new files do."""

    @abstractmethod
    def path_of(self, file: File) -> str:
        """Return the path of a file, which stays the same when more of its rows are marked."""

    @abstractmethod
    def row_count(self, file: File) -> int:
        """Return how many rows a file has, including deleted ones."""

    @abstractmethod
    def write_files(self, rows: pa.Table) -> Sequence[tuple[NewFile, Numbers]]:
        """Write rows into new files without a commit. Return each file with the numbers of its rows among `rows`, in
        the order of the file. Raises HandOver if rows have values that only Spark can write."""

    @abstractmethod
    def swap(self, old: Sequence[File], new: Sequence[tuple[NewFile, Numbers]], metadata: Mapping[str, Any]) -> None:
        """Make one commit that removes the files `old` and adds files that are written already, each with these rows
        marked as deleted."""

    @abstractmethod
    def rewrite(self, rows: pa.Table, metadata: Mapping[str, Any], keep: int) -> None:
        """Replace all rows by these, in a table that keeps only its latest `keep` versions."""

    def rows_of(self, files: Sequence[File]) -> pa.Table:
        names = self.schema.names
        return pa.concat_tables([self.schema.empty_table(), *(self.read(file, names) for file in files)])

    def in_order(self, parts: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
        """Return rows with the table's columns, in any order, as one table. It is sorted by the table's own order, and
        by the key within that."""
        named = [part.select(self.schema.names).cast(self.schema) for part in parts]
        known = {one.column for one in self.order}
        by = [*self.order, *(SortColumn(name) for name in key if name not in known)]
        return self.session.in_order(pa.concat_tables(named), by)

    def in_own_order(self, rows: pa.Table) -> pa.Table:
        """Return rows sorted by the table's own order; unchanged if it has none."""
        return self.session.in_order(rows, self.order)

    def small_files(self, files: Sequence[File]) -> set[int]:
        """Return the indexes of the files that a change merges because they are small and many."""
        sizes, partitions = [self.size_of(file) for file in files], [self.partition_of(file) for file in files]
        return file_rewrites.small(sizes, partitions, self.name)
