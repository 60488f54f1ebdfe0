"""Compute derived tables with DuckDB, and commit their rows.

    inputs at the published cut ─┐
                                 ├─▶ changed rows ─▶ units ─▶ rows of the inputs with these units ─▶ the query ─▶ rows
    inputs at the new cut ───────┘                                                                                 │
    the derived table: rows with these units that are not in the result are deleted, new ones are added ◀──────────┘

A commit records the versions of the inputs as the version of its transaction: a number computed from them and the
query. By this number cdcflow recognizes a table that an interrupted merge has already changed. If it is unknown which
versions a table was computed from, the table is computed as a whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa

from cdcflow.tables.cut import CutTable
from cdcflow.tables.derived.increments import Increments
from cdcflow.tables.derived.lineage import Lineage, NotCovered, lineage_of, unit_column
from cdcflow.tables.derived.queries import query_of, resolve_table, split_name, tables_of
from cdcflow.tables.job.derived_tables import derived_id
from cdcflow.tables.job.past_tables import VersionGone
from cdcflow.tables.local.derived_functions import function_units, load_function, transform_rows
from cdcflow.tables.local.derived_increments import continue_rows, read_increments
from cdcflow.tables.local.derived_inputs import InputVersion, changed_rows
from cdcflow.tables.local.derived_rows import DerivedRows, stored_types
from cdcflow.tables.local.derived_units import Changes, net_changes, recompute
from cdcflow.tables.local.query_database import QueryDatabase
from cdcflow.tables.local.settings_sql import reason_of
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.merge.modes import mode_of_properties
from cdcflow.tables.merge.policy import DerivedQuery
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import table_at, table_path
from cdcflow.tables.port import DerivedVersion
from cdcflow.tables.sql.quotes import quote
from cdcflow.tables.sql.trees import Node, SqlRefused, nodes_of

CHANGED_MIN, CHANGED_PART = 10_000, 10
"""An input with more changed rows than this, and than a tenth of its rows, makes the table be computed as a whole."""

FEW_ROWS = 50_000
"""Queries over up to this many rows run in one thread."""

OWN_PREFIX = "_cdcflow_"
"""Columns that cdcflow adds to the rows of a query begin with this. A query with such a name is computed as a whole."""

Path = tuple[str, str]


class LocalDeriver:
    """Implements `cdcflow.tables.port.Deriver`. `close` it."""

    def __init__(self, table: Callable[[Sequence[str]], FileTable[Any]], memory_bytes: int | None) -> None:
        self._table = table
        self._memory_bytes = memory_bytes
        self._opened: dict[bool, QueryDatabase] = {}
        self._known: dict[object, Lineage | str] = {}
        self._continued: dict[object, Increments | str] = {}
        self._cleaned: set[str] = set()

    def close(self) -> None:
        while self._opened:
            self._opened.popitem()[1].close()

    @property
    def _db(self) -> QueryDatabase:
        """The database for queries over many rows."""
        return self._database(is_for_few=False)

    @property
    def _few(self) -> QueryDatabase:
        """The database for queries over few rows, and for their texts: waking other threads costs more than it
        saves."""
        return self._database(is_for_few=True)

    def _database(self, *, is_for_few: bool) -> QueryDatabase:
        if is_for_few not in self._opened:
            self._opened[is_for_few] = QueryDatabase(self._memory_bytes, 1 if is_for_few else None)
        return self._opened[is_for_few]

    def _db_for(self, rows: int) -> QueryDatabase:
        return self._database(is_for_few=rows <= FEW_ROWS)

    def _forget(self) -> None:
        for db in self._opened.values():
            db.forget()

    def inputs(self, query: DerivedQuery, known: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
        if query.transform:
            load_function(query)
        try:
            found = [resolve_table(*one, known) for one in self._tables(query)]
        except SqlRefused as error:
            raise CannotFollow(str(error)) from error
        if not found:
            raise CannotFollow("it reads no table")
        return tuple(dict.fromkeys(found))

    def derive(
        self,
        name: str,
        query: DerivedQuery,
        inputs: Mapping[str, CutTable],
        known: Mapping[str, CutTable],
        shown: CutTable | None,
        cut: int,
    ) -> DerivedVersion:
        with ExitStack() as stack, _explain_errors():
            there = stack.enter_context(closing(self._table(table_path(derived_id(name)))))
            there.drop_torn(-1 if shown is None else shown.version)
            rows = DerivedRows(there, self._few, query.key)
            wanted = stamp(query, inputs)
            edits = [] if shown is None or rows.stamp is None else there.edits_since(shown.version)
            if rows.stamp == wanted and not edits:
                return rows.version()
            old = None if edits else self._position(rows, query, inputs, known)
            new = {one: stack.enter_context(self._open(one, entry)) for one, entry in inputs.items()}
            self._drop_stored([*(version.table for version in new.values()), *([] if rows.stamp is None else [there])])
            said = {"derived": name, "cut": cut, "inputs": {one: _place(entry) for one, entry in inputs.items()}}
            found = self._by_units(query, old, new, rows, stack)
            if isinstance(found, tuple):
                names, units, result = found
                rows.db = self._db_for(len(units) + len(result))
                rows.write(name, result, (names, units), said, wanted)
                return rows.version(len(units))
            rows.db = self._db
            rows.write(name, self._whole(query, new), None, said, wanted)
            return rows.version(None, f"another program changed its rows ({', '.join(edits)})" if edits else found)

    def explain(self, query: DerivedQuery, inputs: Mapping[str, CutTable]) -> str:
        with ExitStack() as stack, _explain_errors():
            new = {n: stack.enter_context(self._open(n, e)) for n, e in inputs.items()}
            if query.transform:
                (version,) = new.values()
                return f"by {', '.join(self._function_units(query, version))}, with {query.transform}"
            found = self._lineage(query, new)
            if isinstance(found, str):
                return f"whole: {found}"
            continued = self._increments(query, found, new)
            if not isinstance(continued, str):
                return f"by {', '.join(found.units)}, from changed rows"
            return f"by {', '.join(found.units)}, reading all rows of these: {continued}{_order_to_set(found, new)}"

    def differences(self, query: DerivedQuery, inputs: Mapping[str, CutTable], shown: CutTable) -> tuple[int, int]:
        with ExitStack() as stack, _explain_errors():
            new = {one: stack.enter_context(self._open(one, entry)) for one, entry in inputs.items()}
            table = stack.enter_context(closing(self._table(shown.path.split("/"))))
            there = InputVersion(table, shown)
            return DerivedRows(table, self._db, query.key).differences(self._whole(query, new), there)

    def _open_again(self, current: InputVersion, stack: ExitStack, version: int) -> InputVersion:
        """Open another version of an input."""
        entry = replace(current.entry, version=version, commit="")
        return InputVersion(stack.enter_context(closing(self._table(entry.path.split("/")))), entry)

    def _drop_stored(self, tables: Sequence[FileTable[Any]]) -> None:
        """Remove what is stored for replaced files of these tables, once for each table. Maintenance does it, too, but
        not if another program does the maintenance."""
        for table in tables:
            if table.name not in self._cleaned:
                self._cleaned.add(table.name)
                table.drop_stored()

    # ── versions ────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _open(self, name: str, entry: CutTable) -> Iterator[InputVersion]:
        with closing(self._table(entry.path.split("/"))) as there:
            try:
                found = InputVersion(there, entry)
            except VersionGone as error:
                raise CannotFollow(f"its input {name} cannot be read as the cut shows it: {error}") from error
            if mode_of_properties(found.properties) is None:
                raise CannotFollow(
                    f"its input {name} has a mode that this cdcflow does not know",
                    remedy="merge with the cdcflow version that created the table, or a newer one",
                )
            yield found

    def _position(
        self,
        rows: DerivedRows,
        query: DerivedQuery,
        inputs: Mapping[str, CutTable],
        known: Mapping[str, CutTable],
    ) -> Mapping[str, CutTable] | None:
        """Return the versions of the inputs from which the table was computed; `None` if that is unknown."""
        said = rows.newest_commit().get("inputs", {})
        recorded = {
            name: CutTable(entry.path, said[name][1], complete=True, id=said[name][0], commit=said[name][2])
            for name, entry in inputs.items()
            if name in said
        }
        for found in (recorded, known):
            if found.keys() == inputs.keys() and rows.stamp == stamp(query, found):
                return found
        return None

    # ── the query ───────────────────────────────────────────────────────────────────────────────────────────

    def _tree(self, query: DerivedQuery) -> Node:
        return query_of(self._few.parse(query.sql))

    def _tables(self, query: DerivedQuery) -> list[tuple[str, str]]:
        """Return the tables that a query or a function reads, as the settings name them: (schema or "", name)."""
        if query.transform:
            return [split_name(query.of)]
        return tables_of(self._tree(query))

    def _whole(self, query: DerivedQuery, new: Mapping[str, InputVersion]) -> pa.Table:
        """Compute all rows of the table."""
        if query.transform:
            (version,) = new.values()
            return transform_rows(self._db, query, version.parts(list(version.columns)), version.row_schema)
        tree, paths = self._tree(query), _paths(new)
        columns = _needed_columns(tree, new)
        given = {name: self._db.give(version.rows(columns[name])) for name, version in new.items()}
        named = [self._db.name(*one, given[resolve_table(*one, paths)]) for one in tables_of(tree)]
        try:
            return stored_types(self._db.arrow(self._db.render_query(tree)))
        finally:
            self._db.forget(named)

    def _lineage(self, query: DerivedQuery, new: Mapping[str, InputVersion]) -> Lineage | str:
        """Return how changes of the inputs reach the table. If that cannot be computed, return the reason."""
        asked = _shape(query, new)
        if asked not in self._known:
            self._known[asked] = self._read_lineage(query, new)
        return self._known[asked]

    def _increments(self, query: DerivedQuery, lineage: Lineage, new: Mapping[str, InputVersion]) -> Increments | str:
        """Return how the table's rows are computed from the previous ones. If they cannot be, return the reason."""
        asked = _shape(query, new)
        if asked not in self._continued:
            empty = {one.number: new[one.table].empty(lineage.needed_columns(one.number)) for one in lineage.joined}
            try:
                self._continued[asked] = read_increments(self._few, lineage, empty)
            except NotCovered as error:
                self._continued[asked] = str(error)
            finally:
                self._few.forget()
        return self._continued[asked]

    def _read_lineage(self, query: DerivedQuery, new: Mapping[str, InputVersion]) -> Lineage | str:
        tree, paths = self._tree(query), _paths(new)
        columns = _needed_columns(tree, new)

        def inputs(schema: str, table: str) -> tuple[str, Mapping[str, str]]:
            name = resolve_table(schema, table, paths)
            return name, {column: new[name].columns[column] for column in columns[name]}

        if any(name.lower().startswith(OWN_PREFIX) for name in (*_aliases(tree), *chain(*columns.values()))):
            return f"one of its names begins with {OWN_PREFIX}, as those of cdcflow's own columns do"
        try:
            return lineage_of(tree, query.key, inputs, self._few.render)
        except NotCovered as error:
            return str(error)

    def _by_units(
        self,
        query: DerivedQuery,
        old: Mapping[str, CutTable] | None,
        new: Mapping[str, InputVersion],
        rows: DerivedRows,
        stack: ExitStack,
    ) -> tuple[tuple[str, ...], pa.Table, pa.Table] | str:
        """Return the units that the inputs' changes concern (their columns, and their values), and the new rows of
        these units. If the table has to be computed as a whole, return the reason instead."""
        if old is None:
            return ""
        if query.transform:
            try:
                return self._by_function(query, old, new, stack)
            finally:
                self._forget()
        lineage = self._lineage(query, new)
        if isinstance(lineage, str):
            return lineage
        try:
            continued = self._increments(query, lineage, new)
            columns = {one.table: lineage.needed_columns(one.number) for one in lineage.joined}
            changes = self._changes(columns, old, new, stack)
            if isinstance(changes, str):
                return changes
            found = None
            if not isinstance(continued, str) and rows.has_columns(continued.names):
                count = sum(len(rows) for both in changes.values() for rows in both)
                found = continue_rows(
                    self._db_for(count), continued, changes, new, lambda units: rows.present((lineage.units, units))
                )
            return (lineage.units, *(found or recompute(self._db, lineage, changes, new)))
        except duckdb.Error as error:
            # Rows that the query's other conditions take out may have values that an expression does not take.
            return f"finding the changed rows failed ({type(error).__name__})"
        finally:
            self._forget()

    def _by_function(
        self,
        query: DerivedQuery,
        old: Mapping[str, CutTable],
        new: Mapping[str, InputVersion],
        stack: ExitStack,
    ) -> tuple[tuple[str, ...], pa.Table, pa.Table] | str:
        """Return the units of the changed rows of a function's input (their columns, and their values), and the rows
        that the function computes for all rows with these units. If the table has to be computed as a whole, return
        the reason instead."""
        ((name, version),) = new.items()
        columns, units = list(version.columns), self._function_units(query, version)
        changes = self._changes({name: columns}, old, new, stack)
        if isinstance(changes, str):
            return changes
        gone, come = (self._db.give(rows) for rows in changes.get(name, (version.empty(columns),) * 2))
        listed = ", ".join(f"{quote(unit)} AS {unit_column(n)}" for n, unit in enumerate(units))
        found = self._db.arrow(f"SELECT {listed} FROM {gone} UNION SELECT {listed} FROM {come}")  # noqa: S608  quoted
        near = self._db.give(version.rows_with(columns, units[0], found.column(0)))
        same = " AND ".join(f"r.{quote(unit)} IS NOT DISTINCT FROM u.{unit_column(n)}" for n, unit in enumerate(units))
        rows = self._db.arrow(f"SELECT r.* FROM {near} r SEMI JOIN {self._db.give(found)} u ON ({same})")  # noqa: S608  quoted
        return tuple(units), found, transform_rows(self._db, query, [rows], version.row_schema)

    def _function_units(self, query: DerivedQuery, version: InputVersion) -> list[str]:
        """Return the columns that form the units of a function's rows."""
        result = transform_rows(self._db, query, (), version.row_schema)
        return function_units(query, version.row_schema, result.schema)

    def _changes(
        self,
        columns: Mapping[str, Sequence[str]],
        old: Mapping[str, CutTable],
        new: Mapping[str, InputVersion],
        stack: ExitStack,
    ) -> Changes | str:
        """Return the rows that each changed input no longer has, and its new ones; if they are unknown, return the
        reason. `columns`: the columns of each input to compare."""
        found: dict[str, tuple[pa.Table, pa.Table]] = {}
        for name, version in new.items():
            if version.entry.version == old[name].version and version.entry.id == old[name].id:
                continue
            try:
                before = InputVersion(stack.enter_context(closing(self._table(old[name].path.split("/")))), old[name])
            except (VersionGone, FileNotFoundError):
                return f"the last version of {name} is gone"
            most = max(CHANGED_MIN, version.row_count() // CHANGED_PART)
            both = changed_rows(before, version, columns[name], most, partial(self._open_again, version, stack))
            if both is None:
                return f"most of {name} has changed, or its columns have"
            found[name] = net_changes(self._db_for(sum(map(len, both))), *both)
        return found


def stamp(query: DerivedQuery, inputs: Mapping[str, CutTable]) -> int:
    """Return a number that identifies a query together with the versions of its inputs."""
    listed = [query.text, list(query.key), sorted([name, *_place(entry)] for name, entry in inputs.items())]
    return int.from_bytes(hashlib.sha256(json.dumps(listed).encode()).digest()[:7])


def _order_to_set(lineage: Lineage, new: Mapping[str, InputVersion]) -> str:
    """Return a proposal for the order of the rows of the first table in FROM, so that rows with the same unit are read
    together; "" if the table has that order."""
    read = next((read for read in lineage.reads if read.joined == 0 and read.column and read.of is None), None)
    if read is None or not lineage.has_groups:
        return ""
    table = lineage.joined[0].table
    column, order = lineage.joined[0].columns[read.column][0], new[table].table.order
    if order and order[0].column == column:
        return ""
    return f"; merge.tables.each.{table}.sort_by: [{column}] makes that cheaper"


def _shape(query: DerivedQuery, new: Mapping[str, InputVersion]) -> object:
    """Return a value that is equal for the same query over inputs with the same columns."""
    return query.key, query.sql, tuple((name, tuple(version.columns.items())) for name, version in sorted(new.items()))


def _place(entry: CutTable) -> tuple[str, int, str]:
    return entry.id, entry.version, entry.commit


def _paths(new: Mapping[str, InputVersion]) -> dict[str, Path]:
    found = {name: table_at(version.entry.path) for name, version in new.items()}
    return {name: (table.schema, table.name) for name, table in found.items()}


def _aliases(tree: Node) -> Iterator[str]:
    """Yield the names that a query gives to columns and tables."""
    return (str(node["alias"]) for node in nodes_of(tree) if node.get("alias"))


def _needed_columns(tree: Node, new: Mapping[str, InputVersion]) -> dict[str, list[str]]:
    """Return the columns of each input that a query may use; at least one for each input."""
    names = {str(part).lower() for n in nodes_of(tree) if n.get("class") == "COLUMN_REF" for part in n["column_names"]}
    names |= {str(name).lower() for n in nodes_of(tree) for name in n.get("using_columns") or ()}
    reads_all = any(n.get("class") == "STAR" or n.get("ref_type") == "NATURAL" for n in nodes_of(tree))
    found = {}
    for name, version in new.items():
        used = [column for column in version.columns if reads_all or column.lower() in names]
        found[name] = used or list(version.columns)[:1]
    return found


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Convert errors of a table's computation.

    Raises:
        CannotFollow: the computation failed; the text has no values of rows.
    """
    try:
        yield
    except SqlRefused as error:
        raise CannotFollow(str(error)) from error
    except duckdb.Error as error:
        raise CannotFollow(f"its query failed ({reason_of(error)})") from error
