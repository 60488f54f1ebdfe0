"""DuckDB in this process, for a merge: reads the log's rows as Arrow tables, and runs queries written for Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.log.files.parquet import PLAIN_ORDER, THREADED_ROWS
from cdcflow.model.file_layout import SortColumn
from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Table
from cdcflow.tables.job.failures import reading
from cdcflow.tables.local.dialect import connect, connect_again, duckdb_sql
from cdcflow.tables.local.plain_columns import take_plain
from cdcflow.tables.local.settings_sql import tree_of
from cdcflow.tables.segments import InputFile
from cdcflow.tables.sql.trees import Node

TAKEN_BYTES_MAX = 1 << 30
"""A column with more bytes of texts than this may not fit into one Arrow array."""
UNUSED_ROWS_MAX = 1 << 16
"""A view with at most this many rows of the log is created only when a query needs it."""
SORTED_ROWS = 1 << 16
"""At most this many rows are sorted by Arrow, if it orders their values like DuckDB."""


@dataclass(frozen=True, slots=True)
class _UnusedView:
    """A view of rows of the log that no query has used yet: expressions over the rows, and which rows it has."""

    rows: pa.Table
    columns: Sequence[str]
    where: str

    @property
    def query(self) -> str:
        """The view's SQL, with `{}` in place of the rows."""
        return f"SELECT {', '.join(self.columns)} FROM {{}} WHERE {self.where}"  # noqa: S608  see merge


class DuckSession:
    """Implements `cdcflow.tables.port.SqlSession`. A view of the log's rows is a table of it, so that files are read
    once. `close` it."""

    sorts_each_window = True
    takes_by_offset = True

    def __init__(self, memory_bytes: int | None = None) -> None:
        """`memory_bytes`: how much memory DuckDB may use, in a separate database; what exceeds it is in temporary
        files. `None`: the sessions share one database, which may use most of the machine's memory."""
        self._memory_bytes = memory_bytes
        self._spill: TemporaryDirectory[str] | None = None
        self._numbers = itertools.count(1)
        self._views: set[str] = set()
        self._given: set[str] = set()
        self._unused: dict[str, _UnusedView] = {}

    @cached_property
    def _db(self) -> duckdb.DuckDBPyConnection:
        """The database. It is opened when it is first needed, because that takes longer than a small merge that does
        without it."""
        if self._memory_bytes is None:
            return connect_again()
        self._spill = TemporaryDirectory(prefix="cdcflow-merge-")
        return connect(1, self._memory_bytes, Path(self._spill.name))

    def close(self) -> None:
        if "_db" in self.__dict__:
            self._db.close()
        if self._spill is not None:
            self._spill.cleanup()

    def read(
        self, what: str, files: Sequence[InputFile], shape: Table, where: str, columns: Sequence[str], *, moved: bool
    ) -> str:
        names = [
            OFFSET,
            OP,
            UNCHANGED,
            TRANSACTION,
            COMMIT_TS,
            *(c.name for c in shape.columns),
            *([BEFORE] if moved else []),
        ]
        found = pa.concat_tables([_read(file.path, names) for file in files])
        view = _UnusedView(found, tuple(columns), where)
        if len(found) > UNUSED_ROWS_MAX:
            return self.take(what, found, view.query)
        name = self._name(what)
        self._unused[name] = view
        return name

    def transactions(self, files: Sequence[InputFile], columns: Sequence[str]) -> str:
        found = pa.concat_tables([_whole(file.path) for file in files])
        return self.take("transactions", found, f"SELECT {', '.join(columns)} FROM {{}}")  # noqa: S608  see merge

    def take(self, what: str, rows: pa.Table, query: str = "SELECT * FROM {}") -> str:
        """Create a table from a query over Arrow rows, with `{}` in place of their name. Return its name."""
        name = self._name(what)
        self._use_all()
        self._take(name, rows, query)
        return name

    def _take(self, name: str, rows: pa.Table, query: str) -> None:
        given = self._name("given")
        self._db.register(given, rows)
        try:
            self._db.execute(f"CREATE TEMP TABLE {name} AS {duckdb_sql(query, given)}").fetchall()
        finally:
            self._db.unregister(given)

    def columns_of(self, view: str, names: Sequence[str]) -> pa.Table:
        """Return these columns of a view of the log's rows. A view that no other query has used is not created for
        it."""
        unused = self._unused.get(view)
        if unused is not None:
            plain = take_plain(unused.rows, unused.columns, unused.where, names)
            if plain is not None:
                return plain
        return self.arrow(f"SELECT {', '.join(names)} FROM {view}")  # noqa: S608  see merge

    def _use_all(self) -> None:
        """Create the views of the log's rows that were not used yet: a query may name them."""
        while self._unused:
            name, view = self._unused.popitem()
            self._take(name, view.rows, view.query)

    def view_of(self, what: str, rows: pa.Table) -> str:
        """Create a view of Arrow rows without copying them. Return its name."""
        name = self._name(what)
        self._given.add(name)
        self._db.register(name, rows)
        return name

    def over(self, rows: pa.Table, query: str) -> pa.Table:
        """Return the result of a query over Arrow rows, with `{}` in place of their name."""
        return self.over_own(rows, lambda given: duckdb_sql(query, given))

    def over_own(self, rows: pa.Table, query: Callable[[str], str]) -> pa.Table:
        """Return the result of a query in DuckDB's own SQL over Arrow rows. `query` returns the query, given the name
        of the rows."""
        self._use_all()
        given = self._name("given")
        self._db.register(given, rows)
        try:
            return self._db.sql(query(given)).to_arrow_table()
        finally:
            self._db.unregister(given)

    def parse(self, sql: str) -> Node:
        """Return the tree of a text, without running it (see `settings_sql.tree_of`)."""
        return tree_of(self._db, sql)

    def in_order(self, rows: pa.Table, columns: Sequence[SortColumn]) -> pa.Table:
        """Return rows sorted by some of their columns; without columns, unchanged."""
        if not columns:
            return rows
        if rows.nbytes > TAKEN_BYTES_MAX:
            by = ", ".join(f"{name_sql(one.column)} {one.direction}" for one in columns)
            return self.over(rows, f"SELECT * FROM {{}} ORDER BY {by}")  # noqa: S608  quoted
        # Sort the row numbers only, so that each value is moved once. For few rows, a query takes longest to plan.
        if len(rows) <= SORTED_ROWS and all(_sorts_as_duckdb(rows.column(one.column)) for one in columns):
            keys = [(one.column, "descending" if one.descending else "ascending") for one in columns]
            return rows.take(pc.sort_indices(rows, sort_keys=keys))
        names = [f"c{n}" for n in range(len(columns))]
        chosen = rows.select([one.column for one in columns]).rename_columns(names)
        given = chosen.append_column("n", pa.array(np.arange(len(rows))))
        by = ", ".join(f"{name} {one.direction}" for name, one in zip(names, columns, strict=True))
        numbers = self.over(given, f"SELECT n FROM {{}} ORDER BY {by}").column(0)  # noqa: S608  cdcflow's own
        return rows.take(numbers)

    def view(self, what: str, sql: str) -> str:
        name = self._name(what)
        self._use_all()
        self._views.add(name)
        self._db.execute(f"CREATE TEMP VIEW {name} AS {duckdb_sql(sql)}").fetchall()
        return name

    def keep(self, what: str, sql: str) -> str:
        name = self._name(what)
        self._use_all()
        self._db.execute(f"CREATE TEMP TABLE {name} AS {duckdb_sql(sql)}").fetchall()
        return name

    def hold(self, view: str) -> None:
        """Do nothing: a view of the log's rows is already stored as a table here."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        self._use_all()
        return self._db.execute(duckdb_sql(sql)).fetchall()

    def arrow(self, sql: str) -> pa.Table:
        """Return the result of a query as an Arrow table."""
        self._use_all()
        return self._db.sql(duckdb_sql(sql)).to_arrow_table()

    def drop(self, views: Sequence[str]) -> None:
        for name in reversed(views):
            if self._unused.pop(name, None) is not None:
                continue
            if name in self._given:
                self._db.unregister(name)
                continue
            self._db.execute(f"DROP {'VIEW' if name in self._views else 'TABLE'} {name}").fetchall()
            self._views.discard(name)

    def _name(self, what: str) -> str:
        return f"cdcflow_{what}_{next(self._numbers)}"


def _all_rows(path: str) -> pa.Table:
    file = pq.ParquetFile(path)
    return file.read(use_threads=file.metadata.num_rows > THREADED_ROWS)


def _whole(path: str) -> pa.Table:
    with reading(path):
        return _all_rows(path)


def _read(path: str, names: Sequence[str]) -> pa.Table:
    with reading(path):
        found = _all_rows(path)
        columns = [found.column(name) for name in names]
    return pa.Table.from_arrays([c.cast(read_type(c.type)) for c in columns], names=list(names))


def read_type(arrow: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which a type of the log is read: `model.sqltypes.Stored.read` as an Arrow type. No value
    changes."""
    if pa.types.is_dictionary(arrow):
        return read_type(arrow.value_type)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return pa.list_(read_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(f.name, read_type(f.type)) for f in arrow])
    if pa.types.is_time(arrow) or pa.types.is_duration(arrow):
        return pa.int64()
    if pa.types.is_fixed_size_binary(arrow):
        return pa.binary()
    return _UNSIGNED.get(arrow, arrow)


def _sorts_as_duckdb(column: pa.ChunkedArray) -> bool:
    """Return whether Arrow orders these values like DuckDB. The two order NULL, NaN and zeros differently."""
    is_plain = any(test(column.type) for test in (*PLAIN_ORDER, pa.types.is_string))
    return is_plain and not column.null_count


_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
