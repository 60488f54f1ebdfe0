"""Answer an SQL query over tables that all show one point in time, with DuckDB.

Only the columns that the query may read are read, a file at a time; rows that exceed the memory are in temporary files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import duckdb
import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.tables.cut import Cut
from cdcflow.tables.derived.queries import check_table, resolve_table, split_name, tables_of
from cdcflow.tables.job.live import Live
from cdcflow.tables.local.cuts import open_table
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.query_database import QueryDatabase
from cdcflow.tables.local.settings_sql import reason_of
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.sql.needed_columns import needed_columns
from cdcflow.tables.sql.trees import Node, SqlRefused, nodes_of, select_of


@dataclass(frozen=True, slots=True)
class AskedTable:
    """A table at a query's point in time. `parts` returns these columns of all its rows, in parts."""

    schema: pa.Schema
    parts: Callable[[list[str]], Iterator[pa.Table]]


class PointInTime(Protocol):
    """Tables that a query may read, all as of one point in time."""

    def names(self) -> Collection[str]:
        """Return the names of all tables, including those that are not complete or cannot be read."""

    def tables(self, names: Collection[str]) -> AbstractContextManager[Mapping[str, AskedTable]]:
        """Open these tables for the duration of the block.

        Raises:
            ConfigurationError: one of them is not complete, or cannot be read; the message is the reason.
        """


def answer(sql: str, at: PointInTime, memory_bytes: int) -> pa.Table:
    """Return the result of one SELECT.

    Raises:
        ConfigurationError: it is not one SELECT, DuckDB refuses it, or a table cannot be read at that point in time.
    """
    with closing(QueryDatabase(memory_bytes)) as database:
        try:
            return _answer(database, sql, at)
        except SqlRefused as refused:
            raise _refusal(str(refused)) from refused
        except duckdb.Error as error:
            raise _refusal(reason_of(error)) from error


def _answer(database: QueryDatabase, sql: str, at: PointInTime) -> pa.Table:
    query = _query_of(database.parse(sql))
    meant = _tables_meant(query, at.names())
    with at.tables(set(meant.values())) as tables:
        for (schema, name), whole in meant.items():
            table = tables[whole]
            columns = needed_columns(query, name, table.schema.names)
            chosen = pa.schema([table.schema.field(column) for column in columns])
            batches = (batch for part in table.parts(columns) for batch in part.select(columns).to_batches())
            database.load(schema, name, pa.RecordBatchReader.from_batches(chosen, batches))
    return database.arrow(sql)


def _query_of(tree: Node) -> Node:
    query = select_of(tree)
    for node in nodes_of(query):
        if "class" not in node and node.get("type") == "BASE_TABLE":
            check_table(node)
        if node.get("type") == "SHOW_REF" and not tables_of(query):
            raise SqlRefused("it lists DuckDB's own tables; `cdcflow sql --tables` lists those of the warehouse")
    return query


def _tables_meant(query: Node, names: Collection[str]) -> dict[tuple[str, str], str]:
    """Return the full name of each table that a query reads, keyed by its (schema, name) in the query's text."""
    known = {name: split_name(name) for name in names}
    meant: dict[tuple[str, str], str] = {}
    folded: dict[tuple[str, str], str] = {}
    for schema, name in tables_of(query):
        whole = resolve_table(schema, name, known)
        lower = schema.lower(), name.lower()
        if folded.get(lower, whole) != whole:
            raise SqlRefused(f"its tables {folded[lower]} and {whole} differ only in case, which DuckDB ignores")
        if lower not in folded:
            folded[lower] = meant[schema, name] = whole
    return meant


def _refusal(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"the query cannot be answered: {reason}",
        remedy="ask with one SELECT in DuckDB's SQL, over tables that `cdcflow sql --tables` lists",
        runbook="query-refused",
    )


class CutPoint:
    """The tables of a published cut. Implements `PointInTime`."""

    def __init__(self, engine: LocalEngine, warehouse: Warehouse, cut: Cut, *, incomplete: bool) -> None:
        self._engine = engine
        self._warehouse = warehouse
        self._cut = cut
        self._incomplete = incomplete

    def names(self) -> Collection[str]:
        return self._cut.tables.keys() | self._cut.left_out.keys()

    @contextmanager
    def tables(self, names: Collection[str]) -> Iterator[Mapping[str, AskedTable]]:
        with ExitStack() as opened:
            yield {name: self._open(name, opened) for name in sorted(names)}

    def _open(self, name: str, opened: ExitStack) -> AskedTable:
        when = f"cut {self._cut.cut} of {self._warehouse}"
        if name in self._cut.left_out:
            raise exclusion(name, when, self._cut.left_out[name])
        if not self._cut.tables[name].complete and not self._incomplete:
            raise lack_of_rows(name, when, self._cut.tables[name].state)
        there = opened.enter_context(open_table(self._engine, self._warehouse, self._cut, name))

        def parts(columns: list[str]) -> Iterator[pa.Table]:
            return (there.read(file, columns) for file in there.files())

        return AskedTable(there.schema, parts)


class LivePoint:
    """The tables as of the latest sealed cut of the log. Implements `PointInTime`. `described`: all of them, without
    their rows; `read` returns the rows of some, in memory."""

    def __init__(
        self, described: Live[pa.Table], read: Callable[[Collection[str]], Live[pa.Table]], *, incomplete: bool
    ) -> None:
        self._described = described
        self._read = read
        self._incomplete = incomplete
        self.found = described

    def names(self) -> Collection[str]:
        return self._described.keys() | self._described.left_out.keys() | self._described.incomplete.keys()

    @contextmanager
    def tables(self, names: Collection[str]) -> Iterator[Mapping[str, AskedTable]]:
        self.found = found = self._read(names) if names else self._described
        when = f"the log at cut {found.cut}"
        for name in sorted(names):
            if name in found.left_out:
                raise exclusion(name, when, found.left_out[name])
            if name in found.incomplete and not self._incomplete:
                raise lack_of_rows(name, when, found.incomplete[name])
        yield {name: AskedTable(found[name].schema, partial(_whole, found[name])) for name in names}


def _whole(rows: pa.Table, _columns: list[str]) -> Iterator[pa.Table]:
    yield rows


def exclusion(name: str, when: str, why: str) -> ConfigurationError:
    """Return the error for a query over a table that is excluded from a cut."""
    return ConfigurationError(
        f"the query cannot be answered: {when} excludes table {name}: {why}",
        remedy="do what that names, or query without this table; `cdcflow sql --tables` lists all with their states",
        runbook="query-refused",
    )


def lack_of_rows(name: str, when: str, state: str) -> ConfigurationError:
    """Return the error for a query over a table that lacks rows."""
    return ConfigurationError(
        f"the query cannot be answered: in {when} table {name} lacks rows: {state or 'its backfill is not done'}",
        remedy="wait until `cdcflow status` shows it as complete, or accept the rows that exist with --incomplete",
        runbook="query-refused",
    )
