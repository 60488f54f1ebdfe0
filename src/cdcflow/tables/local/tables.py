"""Tables of files: SQL changes the rows that a range concerns in memory, then the files are updated.

    plan     find the files that may have rows with one of the range's keys, by the bounds that the format keeps
    load     load the rows with one of the keys into a DuckDB table, each with its file and its number there; of the
             other columns only those that the statement needs
    fold     run the statement that Spark would run, on that table
    commit   write a file with the current rows, and mark changed and deleted rows in their old files; files that are
             small or have many deleted rows are rewritten (`replacing`). All in one commit with cdcflow's position

If a change concerns every row (a sweep, a table without a key, a column's default), all rows are loaded into memory,
and files with a changed row are replaced as a whole.

A commit names the version that it was computed from: if another commit came first, it fails and is computed again from
the new version. Each format finds, reads and replaces its own files (`iceberg`, `delta`).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import InvariantViolated
from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.file_rewrites import Touched
from cdcflow.tables.local.key_filter import Keys
from cdcflow.tables.local.scan import NONE, Ends, Numbers, RowGroup, ScannedFile
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.merge import reduce, statement
from cdcflow.tables.merge.acts import Act, Add, Describe, Rename, Widen
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.reduce import ColumnLayout
from cdcflow.tables.merge.statement import Replaced
from cdcflow.tables.merge.target import Target
from cdcflow.tables.port import Compacted, CurrentTable, HandOver, TableSnapshot

SCANNED_TIMES = 4
"""How many times the memory limit may be scanned: 200 MB of keys, ten million UUIDs as text, take two CPU seconds and
half a gigabyte of memory."""

FILE, NUMBER, STOOD = "_cdcflow_file", "_cdcflow_number", "_cdcflow_stood"
"""Columns of rows loaded in memory: the file that a row was in, its number there, and the offset that it had."""

TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""Arrow's types by Spark's names for them."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")

_File = TypeVar("_File")


class LocalTables(Protocol):
    """The tables of one format in a warehouse. `close` it."""

    def table(self, path: Sequence[str]) -> FileTable[Any]:
        """Return the table at a path (schema, name)."""

    def is_conflict(self, error: BaseException) -> bool:
        """Return whether a commit failed because a concurrent one came first."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Whole(Generic[_File]):
    """Rows of a table in memory: all rows of `files`, each with the number of its file. The files with the numbers in
    `again` are rewritten in any case."""

    name: str
    files: Sequence[_File]
    rows: Mapping[int, int]
    again: frozenset[int]


@dataclass(frozen=True, slots=True)
class _LoadedFile:
    """A file with rows loaded in memory: its number of rows, those deleted before, and those found."""

    rows: int
    gone: Numbers
    found: Numbers


@dataclass(frozen=True, slots=True)
class _Picked(Generic[_File]):
    """Rows of a table in memory: those with one of a range's keys, each with its file in `files`; `places` is keyed by
    the same numbers. The files with the numbers in `again` are rewritten in any case."""

    name: str
    files: Sequence[_File]
    places: Mapping[int, _LoadedFile]
    again: frozenset[int]


class FileTable(CurrentTable, Generic[_File]):
    """A current-state table of files: what is the same in every format. `close` it."""

    rules: Format

    def __init__(self, name: str, bytes_max: int | None) -> None:
        """`name`: for messages. `bytes_max`: a table that would need more bytes of files in memory is left to Spark."""
        self._name = name
        self._bytes_max = bytes_max
        self._standing: _Whole[_File] | _Picked[_File] | None = None

    @cached_property
    def session(self) -> DuckSession:
        return DuckSession()

    def close(self) -> None:
        if "session" in self.__dict__:
            self.session.close()

    # ── what a format says ──────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def snapshot(self) -> TableSnapshot | None:
        """See `CurrentTable.snapshot`. All later calls apply to that version."""

    @abstractmethod
    def as_of(self, version: int) -> TableSnapshot | None:
        """Return the table's description at a version; `None` if only its rows are known. Later reads (`rows`) are of
        that version, and nothing may be changed.

        Raises:
            VersionGone: the version no longer exists.
        """

    def transactions_of(self, version: int) -> Mapping[str, int]:
        """Return the current ones: in a folder of one machine there are no commits out of turn."""
        found = self.snapshot()
        return {} if found is None else found.transactions

    def sync(self, published: int | None) -> None:
        """Do nothing: the files of a commit are durable before the commit is (`synced`)."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Its columns."""

    @abstractmethod
    def create(
        self,
        columns: pa.Schema,
        properties: Mapping[str, str],
        metadata: Mapping[str, Any],
        rules: Format | None = None,
    ) -> None:
        """Create it, even if remains of another table with its name are in the way. `rules`: for a table of another
        kind than most tables of the format."""

    @abstractmethod
    def add(self, columns: pa.Schema, metadata: Mapping[str, Any]) -> None:
        """Add columns after the existing ones."""

    @abstractmethod
    def describe(self, properties: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        """Set properties."""

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
    def _has(self, app: str, version: int) -> bool:
        """Return whether the table recorded this transaction, or a later one of the same app."""

    @property
    @abstractmethod
    def _marks(self) -> bool:
        """Whether changed rows are marked in their files; otherwise the files are rewritten."""

    @abstractmethod
    def _files(self) -> Sequence[_File]:
        """Return its files. HandOver: only Spark can read or write this table."""

    @abstractmethod
    def _size(self, file: _File) -> int:
        """Return its size in bytes."""

    @abstractmethod
    def _touched(self, file: _File) -> Touched:
        """Return how much of it is deleted."""

    @abstractmethod
    def _read(self, file: _File, columns: Sequence[str]) -> pa.Table:
        """Return these columns of a file's rows that are not deleted, with the table's types."""

    @abstractmethod
    def _ends(self, files: Sequence[_File], column: str) -> Sequence[Ends | None]:
        """Return a column's bounds in each file; `None` if the format does not keep them, or does not order them as SQL
        does."""

    @abstractmethod
    def _opened(self, file: _File) -> ScannedFile:
        """Open a file."""

    @abstractmethod
    def _replace(
        self,
        old: Sequence[_File],
        new: pa.Table | None,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        marked: Sequence[tuple[_File, Numbers]] = (),
    ) -> None:
        """Make one commit that removes the files `old`, adds the rows `new`, and records cdcflow's metadata. For each
        file in `marked`, exactly these rows are deleted."""

    @abstractmethod
    def rewrite(self, rows: pa.Table, metadata: Mapping[str, Any], keep: int) -> None:
        """Replace all rows by these, in a table that keeps only its latest `keep` versions."""

    # ── the same for all ────────────────────────────────────────────────────────────────────────────────────

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

    def begin(self, begun: int, metadata: Mapping[str, Any]) -> None:
        self.describe({statement.BEGUN_PROPERTY: str(begun)}, metadata)

    def follow(self, act: Act, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        if app and self._has(app, version):
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
                self._update(act, metadata, app, version)

    @property
    def has_many_files(self) -> bool:
        """Whether it has enough small files to merge them."""
        return bool(file_rewrites.small([self._size(file) for file in self._files()]))

    def compact(self, order: Sequence[str] = ()) -> Compacted:
        """Compact one portion (see `replacing`)."""
        files = self._files()
        chosen, rows = self._joined(files) or self._unworn(files) or ([], None)
        if not chosen:
            return Compacted()
        if order and rows is not None:
            rows = self._in_order([rows], order)
        self._replace([files[n] for n in chosen], rows, {"upkeep": "compact"}, "", 0)
        now = self._files()
        made = len(now) - (len(files) - len(chosen))
        has_more = bool(file_rewrites.joined(self._sizes(now)) or self._worn(now))
        return Compacted(len(chosen), made, has_more, bool(order))

    def _joined(self, files: Sequence[_File]) -> tuple[list[int], pa.Table] | None:
        """Return small files to merge into one, and their rows."""
        chosen: list[int] = []
        parts: list[pa.Table] = []
        size = 0
        for n in file_rewrites.joined(self._sizes(files)):
            part = self._all_of([files[n]])
            size += part.nbytes
            if size > file_rewrites.JOINED_MEMORY_MAX:
                break
            chosen.append(n)
            parts.append(part)
        return (chosen, pa.concat_tables(parts)) if len(chosen) > 1 else None

    def _unworn(self, files: Sequence[_File]) -> tuple[list[int], pa.Table] | None:
        """Return files to rewrite because many of their rows are deleted, and their remaining rows."""
        chosen = sorted(self._worn(files))
        return (chosen, self._all_of([files[n] for n in chosen])) if chosen else None

    def _worn(self, files: Sequence[_File]) -> list[int]:
        held = (
            file_rewrites.WORN_BYTES_MAX
            if self._bytes_max is None
            else min(self._bytes_max, file_rewrites.WORN_BYTES_MAX)
        )
        return file_rewrites.worn([self._touched(file) for file in files], held)

    def _sizes(self, files: Sequence[_File]) -> list[int]:
        return [self._size(file) for file in files]

    def standing(self, layout: ColumnLayout, changes: str, *, whole: bool = False) -> str:
        if whole and not isinstance(self._standing, _Whole):
            self._standing = self._stand()
        return self._stand_for(layout, changes, self.schema.names).name

    def fold(self, folding: statement.Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        if self._has(app, version):
            return
        if folding.adds_only:
            # Only a large number of small files is merged along with it.
            self._standing = standing = self._stand_whole(self._files(), [])
            self.session.rows(folding.sql(standing.name))
            self._commit(metadata, app, version, None, [])
            return
        layout = folding.layout
        if folding.is_of_all:
            self._standing = self._stand()  # whatever the keys are
        found = self._stand_for(layout, folding.changes, _kept(folding, self.schema.names))
        key = [layout.target.columns[i].name for i in layout.key] if layout.target.key else []
        brought = {*(c.name for c in layout.target.columns), OFFSET, MISSING}
        if folding.replaced is not None and isinstance(found, _Picked) and brought.issuperset(self.schema.names):
            # The inserted rows need not be added to the loaded rows first: no value of those is kept.
            rows, dead = self.session.arrow(folding.rows()), self._matched(found, folding.replaced)
            self._commit_picked(found, metadata, app, version, key, rows, dead)
            self._standing = None
            return
        name = found.name
        ((first,),) = self.session.rows(f"SELECT min(o) FROM {folding.changes}")  # noqa: S608  cdcflow's own
        for sql in folding.statements(name):
            self.session.rows(sql)
        offsets = [o for o in (first, folding.ending.truncated_at) if o]
        ended = self._touched_by_end(name, layout.ended_name, folding.ending.before)
        self._commit(metadata, app, version, min(offsets, default=None), key, ended)

    def sweep(
        self,
        before: int,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        ended: str | None = None,
        assigned: str = "",
    ) -> None:
        if self._has(app, version):
            return
        self._standing = self._stand()
        self.session.rows(statement.sweep(self._standing.name, before, ended, assigned))
        if assigned:
            self._commit(metadata, app, version, before, [])  # a row that ended has that offset
            return
        touched = self._touched_by_end(self._standing.name, ended, before)
        self._commit(metadata, app, version, None, [], touched)

    def _touched_by_end(self, name: str, ended: str | None, before: int) -> frozenset[int]:
        """Return the files with rows from before an offset that were ended, which their offsets do not show."""
        if ended is None or not before:
            return frozenset()
        where = f"{statement.is_ended('', ended)} AND {OFFSET} < {before} AND {FILE} IS NOT NULL"
        return frozenset(n for (n,) in self.session.rows(f"SELECT DISTINCT {FILE} FROM {name} WHERE {where}"))  # noqa: S608  cdcflow's own

    def rows_that_miss(self, ended: str | None = None, left: Collection[str] = ()) -> int:
        if self.snapshot() is None:
            return 0
        columns = [MISSING, *([ended] if ended is not None else [])]
        found = [self._read(file, columns) for file in self._files() if self._may_miss(file)]
        if ended is not None:
            found = [rows.filter(_lives(rows.column(ended))) for rows in found]
        return sum(_missing_others(rows.column(MISSING), left) for rows in found)

    def _may_miss(self, file: _File) -> bool:
        with self._opened(file) as rows:
            return not rows.is_null(MISSING)

    def rows(self) -> pa.Table:
        """Return all rows of the table, which must be small."""
        return self._all_of(self._files())

    def rows_near(self, column: str, value: object) -> pa.Table:
        """Return all rows with this value in a column, and other rows of the same files."""
        files = self._files()
        ends = self._ends(files, column)
        return self._all_of([f for f, e in zip(files, ends, strict=True) if e is None or e[0] <= value <= e[1]])

    def _all_of(self, files: Sequence[_File]) -> pa.Table:
        names = self.schema.names
        return pa.concat_tables([self.schema.empty_table(), *(self._read(file, names) for file in files)])

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _stand_for(
        self, layout: ColumnLayout, changes: str, columns: Collection[str]
    ) -> _Whole[_File] | _Picked[_File]:
        """Load at least the rows that have one of the keys of a range of changes, and at least these columns of
        them."""
        if self._standing is None:
            self._standing = self._near(layout, changes, columns) if layout.target.key else self._stand()
        return self._standing

    def _near(self, layout: ColumnLayout, changes: str, columns: Collection[str]) -> _Whole[_File] | _Picked[_File]:
        keys = Keys(self.session, layout, changes, self.schema)
        there = self._files()
        chosen = keys.near(self._ends(there, keys.first))
        # Files that would be rewritten in any case are read once, as a whole.
        if sum(self._size(there[n]) for n in chosen) < file_rewrites.TINY_BYTES:
            return self._stand_whole(there, chosen)
        return self._pick(keys, there, chosen, columns)

    def _pick(
        self, keys: Keys, there: Sequence[_File], chosen: Sequence[int], columns: Collection[str]
    ) -> _Picked[_File]:
        """Load the rows with one of the keys, with these columns. The files with the numbers in `chosen` may have such
        rows."""
        schema = self._own_names_free()
        small = file_rewrites.small([self._size(file) for file in there])
        read = [name for name in schema.names if name in columns or name in keys.names or name == OFFSET]
        within = self._within({n: there[n] for n in chosen}, keys, read)
        numbers = [*chosen, *sorted(small - set(chosen))]
        places: dict[int, _LoadedFile] = {}
        parts = [_placed(schema.empty_table(), schema, 0, NONE)]
        for number, n in enumerate(numbers):
            with self._opened(there[n]) as rows:
                found = rows.find(within.get(n, []), keys.names, keys.pick)
                places[number] = _LoadedFile(len(rows), rows.gone, found)
                if len(found):
                    parts.append(_placed(rows.take(found, read), schema, number, found))
        name = self.session.take("standing", pa.concat_tables(parts))
        again = frozenset(number for number, n in enumerate(numbers) if n in small)
        return _Picked(name, [there[n] for n in numbers], places, again)

    def _within(self, files: Mapping[int, _File], keys: Keys, columns: Sequence[str]) -> dict[int, list[RowGroup]]:
        """Return the row groups of some files that may have a row with one of the keys.

        Raises:
            HandOver: too much of them would have to be read.
        """
        found: dict[int, list[RowGroup]] = {}
        size = 0
        for n, file in files.items():
            with self._opened(file) as rows:
                found[n] = [rows.groups[i] for i in keys.near(rows.ends(keys.first))]
                size += rows.size(found[n], columns)
        self._check_size(size, SCANNED_TIMES)
        return found

    def _check_size(self, size: int, times: int = 1) -> None:
        if self._bytes_max is not None and size > self._bytes_max * times:
            raise HandOver(f"{size >> 20} MB of its files would have to be read")

    def _own_names_free(self) -> pa.Schema:
        schema = self.schema
        for name in (FILE, NUMBER, STOOD):
            if name in schema.names:
                raise HandOver(f"it has a column called {name}")
        return schema

    def _stand(self) -> _Whole[_File]:
        """Load all rows of the table."""
        there = self._files()
        return self._stand_whole(there, range(len(there)))

    def _stand_whole(self, there: Sequence[_File], chosen: Sequence[int]) -> _Whole[_File]:
        """Load all rows of the files with the numbers in `chosen`."""
        schema = self._own_names_free()
        small = file_rewrites.small([self._size(file) for file in there])
        self._check_size(sum(self._size(there[n]) for n in chosen))
        numbers = [*chosen, *sorted(small - set(chosen))]
        parts = [schema.empty_table().append_column(FILE, pa.array([], pa.int32()))]
        for number, n in enumerate(numbers):
            rows = self._read(there[n], schema.names)
            parts.append(rows.append_column(FILE, pa.array(np.full(len(rows), number, np.int32))))
        name = self.session.take("standing", pa.concat_tables(parts))
        again = frozenset(number for number, n in enumerate(numbers) if n in small)
        files = [there[n] for n in numbers]
        return _Whole(name, files, {n: len(rows) for n, rows in enumerate(parts[1:])}, again)

    def _update(self, act: Act, metadata: Mapping[str, Any], app: str, version: int) -> None:
        """Apply an act that changes rows."""
        self._standing = standing = self._stand()
        changed = 0
        for sql in statement.alter(standing.name, self.rules, act):
            ((count,),) = self.session.rows(sql)
            changed += count
        if changed:
            self._replace(standing.files, self._rows(standing.name, "true"), metadata, app, version)
        elif app:
            self._replace([], None, metadata, app, version)
        self._standing = None

    def _commit(
        self,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        first: int | None,
        key: Sequence[str],
        ended: Collection[int] = (),
    ) -> None:
        """Write the changes to the rows in memory. `first` is the lowest offset of a changed row. The files
        `ended` also have changed rows, whose offsets did not change."""
        match self._standing:
            case None:
                raise InvariantViolated(f"changing {self._name}: its rows were not read")
            case _Picked() as picked:
                rows = self._rows(picked.name, f"{FILE} IS NULL OR {_CHANGED}")
                self._commit_picked(picked, metadata, app, version, key, rows, self._dead(picked))
            case _Whole() as whole:
                self._commit_whole(whole, metadata, app, version, first, key, ended)
        self._standing = None

    def _commit_whole(
        self,
        standing: _Whole[_File],
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        first: int | None,
        key: Sequence[str],
        ended: Collection[int],
    ) -> None:
        sql = f"SELECT {FILE}, count(*), max({OFFSET}) FROM {standing.name} WHERE {FILE} IS NOT NULL GROUP BY {FILE}"  # noqa: S608  cdcflow's own
        left = {number: (count, newest) for number, count, newest in self.session.rows(sql)}
        touched = [
            number
            for number, count in standing.rows.items()
            if number in standing.again
            or number in ended
            or left.get(number, (0, None))[0] != count
            or (first is not None and count and left[number][1] is not None and left[number][1] >= first)
        ]
        listed = ", ".join(map(str, touched)) or "NULL"
        rows = self._in_order([self._rows(standing.name, f"{FILE} IS NULL OR {FILE} IN ({listed})")], key)
        self._replace([standing.files[number] for number in touched], rows, metadata, app, version)

    def _commit_picked(
        self,
        standing: _Picked[_File],
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        key: Sequence[str],
        rows: pa.Table,
        dead: Mapping[int, Numbers],
    ) -> None:
        """Insert `rows`, in any order, and delete the rows with the numbers `dead`, by the number of their file."""
        touched = {
            number: Touched(self._size(standing.files[number]), place.rows, len(place.gone) + len(dead[number]))
            for number, place in standing.places.items()
            if number in dead and number not in standing.again
        }
        spent = sum(self._size(standing.files[number]) for number in standing.again)
        if self._marks:
            again = sorted(standing.again | file_rewrites.again(touched, spent))
        else:
            self._check_size(spent + sum(file.size for file in touched.values()))
            again = sorted(standing.again | dead.keys())
        left = [self._left(standing.files[n], standing.places[n], dead.get(n, NONE)) for n in again]
        come = self._in_order([rows, *left], key)
        marked = [
            (standing.files[n], np.union1d(standing.places[n].gone, gone)) for n, gone in dead.items() if n not in again
        ]
        self._replace([standing.files[n] for n in again], come, metadata, app, version, marked)

    def _dead(self, standing: _Picked[_File]) -> dict[int, Numbers]:
        """Return the rows, by file, that have changed or were deleted."""
        sql = f"SELECT {FILE}, {NUMBER} FROM {standing.name} WHERE {FILE} IS NOT NULL AND NOT ({_CHANGED})"  # noqa: S608  cdcflow's own
        stays = self.session.arrow(sql)
        files, numbers = stays.column(0).to_numpy(), stays.column(1).to_numpy()
        found = {
            number: np.setdiff1d(place.found, numbers[files == number], assume_unique=True)
            for number, place in standing.places.items()
        }
        return {number: gone for number, gone in found.items() if len(gone)}

    def _left(self, file: _File, place: _LoadedFile, dead: Numbers) -> pa.Table:
        """Return a file's remaining rows."""
        lives = np.ones(place.rows, bool)
        lives[place.gone] = False
        stays = lives.copy()
        stays[dead] = False
        return self._read(file, self.schema.names).filter(pa.array(stays[lives]))

    def _matched(self, standing: _Picked[_File], replaced: Replaced) -> dict[int, Numbers]:
        """Return the rows, by file, that are replaced by others."""
        same = " AND ".join(f"t.{name_sql(name)} = s.{position}" for name, position in replaced.key.items())
        sql = f"SELECT {FILE}, {NUMBER} FROM {standing.name} t LEFT SEMI JOIN {replaced.rows} s ON {same}"  # noqa: S608  quoted
        found = self.session.arrow(sql)
        files, numbers = found.column(0).to_numpy(), found.column(1).to_numpy()
        return {int(number): np.sort(numbers[files == number]) for number in np.unique(files)}

    def _rows(self, name: str, where: str) -> pa.Table:
        """Return rows from memory."""
        listed = ", ".join(map(name_sql, self.schema.names))
        return self.session.arrow(f"SELECT {listed} FROM {name} WHERE {where}").cast(self.schema)  # noqa: S608  quoted

    def _in_order(self, parts: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
        """Return rows with the table's columns, in any order, as one table sorted by a key."""
        named = [part.select(self.schema.names).cast(self.schema) for part in parts]
        return self.session.in_order(pa.concat_tables(named), key)


_CHANGED = f"{OFFSET} IS DISTINCT FROM {STOOD}"
"""Whether a loaded row is unchanged is decided by its offset: a change gives it a later one."""


def _lives(ended: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the mask of rows that a column does not mark as deleted, by a boolean mark or by a value that is set on
    deletion."""
    is_mark = pa.types.is_boolean(ended.type)
    return pc.invert(pc.fill_null(ended, False)) if is_mark else pc.is_null(ended)


def _missing_others(missing: pa.ChunkedArray, left: Collection[str]) -> int:
    """Return how many rows lack a column other than these."""
    others = pc.invert(pc.is_in(pc.list_flatten(missing), pa.array(left, pa.string())))
    return len(pc.unique(pc.list_parent_indices(missing).filter(others)))


def _placed(rows: pa.Table, schema: pa.Schema, number: int, found: Numbers) -> pa.Table:
    """Return rows of one file with all columns of the table, NULL for those that were not read, and with their
    places."""
    there = set(rows.column_names)
    columns = [rows.column(f.name) if f.name in there else pa.nulls(len(rows), f.type) for f in schema]
    places = [pa.array(np.full(len(rows), number, np.int32)), pa.array(found), rows.column(OFFSET)]
    return pa.table([*columns, *places], names=[*schema.names, FILE, NUMBER, STOOD])


def _kept(folding: statement.Folding, names: Sequence[str]) -> set[str]:
    """Return the columns of a table whose value in a changed row the statement may keep."""
    target = folding.layout.target
    if not target.key:
        return set(names)
    kinds = reduce.families(folding.layout, folding.masks)
    set_anew = {target.columns[i].name for family in kinds if family.always for i in family.columns}
    if all(family.always for family in kinds):
        set_anew.add(MISSING)
    elif folding.layout.ended_name is not None:
        set_anew.discard(folding.layout.ended_name)
    return set(names) - set_anew


def type_of(text: str) -> pa.DataType:
    """Return Arrow's type for Spark's text of it. HandOver: there is no such type here."""
    if text in TYPES:
        return TYPES[text]
    if (decimal := _DECIMAL.fullmatch(text)) is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if text.startswith("array<"):
        return pa.list_(type_of(text[len("array<") : -1]))
    raise HandOver(f"it has a column of type {text}")
