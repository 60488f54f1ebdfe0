"""The rows of a derived table: which of them are replaced, and the commit that replaces them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdcflow.tables.derived.increments import PLACE
from cdcflow.tables.derived.lineage import unit_column
from cdcflow.tables.local.arrow_types import TYPES
from cdcflow.tables.local.derived_inputs import InputVersion, find_rows
from cdcflow.tables.local.query_database import QueryDatabase
from cdcflow.tables.local.scan import Numbers, RowMarks
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.port import DerivedVersion, TableSnapshot
from cdcflow.tables.sql.quotes import quote

APP = "cdcflow/derived"
"""The app of the transaction of a derived table's commits. The transaction's version is the stamp of the query and
its inputs."""

OWNER = "cdcflow.derived"
"""The property of a table that makes it a derived one; no other table is ever written as one."""

Units = tuple[tuple[str, ...], pa.Table]
"""Some units of a table: the names of their columns, and their values."""

_FILE, _NUMBER = "_cdcflow_file", PLACE
_WIDER = {
    pa.int8(): pa.int32(), pa.uint8(): pa.int32(), pa.int16(): pa.int32(), pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
}  # fmt: skip
"""Replacements for types that not every format has."""
_DIGITS_MAX = 38


class DerivedRows:
    """The latest version of a derived table, which may not exist yet."""

    def __init__(self, there: FileTable[Any], db: QueryDatabase, key: Sequence[str]) -> None:
        """`db`: for queries over its rows."""
        self._there = there
        self.db = db
        self._key = key
        self._snapshot: TableSnapshot | None = there.snapshot()
        self._present: tuple[pa.Table, pa.Table] | None = None

    @property
    def stamp(self) -> int | None:
        """The number from `deriver.stamp` for the query and the inputs that the table was computed from; `None` if the
        table does not exist, or has no rows yet."""
        return None if self._snapshot is None else self._snapshot.transactions.get(APP)

    def newest_commit(self) -> Mapping[str, Any]:
        return {} if self._snapshot is None else self._there.newest_commit() or {}

    def version(self, units: int | None = 0, why: str = "") -> DerivedVersion:
        found = self._there.own_snapshot()
        assert found is not None  # noqa: S101  it was written, or has a stamp
        return DerivedVersion(found.id, found.version, found.commit, units, why)

    def write(
        self,
        name: str,
        rows: pa.Table,
        units: Units | None,
        metadata: Mapping[str, Any],
        stamp: int,
    ) -> None:
        """Make one commit that replaces all rows of the table by `rows`; with `units`, only the rows of these units.

        Raises:
            CannotFollow: the key is not unique, or the table has other columns.
        """
        if taken := [column for column in rows.column_names if column.lower() in (_FILE, _NUMBER)]:
            raise CannotFollow(f"its query gives a column {taken[0]}, which is a name of cdcflow's own", remedy=_RENAME)
        if self._snapshot is None:
            self._check_key(rows)
            self._there.create(rows.schema, {OWNER: name}, metadata)
            self._there.snapshot()
        elif self._snapshot.properties.get(OWNER) != name:
            raise CannotFollow("its name is that of a table that is not a derived one", remedy="choose another name")
        else:
            self._fit(rows.schema, metadata)
            rows = rows.cast(self._there.schema)
            self._check_key(rows)
        try:
            self._replace(rows, units, metadata, stamp)
        finally:
            self.db.forget()

    def differences(self, rows: pa.Table, there: InputVersion) -> tuple[int, int]:
        """Return how many of `rows` a version of the table lacks, and how many rows it has that are not among them."""
        names = rows.column_names
        if set(names) != set(there.columns):
            raise CannotFollow("the table has other columns than its query gives", remedy=_AGAIN)
        one = self.db.give(rows)
        other = self.db.give(there.rows(names).cast(rows.schema))
        try:
            same = " AND ".join(_is_like(rows.schema.field(name)) for name in names)
            lacks = self.db.count(f"SELECT count(*) FROM {one} n ANTI JOIN {other} o ON ({same})")  # noqa: S608  quoted
            more = self.db.count(f"SELECT count(*) FROM {other} o ANTI JOIN {one} n ON ({same})")  # noqa: S608  quoted
            extra = len(there.rows(names[:1])) - len(rows) - more + lacks
            return lacks, more + max(extra, 0)
        finally:
            self.db.forget()

    def _fit(self, schema: pa.Schema, metadata: Mapping[str, Any]) -> None:
        """Give the table the columns of its query's result, if they can be added."""
        known = {field.name: stored_type(field) for field in self._there.schema}
        changed = [field.name for field in schema if field.name in known and known[field.name] != field.type]
        gone = [name for name in known if name not in schema.names]
        if changed or gone:
            raise CannotFollow(
                f"its query gives other columns than the table has: {', '.join([*changed, *gone])}", remedy=_AGAIN
            )
        if new := [field for field in schema if field.name not in known]:
            self._there.add(pa.schema(new), metadata)
            self._there.snapshot()

    def _check_key(self, rows: pa.Table) -> None:
        known = {name.lower() for name in rows.column_names}
        if missing := [name for name in self._key if name.lower() not in known]:
            raise CannotFollow(f"its query gives no column {', '.join(missing)}, which its key has")
        view, key = self.db.give(rows), ", ".join(map(quote, self._key))
        twice = self.db.count(f"SELECT count(*) FROM (SELECT 1 FROM {view} GROUP BY {key} HAVING count(*) > 1)")  # noqa: S608  quoted
        if twice:
            raise CannotFollow(
                f"its query gives {twice} keys ({', '.join(self._key)}) more than once",
                remedy="name as its key what is unique in the result, then run `cdcflow merge`",
            )

    def has_columns(self, names: Sequence[str]) -> bool:
        """Return whether the table has exactly these columns."""
        return self._snapshot is not None and set(self._there.schema.names) == set(names)

    def present(self, units: Units) -> pa.Table:
        """Return the rows of the table that may have one of these units, with `PLACE`. A later `write` with the same
        units does not read them again."""
        named = self._table_units(units)
        self._present = units[1], self._old_rows(self._there.files(), named)
        return self._present[1].drop_columns([_FILE])

    def _table_units(self, units: Units) -> Units:
        """Return the units with their columns under the table's names for them."""
        named = {name.lower(): name for name in self._there.schema.names}
        return tuple(named[name.lower()] for name in units[0]), units[1]

    def _replace(self, rows: pa.Table, units: Units | None, metadata: Mapping[str, Any], stamp: int) -> None:
        rows = rows.select(self._there.schema.names)
        units = None if units is None else self._table_units(units)
        files = self._there.files()
        if units is not None and self._present is not None and self._present[0] is units[1]:
            old = self._present[1]
        else:
            old = self._old_rows(files, units)
        given, stood = self.db.give(rows), self.db.give(old)
        same = " AND ".join(f"o.{quote(n)} IS NOT DISTINCT FROM n.{quote(n)}" for n in rows.column_names)
        among = ""
        if units is not None:
            view = self.db.give(units[1])
            alike = [f"o.{quote(n)} IS NOT DISTINCT FROM u.{unit_column(i)}" for i, n in enumerate(units[0])]
            among = f" SEMI JOIN {view} u ON ({' AND '.join(alike)})"
        dead = self.db.arrow(
            f"SELECT o.{_FILE}, o.{_NUMBER} FROM {stood} o{among} ANTI JOIN {given} n ON ({same})"  # noqa: S608  quoted
        )
        come = self.db.arrow(f"SELECT n.* FROM {given} n ANTI JOIN {stood} o ON ({same})").cast(rows.schema)  # noqa: S608  quoted
        in_file, numbers = (dead.column(n).to_numpy() for n in (0, 1))
        gone = {int(n): np.sort(numbers[in_file == n]) for n in np.unique(in_file)}
        self._commit(files, gone, come, metadata, stamp)

    def _old_rows(self, files: Sequence[Any], units: Units | None) -> pa.Table:
        """Return the rows that may be replaced, with their files and their numbers there."""
        schema = self._there.schema
        names = schema.names
        parts = [_with_place(schema.empty_table(), 0, np.array([], np.int64))]
        if units is not None and not pa.types.is_floating(schema.field(units[0][0]).type):
            found = find_rows(self._there, names, units[0][0], units[1].column(0))
            parts += [_with_place(rows, n, numbers) for n, numbers, rows in found]
            return pa.concat_tables(parts)
        for n, file in enumerate(files):
            living = np.setdiff1d(np.arange(self._there.row_count(file)), self._there.deleted_rows(file))
            parts.append(_with_place(self._there.read(file, names).select(names), n, living))
        return pa.concat_tables(parts)

    def _commit(
        self,
        files: Sequence[Any],
        gone: Mapping[int, Numbers],
        come: pa.Table,
        metadata: Mapping[str, Any],
        stamp: int,
    ) -> None:
        there = self._there
        held = {n for n, file in enumerate(files) if there.path_of(file) in there.held.paths}
        again = there.small_files(files) - held
        deleted = {n: RowMarks.of(there.deleted_rows(files[n]), numbers) for n, numbers in gone.items()}
        if there.marks_rows:
            again |= {n for n, marks in deleted.items() if len(marks.all) == there.row_count(files[n])}
        else:
            again |= deleted.keys()
        left = [self._remaining_rows(files[n], deleted[n].all if n in deleted else None) for n in sorted(again)]
        named = {name.lower(): name for name in there.schema.names}
        rows = there.in_order([come, *left], [named[name.lower()] for name in self._key])
        marked = [(files[n], marks) for n, marks in deleted.items() if n not in again]
        there.replace([files[n] for n in sorted(again)], rows, metadata, APP, stamp, marked)

    def _remaining_rows(self, file: Any, deleted: Numbers | None) -> pa.Table:
        names = self._there.schema.names
        if deleted is None:
            return self._there.read(file, names).select(names)
        living = np.setdiff1d(np.arange(self._there.row_count(file)), deleted)
        with self._there.open_file(file) as opened:
            return opened.take(living, names)


_RENAME = "give the column another name in the query (AS)"
_AGAIN = "move the table's folder away in the warehouse, then run `cdcflow merge`"


def stored_types(rows: pa.Table) -> pa.Table:
    """Return a query's result with its columns converted to types that tables have.

    Raises:
        CannotFollow: the type of a column cannot be converted.
    """
    names = [name.lower() for name in rows.column_names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CannotFollow(f"its query gives more than one column {', '.join(twice)}")
    return rows.cast(pa.schema([pa.field(field.name, stored_type(field)) for field in rows.schema]))


def stored_type(field: pa.Field) -> pa.DataType:
    """Return the type that tables have for a column of a query's result."""
    type_ = _WIDER.get(field.type, field.type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        type_ = pa.string()
    elif pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        type_ = pa.binary()
    elif pa.types.is_timestamp(type_):
        type_ = pa.timestamp("us", None if type_.tz is None else "UTC")
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(stored_type(pa.field(field.name, type_.value_type)))
    is_known = type_ in TYPES.values() or (pa.types.is_decimal128(type_) and type_.precision <= _DIGITS_MAX)
    if not is_known:
        raise CannotFollow(
            f"its column {field.name} is of type {field.type}, which tables do not have",
            remedy="cast it to another type in the query",
        )
    return type_


def _with_place(rows: pa.Table, file: int, numbers: Numbers) -> pa.Table:
    """Return rows with two more columns: the index of their file, and their numbers in it."""
    placed = rows.append_column(_FILE, pa.array(np.full(len(rows), file, np.int32)))
    return placed.append_column(_NUMBER, pa.array(numbers, pa.int64()))


def _is_like(field: pa.Field) -> str:
    """Return the SQL condition that two rows have the same value in a column. The sum of floating-point numbers depends
    on the order of the rows, so such values may differ in the last digits."""
    one, other = f"n.{quote(field.name)}", f"o.{quote(field.name)}"
    if not pa.types.is_floating(field.type):
        return f"{one} IS NOT DISTINCT FROM {other}"
    return (
        f"(({one} IS NOT DISTINCT FROM {other}) OR abs({one} - {other}) <= 1e-9 * greatest(abs({one}), abs({other})))"
    )
