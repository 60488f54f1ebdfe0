"""Current-state tables of files: the part that is the same in every format (`iceberg`, `delta`).

FileTable ──▶ TableFiles    its files and commits, which a format implements
          └─▶ RowChanges    what a range of changes does to its rows, computed in memory
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.file_layout import FileLayout, SortColumn
from cdcflow.model.table import MISSING, TableId
from cdcflow.tables.local import compaction, file_rewrites
from cdcflow.tables.local.arrow_types import type_of
from cdcflow.tables.local.compaction import RewrittenFiles
from cdcflow.tables.local.row_changes import RowChanges
from cdcflow.tables.local.table_files import File, TableFiles
from cdcflow.tables.merge import statement
from cdcflow.tables.merge.acts import Act, Add, Describe, Rename, Widen
from cdcflow.tables.merge.contract import Contract, ContractResult
from cdcflow.tables.merge.file_layouts import LAYOUT_PROPERTY
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.reduce import ColumnLayout
from cdcflow.tables.merge.target import Target
from cdcflow.tables.port import NO_VALUES, Compacted, CurrentTable, Later, TableSnapshot


class LocalTables(Protocol):
    """The tables of one format in a warehouse. `close` it."""

    def table(self, path: Sequence[str]) -> FileTable[Any]:
        """Return the table at a path (schema, name)."""

    def defer_checkpoints(self) -> Later | None:
        """Leave the writing of checkpoints as later work from now on, and return that work (see
        `Engine.defer_checkpoints`)."""

    def is_conflict(self, error: BaseException) -> bool:
        """Return whether a commit failed because a concurrent one came first."""

    def close(self) -> None: ...


class FileTable(TableFiles[File], CurrentTable):
    """A current-state table of files. `close` it."""

    def __init__(self, name: str, bytes_max: int | None) -> None:
        super().__init__(name, bytes_max)
        self._changes = RowChanges(self)

    def close(self) -> None:
        if "session" in self.__dict__:
            self.session.close()

    @abstractmethod
    def snapshot(self) -> TableSnapshot | None:
        """Return the table's latest version; `None` if it does not exist. All later calls apply to that version."""

    @abstractmethod
    def as_of(self, version: int) -> TableSnapshot | None:
        """Return the table's description at a version; `None` if only its rows are known. Later reads (`rows`) are of
        that version, and nothing may be changed.

        Raises:
            VersionGone: the version no longer exists.
        """

    def transactions_of(self, version: int) -> Mapping[str, int]:
        """Return the transactions of the current version, instead of the older one. That is enough, because on one
        machine no process commits after it has lost its lease."""
        found = self.snapshot()
        return {} if found is None else found.transactions

    def sync(self, published: int | None) -> None:
        """Do nothing: the files of a commit are durable before the commit is (`synced`)."""

    def make(
        self,
        target: Target,
        source: str,
        begun: int,
        metadata: Mapping[str, Any],
        mode: ModeRules = CURRENT,
        *,
        wide: bool = False,
    ) -> None:
        columns = [(c.name, type_of(c.type)) for c in target.columns]
        columns += [(name, type_of(type_)) for name, type_ in mode.columns]
        rules = self.rules.making(target.columns, wide=wide)
        self.create(pa.schema(columns), statement.properties(target, source, begun, mode), metadata, rules)

    def arrange(self, layout: FileLayout, recorded: str, metadata: Mapping[str, Any]) -> None:
        self.lay_out(layout, {LAYOUT_PROPERTY: recorded}, metadata)

    def begin(self, begun: int, metadata: Mapping[str, Any]) -> None:
        self.describe({statement.BEGUN_PROPERTY: str(begun)}, metadata)

    def follow(self, act: Act, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        if app and self.has(app, version):
            return
        match act:
            case Describe(target):
                self.describe({statement.TARGET_PROPERTY: target.to_json()}, metadata)
            case Add(column):
                self.add(pa.schema([(column.name, type_of(column.type))]), metadata)
            case Rename(old, new):
                self.rename(old, new, metadata)
            case Widen(name, type_):
                self.widen(name, type_of(type_), metadata)
            case _:
                self._changes.update(act, metadata, app, version)

    @property
    def has_many_files(self) -> bool:
        """Whether the table has enough small files for a compaction."""
        return bool(self.small_files(self.files()))

    def compact(self, order: Sequence[SortColumn] = ()) -> Compacted:
        """Compact one portion of the table's files, in one commit (see `file_rewrites`)."""
        done = self.rewrite_portion(order)
        return (None if done is None else self.finish_portion(done)) or Compacted()

    def rewrite_portion(self, order: Sequence[SortColumn] = ()) -> RewrittenFiles | None:
        """Rewrite one portion of the table's files, without a commit (see `CurrentTable.rewrite_portion`)."""
        files = self.files()
        small, worn = self._files_to_join(files), sorted(self._worn_files(files))
        self.held.paths = frozenset(self.path_of(files[n]) for n in (*small, *worn))
        done = None
        try:
            found = self._small_files(files, small) or self._unworn(files, worn)
            if found is not None:
                done = compaction.rewrite(self, [files[n] for n in found[0]], found[1], order)
        finally:
            self.held.paths = frozenset(() if done is None else (old.path for old in done.old))
        return done

    def finish_portion(self, done: RewrittenFiles) -> Compacted | None:
        """Commit a rewritten portion, if it still fits the table (see `CurrentTable.finish_portion`)."""
        try:
            if not compaction.finish(self, done):
                return None
        finally:
            self.held.paths = frozenset()
        # Files that merges have added since then are few and tiny: joining these at once would never end.
        left = [file for file in self.files() if self.path_of(file) in done.others]
        has_more = bool(self._files_to_join(left) or self._worn_files(left))
        return Compacted(len(done.old), len(done.new), has_more, done.in_order)

    def _small_files(self, files: Sequence[File], small: Sequence[int]) -> tuple[list[int], pa.Table] | None:
        """Return the indexes of those small files that are merged together now, and their rows; `None` if fewer than
        two fit into memory."""
        chosen: list[int] = []
        parts: list[pa.Table] = []
        size = 0
        for n in small:
            part = self.recall_rows([files[n]])
            size += part.nbytes
            if size > file_rewrites.JOINED_MEMORY_MAX:
                break
            chosen.append(n)
            parts.append(part)
        return (chosen, pa.concat_tables(parts)) if len(chosen) > 1 else None

    def _unworn(self, files: Sequence[File], worn: list[int]) -> tuple[list[int], pa.Table] | None:
        """Return the indexes of the files to rewrite because many of their rows are deleted, and the rows that remain;
        `None` if there are none."""
        return (worn, self.recall_rows([files[n] for n in worn])) if worn else None

    def _worn_files(self, files: Sequence[File]) -> list[int]:
        held = (
            file_rewrites.WORN_BYTES_MAX
            if self.bytes_max is None
            else min(self.bytes_max, file_rewrites.WORN_BYTES_MAX)
        )
        return file_rewrites.files_to_rewrite([self.deletions(file) for file in files], held)

    def _files_to_join(self, files: Sequence[File]) -> list[int]:
        sizes = [self.size_of(file) for file in files]
        return file_rewrites.files_to_join(sizes, [self.partition_of(file) for file in files])

    def rows_that_miss(
        self, ended: Sequence[str] = (), left: Collection[str] = (), only: Mapping[str, str] = NO_VALUES
    ) -> int:
        if self.snapshot() is None:
            return 0
        columns = [MISSING, *ended, *only]
        found = [self.read(file, columns) for file in self.files() if self._may_miss(file)]
        for name, value in only.items():
            found = [rows.filter(pc.equal(rows.column(name), value)) for rows in found]
        for name in ended:
            found = [rows.filter(_lives(rows.column(name))) for rows in found]
        return sum(_missing_others(rows.column(MISSING), left) for rows in found)

    def _may_miss(self, file: File) -> bool:
        with self.open_file(file) as rows:
            return not rows.is_null(MISSING)

    def rows(self) -> pa.Table:
        """Return all rows of the table, which must be small."""
        return self.rows_of(self.files())

    def rows_near(self, column: str, value: object) -> pa.Table:
        """Return all rows with this value in a column, and other rows of the same files."""
        files = self.files()
        ends = self.bounds(files, column)
        return self.rows_of([f for f, e in zip(files, ends, strict=True) if e is None or e[0] <= value <= e[1]])

    def standing(self, layout: ColumnLayout, changes: str, *, whole: bool = False) -> str:
        return self._changes.standing(layout, changes, whole=whole)

    def fold(self, folding: statement.Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        self._changes.fold(folding, metadata, app, version)

    def check_rows(
        self,
        table: TableId,
        contract: Contract,
        mode: ModeRules,
        quarantine: Callable[[], CurrentTable],
        result: ContractResult,
        metadata: Mapping[str, Any],
    ) -> None:
        from cdcflow.tables.local.contract_check import ContractCheck  # only for tables that have one

        checks = ContractCheck(table, contract, mode, quarantine, result, metadata)  # type: ignore[arg-type]  # of this engine
        self._changes.check = lambda rows, first, app: checks.rows_to_write(rows, first, self.session, app)

    def sweep(
        self,
        before: int,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        ended: Sequence[str] = (),
        assigned: str = "",
        only: Mapping[str, str] = NO_VALUES,
    ) -> None:
        self._changes.sweep(before, metadata, app, version, ended, assigned, only)


def _lives(ended: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return, for each row, whether the column does not mark it as deleted. The mark is a boolean, or any value that is
    set on deletion."""
    is_mark = pa.types.is_boolean(ended.type)
    return pc.invert(pc.fill_null(ended, False)) if is_mark else pc.is_null(ended)


def _missing_others(missing: pa.ChunkedArray, left: Collection[str]) -> int:
    """Return how many rows lack a column other than these."""
    others = pc.invert(pc.is_in(pc.list_flatten(missing), pa.array(left, pa.string())))
    return len(pc.unique(pc.list_parent_indices(missing).filter(others)))
