"""Changes of a table's rows: SQL changes the rows that a range concerns in memory, then the files are updated.

    plan     find the files that may have rows with one of the range's keys, by the bounds that the format keeps
    load     load the rows with one of the keys into a DuckDB table, each with its file and its number there; of the
             other columns only those that the statement needs. Where a key is one whole number, a file that is needed
             for the second time is indexed, and its keys are not read again (`file_keys`)
    fold     run the statement that Spark would run, on that table
    commit   write a file with the current rows, and mark changed and deleted rows in their old files; files that are
             small or have many deleted rows are rewritten (`replacing`). All in one commit with cdcflow's position

If a change concerns every row (a sweep, a table without a key, a column's default), all rows are loaded into memory,
and files with a changed row are replaced as a whole.

A commit names the version that it was computed from: if another commit came first, it fails and is computed again from
the new version. Each format finds, reads and replaces its own files (`table_files`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cdcflow.errors import InvariantViolated
from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.file_keys import KNOWN, FileKeys, FoundRows, keys_of, keys_table, read_keys
from cdcflow.tables.local.file_rewrites import Touched
from cdcflow.tables.local.scan import NONE, Ends, Int64s, Numbers, RowGroup, RowMarks, places_of
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.local.table_files import File, TableFiles
from cdcflow.tables.local.whole_rows import LatestChanges
from cdcflow.tables.merge import reduce, statement
from cdcflow.tables.merge.acts import Act
from cdcflow.tables.merge.reduce import ColumnLayout
from cdcflow.tables.merge.statement import Replaced
from cdcflow.tables.port import NO_VALUES, HandOver

SCANNED_TIMES = 4
"""How many times the memory limit a column may have that is only scanned: 200 MB of keys, ten million UUIDs as text,
take two CPU seconds and half a gigabyte of memory."""

FILE, NUMBER, STOOD = "_cdcflow_file", "_cdcflow_number", "_cdcflow_stood"
"""Columns of rows loaded in memory: the file that a row was in, its number there, and the offset that it had."""


@dataclass(frozen=True, slots=True)
class _Whole(Generic[File]):
    """Rows of a table in memory: all rows of `files`, each with the index of its file. `rows`: the number of rows of
    each file, by index. The files with the indexes in `again` are rewritten in any case."""

    name: str
    files: Sequence[File]
    rows: Mapping[int, int]
    again: frozenset[int]


@dataclass(frozen=True, slots=True)
class _LoadedFile:
    """A file with rows loaded in memory. `rows`: how many rows it has; `gone`: the numbers of those deleted before;
    `found`: the numbers of those that were loaded."""

    rows: int
    gone: Numbers
    found: Numbers


@dataclass(frozen=True)
class _Picked(Generic[File]):
    """Rows of a table in memory: those with one of a range's keys, each with the index of its file in `files`; `places`
    has the same indexes. `rows` has the columns that were read, and `FILE` and `NUMBER`. The files with the indexes in
    `again` are rewritten in any case."""

    rows: pa.Table
    schema: pa.Schema
    session: DuckSession
    files: Sequence[File]
    places: Mapping[int, _LoadedFile]
    again: frozenset[int]

    @cached_property
    def name(self) -> str:
        """The name of a table of the session with these rows, and all columns of the table: NULL in those that were not
        read."""
        there = set(self.rows.column_names)
        columns = {
            f.name: self.rows.column(f.name) if f.name in there else pa.nulls(len(self.rows), f.type)
            for f in self.schema
        }
        places = {name: self.rows.column(name) for name in (FILE, NUMBER)}
        return self.session.take("standing", pa.table({**columns, **places, STOOD: self.rows.column(OFFSET)}))


class RowChanges(Generic[File]):
    """Changes of rows, computed in memory from one version of a table and committed to its files."""

    def __init__(self, table: TableFiles[File]) -> None:
        self._table = table
        self._standing: _Whole[File] | _Picked[File] | None = None
        self.check: Callable[[pa.Table, int, str], pa.Table] | None = None
        """A function that returns the rows which the table's contract allows, of those that a range would write. It
        also gets the range's first offset, and the app of its transaction."""
        self._folded: tuple[int, str] | None = None

    def forget(self) -> None:
        """Forget the loaded rows, because the table has a new version."""
        self._standing = None

    def standing(self, layout: ColumnLayout, changes: str, *, whole: bool = False) -> str:
        """Load existing rows. Return the name of the table in memory that has them (see `CurrentTable.standing`)."""
        if whole and not isinstance(self._standing, _Whole):
            self._standing = self._stand()
        return self._stand_for(layout, changes, self._table.schema.names).name

    def fold(self, folding: statement.Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        """Merge a range of changes into the table, in one commit (see `CurrentTable.fold`)."""
        if self._table.has(app, version):
            return
        self._folded = folding.first, app
        try:
            self._fold(folding, metadata, app, version)
        finally:
            self._folded = None

    def _fold(self, folding: statement.Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        if folding.adds_only:
            # Only a large number of small files is merged along with it.
            self._standing = standing = self._stand_whole(self._table.files(), [])
            self._table.session.rows(folding.sql(standing.name))
            self._commit(metadata, app, version, None, [])
            return
        layout = folding.layout
        if self._standing is None and self._fold_whole_rows(folding, metadata, app, version):
            return
        if folding.is_of_all:
            self._standing = self._stand()  # then all rows are needed, whatever their keys
        found = self._stand_for(layout, folding.changes, _kept_columns(folding, self._table.schema.names))
        key = [layout.target.columns[i].name for i in layout.key] if layout.target.key else []
        brought = {*(c.name for c in layout.target.columns), OFFSET, MISSING}
        if (
            folding.replaced_rows is not None
            and isinstance(found, _Picked)
            and brought.issuperset(self._table.schema.names)
        ):
            # The inserted rows need not be added to the loaded rows first: no value of those is kept.
            rows, dead = self._table.session.arrow(folding.rows()), self._matched_rows(found, folding.replaced_rows)
            self._commit_picked(found, metadata, app, version, key, rows, dead)
            self._standing = None
            return
        name = found.name
        ((first,),) = self._table.session.rows(f"SELECT min(o) FROM {folding.changes}")  # noqa: S608  cdcflow's own
        for sql in folding.statements(name):
            self._table.session.rows(sql)
        offsets = [o for o in (first, folding.ending.truncated_at) if o]
        ended = self._touched_by_end(name, layout.ended_names, folding.ending.before)
        self._commit(metadata, app, version, min(offsets, default=None), key, ended)

    def _fold_whole_rows(self, folding: statement.Folding, metadata: Mapping[str, Any], app: str, version: int) -> bool:
        """Fold changes that bring whole rows, without SQL. Return False, without a commit, if they have to be folded by
        SQL."""
        schema = self._table.schema
        changes = LatestChanges.of(folding, self._table.session, schema)
        if changes is None:
            return False
        keys = Keys(self._table.session, folding.layout, folding.changes, schema, changes.keys)
        self._standing = found = self._near(keys, ())
        if not isinstance(found, _Picked) or found.rows.column(OFFSET).null_count:
            return False
        there, offsets = (found.rows.column(name).cast(pa.int64()).to_numpy() for name in (keys.first, OFFSET))
        replaced = changes.replaces(there, offsets)
        rows = changes.new_rows(there[~replaced], schema)
        dead = _numbers_by_file(found.rows.filter(pa.array(replaced)))
        self._commit_picked(found, metadata, app, version, keys.names, rows, dead)
        self._standing = None
        return True

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
        """Remove the rows older than an offset, or mark them as deleted, in one commit (see `CurrentTable.sweep`)."""
        if self._table.has(app, version):
            return
        self._standing = self._stand()
        self._table.session.rows(statement.sweep(self._standing.name, before, ended, assigned, reduce.only_with(only)))
        if assigned:
            self._commit(metadata, app, version, before, [])  # a row that ended has that offset
            return
        touched = self._touched_by_end(self._standing.name, ended, before)
        self._commit(metadata, app, version, None, [], touched)

    def update(self, act: Act, metadata: Mapping[str, Any], app: str, version: int) -> None:
        """Change the rows as a schema change requires (`merge.acts`)."""
        self._standing = standing = self._stand()
        changed = 0
        for sql in statement.alter(standing.name, self._table.rules, act):
            ((count,),) = self._table.session.rows(sql)
            changed += count
        if changed:
            rows = self._table.in_own_order(self._rows(standing.name, "true"))
            self._table.replace(standing.files, rows, metadata, app, version)
        elif app:
            self._table.replace([], None, metadata, app, version)
        self._standing = None

    def _touched_by_end(self, name: str, ended: Sequence[str], before: int) -> frozenset[int]:
        """Return the indexes of the files with rows older than offset `before` that the change has ended. An ended
        row keeps its offset, so a search for later offsets does not find it."""
        if not ended or not before:
            return frozenset()
        where = f"{statement.is_ended('', ended[:1])} AND {OFFSET} < {before} AND {FILE} IS NOT NULL"
        return frozenset(n for (n,) in self._table.session.rows(f"SELECT DISTINCT {FILE} FROM {name} WHERE {where}"))  # noqa: S608  cdcflow's own

    def _stand_for(self, layout: ColumnLayout, changes: str, columns: Collection[str]) -> _Whole[File] | _Picked[File]:
        """Load at least the rows that have one of the keys of a range of changes, with at least these columns."""
        if self._standing is None:
            keys = Keys(self._table.session, layout, changes, self._table.schema)
            self._standing = self._near(keys, columns) if layout.target.key else self._stand()
        return self._standing

    def _near(self, keys: Keys, columns: Collection[str]) -> _Whole[File] | _Picked[File]:
        there = self._table.files()
        near = keys.near(self._table.bounds(there, keys.first))
        chosen = self._table.in_partitions(there, near, keys.names, keys.values)
        # Files that would be rewritten in any case are read once, as a whole.
        is_tiny = sum(self._table.size_of(there[n]) for n in chosen) < file_rewrites.TINY_BYTES
        if is_tiny and not any(self._is_held(there[n]) for n in chosen):
            return self._stand_whole(there, chosen)
        return self._pick(keys, there, chosen, columns)

    def _pick(
        self, keys: Keys, there: Sequence[File], chosen: Sequence[int], columns: Collection[str]
    ) -> _Picked[File]:
        """Load the rows with one of the keys, with these columns. Only the files with the indexes in `chosen` may have
        such rows."""
        schema = self._own_names_free()
        small = self._small_files(there)
        read = [name for name in schema.names if name in columns or name in keys.names or name == OFFSET]
        written = {n: rows for n in chosen if (rows := self._table.written_rows(there[n])) is not None}
        indexed = {n: index for n in chosen if (index := self._index_of(there[n], keys, written.get(n))) is not None}
        within = self._within({n: there[n] for n in chosen if n not in indexed and n not in written}, keys, read)
        numbers = [*chosen, *sorted(small - set(chosen))]
        places: dict[int, _LoadedFile] = {}
        parts = [_with_places(schema.empty_table().select(read), 0, NONE)]
        listed: dict[int, FoundRows] = {}
        has_all = set(read) == {keys.first, OFFSET}
        for number, n in enumerate(numbers):
            if n in indexed:
                found = indexed[n].find(_ascending(keys), self._table.deleted_rows(there[n]))
                places[number] = _LoadedFile(len(indexed[n]), self._table.deleted_rows(there[n]), found.numbers)
                if has_all:
                    listed[number] = found
                    continue
                rows = self._take(there[n], found.numbers, read, written.get(n))
            elif n in written:
                places[number], rows = self._find_written(there[n], written[n], keys, read)
            else:
                places[number], rows = self._find_read(there[n], within.get(n, []), keys, read)
            if rows is not None:
                parts.append(_with_places(rows.select(read), number, places[number].found))
        if listed:
            # One table for all of these files: with one for each, a table with many files would take longer.
            found, columns = FoundRows.of_all(list(listed.values())), [schema.field(name) for name in read]
            of = np.repeat(np.array(list(listed), np.int32), [len(one.numbers) for one in listed.values()])
            parts.append(_with_places(keys_table(found, keys.first, columns), of, found.numbers))
        again = frozenset(number for number, n in enumerate(numbers) if n in small)
        files = [there[n] for n in numbers]
        return _Picked(pa.concat_tables(parts), schema, self._table.session, files, places, again)

    def _is_held(self, file: File) -> bool:
        """Return whether maintenance rewrites this file at present, so that its rows are only marked."""
        return self._table.marks_rows and self._table.path_of(file) in self._table.held.paths

    def _small_files(self, there: Sequence[File]) -> set[int]:
        """Return the indexes of the small files to rewrite along with a change."""
        free = [n for n, file in enumerate(there) if not self._is_held(file)]
        return {free[n] for n in self._table.small_files([there[n] for n in free])}

    def _index_of(self, file: File, keys: Keys, written: pa.Table | None) -> FileKeys | None:
        """Return the index of a file's rows by key; `None` if the file has none, or if keys are not one whole number
        each. `written`: all rows of the file, if they are in memory. In that case a missing index is built from them.
        """
        if keys.ascending is None:
            return None
        content = self._table.content_of(file, keys.first)
        found = KNOWN.get(content)
        if found is None and written is not None:
            return KNOWN.offer(content, len(written), lambda: keys_of(written, keys.first), at_once=True)
        return found

    def _take(
        self, file: File, numbers: Numbers, columns: Sequence[str], written: pa.Table | None = None
    ) -> pa.Table | None:
        """Return these columns of the rows of a file with these numbers; `None` if there are no rows. `written`: all
        rows of the file, if they are in memory."""
        if not len(numbers):
            return None
        if written is not None:
            return written.select(columns).take(pa.array(numbers))
        with self._table.open_file(file) as rows:
            return rows.take(numbers, columns)

    def _find_written(
        self, file: File, written: pa.Table, keys: Keys, columns: Sequence[str]
    ) -> tuple[_LoadedFile, pa.Table | None]:
        """Find the rows with one of the keys among the rows of a file, which are in memory, and return these columns of
        them."""
        gone = self._table.deleted_rows(file)
        numbers = np.sort(keys.pick(written.select(keys.names)))
        found = np.setdiff1d(numbers, gone, assume_unique=True)
        rows = written.select(columns).take(pa.array(found)) if len(found) else None
        return _LoadedFile(len(written), gone, found), rows

    def _find_read(
        self, file: File, groups: Sequence[RowGroup], keys: Keys, columns: Sequence[str]
    ) -> tuple[_LoadedFile, pa.Table | None]:
        """Find the rows of a file with one of the keys by reading these row groups. Return their places, and these
        columns of them."""
        with self._table.open_file(file) as rows:
            if groups and keys.ascending is not None:
                content = self._table.content_of(file, keys.first)
                index = KNOWN.offer(content, len(rows), lambda: read_keys(rows, keys.first))
                if index is not None:
                    numbers = index.find(keys.ascending, rows.deleted_rows).numbers
                    taken = rows.take(numbers, columns) if len(numbers) else None
                    return _LoadedFile(len(index), rows.deleted_rows, numbers), taken
            found = rows.find(groups, keys.names, keys.pick)
            place = _LoadedFile(len(rows), rows.deleted_rows, found)
            return place, rows.take(found, columns) if len(found) else None

    def _within(self, files: Mapping[int, File], keys: Keys, columns: Sequence[str]) -> dict[int, list[RowGroup]]:
        """Return, for each of these files, the row groups that may have a row with one of the keys.

        Raises:
            HandOver: too many bytes of them would have to be read.
        """
        found: dict[int, list[RowGroup]] = {}
        size = 0
        for n, file in files.items():
            with self._table.open_file(file) as rows:
                found[n] = [rows.groups[i] for i in keys.near(rows.ends(keys.first))]
                size += rows.size(found[n], columns)
        self._check_size(size, SCANNED_TIMES)
        return found

    def _check_size(self, size: int, times: int = 1) -> None:
        if self._table.bytes_max is not None and size > self._table.bytes_max * times:
            raise HandOver(f"{size >> 20} MB of its files would have to be read")

    def _own_names_free(self) -> pa.Schema:
        schema = self._table.schema
        for name in (FILE, NUMBER, STOOD):
            if name in schema.names:
                raise HandOver(f"it has a column called {name}")
        return schema

    def _stand(self) -> _Whole[File]:
        """Load all rows of the table."""
        there = self._table.files()
        return self._stand_whole(there, range(len(there)))

    def _stand_whole(self, there: Sequence[File], chosen: Sequence[int]) -> _Whole[File]:
        """Load all rows of the files with the indexes in `chosen`, and of the small files to rewrite."""
        schema = self._own_names_free()
        small = self._small_files(there)
        self._check_size(sum(self._table.size_of(there[n]) for n in chosen))
        numbers = [*chosen, *sorted(small - set(chosen))]
        parts = [schema.empty_table().append_column(FILE, pa.array([], pa.int32()))]
        for number, n in enumerate(numbers):
            rows = self._table.recall(there[n], schema.names)
            parts.append(rows.append_column(FILE, pa.array(np.full(len(rows), number, np.int32))))
        name = self._table.session.take("standing", pa.concat_tables(parts))
        again = frozenset(number for number, n in enumerate(numbers) if n in small)
        files = [there[n] for n in numbers]
        return _Whole(name, files, {n: len(rows) for n, rows in enumerate(parts[1:])}, again)

    def _commit(
        self,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        first: int | None,
        key: Sequence[str],
        ended: Collection[int] = (),
    ) -> None:
        """Write the changes of the rows in memory. `first` is the lowest offset of a changed row. The files with the
        indexes `ended` also have changed rows, whose offsets did not change."""
        match self._standing:
            case None:
                raise InvariantViolated(f"changing {self._table.name}: its rows were not read")
            case _Picked() as picked:
                rows = self._rows(picked.name, f"{FILE} IS NULL OR {_CHANGED}")
                self._commit_picked(picked, metadata, app, version, key, rows, self._dead(picked))
            case _Whole() as whole:
                self._commit_whole(whole, metadata, app, version, first, key, ended)
        self._standing = None

    def _commit_whole(
        self,
        standing: _Whole[File],
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        first: int | None,
        key: Sequence[str],
        ended: Collection[int],
    ) -> None:
        sql = f"SELECT {FILE}, count(*), max({OFFSET}) FROM {standing.name} WHERE {FILE} IS NOT NULL GROUP BY {FILE}"  # noqa: S608  cdcflow's own
        left = {number: (count, newest) for number, count, newest in self._table.session.rows(sql)}
        touched = [
            number
            for number, count in standing.rows.items()
            if number in standing.again
            or number in ended
            or left.get(number, (0, None))[0] != count
            or (first is not None and count and left[number][1] is not None and left[number][1] >= first)
        ]
        listed = ", ".join(map(str, touched)) or "NULL"
        new = self._rows_to_write(self._rows(standing.name, f"{FILE} IS NULL OR {FILE} IN ({listed})"))
        rows = self._table.in_order([new], key)
        self._table.replace([standing.files[number] for number in touched], rows, metadata, app, version)

    def _commit_picked(
        self,
        standing: _Picked[File],
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        key: Sequence[str],
        rows: pa.Table,
        dead: Mapping[int, Numbers],
    ) -> None:
        """Commit the rows `rows`, in any order, as new ones, and delete the rows with the numbers `dead`, by the index
        of their file."""
        rows = self._rows_to_write(rows)
        touched = {
            number: Touched(
                self._table.size_of(standing.files[number]), place.rows, len(place.gone) + len(dead[number])
            )
            for number, place in standing.places.items()
            if number in dead and number not in standing.again and not self._is_held(standing.files[number])
        }
        spent = sum(self._table.size_of(standing.files[number]) for number in standing.again)
        if self._table.marks_rows:
            again = sorted(standing.again | file_rewrites.again(touched, spent))
        else:
            self._check_size(spent + sum(file.size for file in touched.values()))
            again = sorted(standing.again | dead.keys())
        left = [self._remaining_rows(standing.files[n], standing.places[n], dead.get(n, NONE)) for n in again]
        come = self._table.in_order([rows, *left], key)
        marked = [
            (standing.files[n], RowMarks.of(standing.places[n].gone, gone))
            for n, gone in dead.items()
            if n not in again
        ]
        self._table.replace([standing.files[n] for n in again], come, metadata, app, version, marked)

    def _rows_to_write(self, rows: pa.Table) -> pa.Table:
        """Return those of a range's rows that the contract of the table allows it to show."""
        return rows if self.check is None or self._folded is None else self.check(rows, *self._folded)

    def _dead(self, standing: _Picked[File]) -> dict[int, Numbers]:
        """Return the numbers of the loaded rows that were changed or deleted, by the index of their file."""
        sql = f"SELECT {FILE}, {NUMBER} FROM {standing.name} WHERE {FILE} IS NOT NULL AND NOT ({_CHANGED})"  # noqa: S608  cdcflow's own
        stays = self._table.session.arrow(sql)
        files, numbers = stays.column(0).to_numpy(), stays.column(1).to_numpy()
        found = {
            number: np.setdiff1d(place.found, numbers[files == number], assume_unique=True)
            for number, place in standing.places.items()
        }
        return {number: gone for number, gone in found.items() if len(gone)}

    def _remaining_rows(self, file: File, place: _LoadedFile, dead: Numbers) -> pa.Table:
        """Return the rows of a file that were not deleted before and are not among `dead`."""
        lives = np.ones(place.rows, bool)
        lives[place.gone] = False
        stays = lives.copy()
        stays[dead] = False
        return self._table.recall(file, self._table.schema.names).filter(pa.array(stays[lives]))

    def _matched_rows(self, standing: _Picked[File], replaced: Replaced) -> dict[int, Numbers]:
        """Return the numbers of the loaded rows that others replace, by the index of their file."""
        same = " AND ".join(f"t.{name_sql(name)} = s.{position}" for name, position in replaced.key.items())
        sql = f"SELECT {FILE}, {NUMBER} FROM {standing.name} t LEFT SEMI JOIN {replaced.rows} s ON {same}"  # noqa: S608  quoted
        return _numbers_by_file(self._table.session.arrow(sql))

    def _rows(self, name: str, where: str) -> pa.Table:
        """Return the rows of a table in memory that meet a condition, in the table's columns."""
        listed = ", ".join(map(name_sql, self._table.schema.names))
        return self._table.session.arrow(f"SELECT {listed} FROM {name} WHERE {where}").cast(self._table.schema)  # noqa: S608  quoted


_CHANGED = f"{OFFSET} IS DISTINCT FROM {STOOD}"
"""The SQL condition that a loaded row was changed: a change gives it a later offset."""


def _ascending(keys: Keys) -> Int64s:
    assert keys.ascending is not None  # noqa: S101 - only such keys are indexed
    return keys.ascending


def _with_places(rows: pa.Table, file: int | NDArray[np.int32], found: Numbers) -> pa.Table:
    """Return rows with their places. `file`: the number of their file, or of each row's."""
    numbers = np.full(len(rows), file, np.int32) if isinstance(file, int) else file
    places = [pa.array(numbers), pa.array(found)]
    return pa.table([*rows.columns, *places], names=[*rows.column_names, FILE, NUMBER])


def _numbers_by_file(rows: pa.Table) -> dict[int, Numbers]:
    """Return the numbers of loaded rows, ascending, by the index of their file."""
    files, numbers = rows.column(FILE).to_numpy(), rows.column(NUMBER).to_numpy()
    return {int(number): np.sort(numbers[files == number]) for number in np.unique(files)}


def _kept_columns(folding: statement.Folding, names: Sequence[str]) -> set[str]:
    """Return the columns of a table that may keep their value when the statement changes a row."""
    target = folding.layout.target
    if not target.key:
        return set(names)
    kinds = reduce.families(folding.layout, folding.masks)
    set_anew = {target.columns[i].name for family in kinds if family.always for i in family.columns}
    if all(family.always for family in kinds):
        set_anew.add(MISSING)
    else:
        set_anew.difference_update(folding.layout.ended_names)
    return set(names) - set_anew


class Keys:
    """The keys in a view of changes. `schema`: that of the table.

    A table has many files, so a query for each of them would be most of a small merge. Keys that are whole numbers, as
    most are, need no query: they are fetched once, in order.
    """

    def __init__(
        self,
        session: DuckSession,
        layout: ColumnLayout,
        changes: str,
        schema: pa.Schema,
        numbers: Int64s | None = None,
    ) -> None:
        """`numbers`: the keys, ascending and unique, if they are known already."""
        self._given = numbers
        self._session = session
        self._changes = changes
        self._at = layout.key
        self.names = [layout.target.columns[i].name for i in layout.key]
        self._schema = schema
        self._type = schema.field(self.first).type

    @property
    def first(self) -> str:
        """The key column whose bounds are used."""
        return self.names[0]

    @cached_property
    def _numbers(self) -> Int64s | None:
        """The values of the first column, ascending and unique; `None` if they are not whole numbers of 64 bits."""
        if self._given is not None:
            return self._given
        if not pa.types.is_signed_integer(self._type):
            return None
        first = f"c{self._at[0]}"
        sql = f"SELECT DISTINCT {first} FROM {self._changes} WHERE {first} IS NOT NULL ORDER BY 1"  # noqa: S608  cdcflow's own
        found: Int64s = self._session.arrow(sql).column(0).cast(pa.int64()).to_numpy()
        return found

    @property
    def ascending(self) -> Int64s | None:
        """The keys, ascending and unique; `None` unless each is one whole number of 64 bits."""
        return self._numbers if len(self.names) == 1 else None

    def near(self, ends: Sequence[Ends | None]) -> list[int]:
        """Return the indexes of those bounds of the first column that include one of the keys, or are unknown."""
        known = {n: found for n, found in enumerate(ends) if found is not None}
        if len(ends) < 2 or not known:
            return list(range(len(ends)))
        if (keys := self._numbers) is not None:
            least, greatest = (np.array([end[i] for end in known.values()], np.int64) for i in (0, 1))
            inside = np.searchsorted(keys, least) < np.searchsorted(keys, greatest, "right")
            met = dict(zip(known, inside, strict=True))
            return [n for n in range(len(ends)) if met.get(n, True)]
        within = f"c.c{self._at[0]} >= b.least AND c.c{self._at[0]} <= b.greatest"
        query = f"SELECT n FROM {{}} b WHERE EXISTS (SELECT 1 FROM {self._changes} c WHERE {within})"  # noqa: S608  cdcflow's own
        hit = set(self._session.over(_bounds(known, self._type), query).column(0).to_pylist())
        return [n for n in range(len(ends)) if n not in known or n in hit]

    def values(self) -> pa.Table:
        """Return the keys, each once, in columns with the table's names and types."""
        listed = ", ".join(f"c{i}" for i in self._at)
        found = self._session.arrow(f"SELECT DISTINCT {listed} FROM {self._changes}")  # noqa: S608  cdcflow's own
        return found.rename_columns(self.names).cast(pa.schema([self._schema.field(name) for name in self.names]))

    def pick(self, rows: pa.Table) -> Numbers:
        """Return the numbers, in any order, of the rows that have one of the keys; `rows` has the key's columns."""
        if (keys := self.ascending) is not None:
            return _numbers_with(rows.column(0).cast(pa.int64()), keys)
        named = [f"k{n}" for n in range(len(self.names))]
        given = rows.rename_columns(named).append_column("n", pa.array(np.arange(len(rows))))
        same = " AND ".join(f"r.{name} = c.c{i}" for name, i in zip(named, self._at, strict=True))
        query = f"SELECT r.n FROM {{}} r LEFT SEMI JOIN {self._changes} c ON {same}"  # noqa: S608  cdcflow's own
        found: Numbers = self._session.over(given, query).column(0).to_numpy()
        return found


def _numbers_with(column: pa.ChunkedArray, keys: Int64s) -> Numbers:
    """Return the numbers of the rows that have one of the keys, which are ascending."""
    if not column.null_count and np.all((values := column.to_numpy())[1:] >= values[:-1]):
        # As a first load and maintenance write a file: then its size does not matter.
        return places_of(values, keys)
    same_key = pc.is_in(column, value_set=pa.array(keys), skip_nulls=True)
    found: Numbers = pc.indices_nonzero(same_key).to_numpy().astype(np.int64)
    return found


def _bounds(known: Mapping[int, Ends], wanted: pa.DataType) -> pa.Table:
    is_text = all(isinstance(end, str) for pair in known.values() for end in pair)
    held = pa.string() if is_text else pa.int32() if pa.types.is_date(wanted) else pa.int64()
    ends = [pa.array([pair[i] for pair in known.values()], held).cast(wanted) for i in (0, 1)]
    return pa.table([pa.array(list(known), pa.int32()), *ends], names=["n", "least", "greatest"])
