"""A DuckDB database for queries over tables: it reaches no file, network or setting, only the rows given to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

from cdcflow.tables.local.settings_sql import tree_of
from cdcflow.tables.sql.quotes import quote
from cdcflow.tables.sql.trees import Node


class QueryDatabase:
    """Parses, writes and runs queries. `close` it."""

    def __init__(self, memory_bytes: int | None, threads: int | None = None) -> None:
        """`memory_bytes`, `threads`: how much memory and how many threads queries use; `None`: DuckDB's defaults."""
        self._spill = None if memory_bytes is None else TemporaryDirectory(prefix="cdcflow-query-")
        settings: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
        if self._spill is not None:
            settings |= {"memory_limit": f"{memory_bytes}B", "temp_directory": str(Path(self._spill.name))}
        if threads is not None:
            settings["threads"] = threads
        self._db = duckdb.connect(config=settings)
        with suppress(duckdb.Error):  # as in `dialect`: in a notebook it cannot be set
            self._run("SET enable_progress_bar = false")
        for setting in ("TimeZone = 'UTC'", "enable_external_access = false", "lock_configuration = true"):
            self._run(f"SET {setting}")
        self._given: list[str] = []
        self._number = 0

    def close(self) -> None:
        self._db.close()
        if self._spill is not None:
            self._spill.cleanup()

    def parse(self, sql: str) -> Node:
        """Return the tree of a text, without running it (see `settings_sql.tree_of`)."""
        return tree_of(self._db, sql)

    def render(self, node: Node) -> str:
        """Return the text of an expression."""
        query = {**_FRAME, "select_list": [{**node, "alias": ""}]}
        return self._text({"error": False, "statements": [{"node": query, "named_param_map": []}]})[len("SELECT ") :]

    def render_query(self, query: Node) -> str:
        """Return the text of a whole query."""
        return self._text({"error": False, "statements": [{"node": query, "named_param_map": []}]})

    def _text(self, tree: Node) -> str:
        ((text,),) = self._db.execute("SELECT json_deserialize_sql(CAST(? AS JSON))", [json.dumps(tree)]).fetchall()
        return str(text)

    def give(self, rows: pa.Table) -> str:
        """Create a view of these rows, which exists until `forget`, and return its name."""
        self._number += 1
        name = f"_cdcflow_rows_{self._number}"
        self._db.register(name, rows)
        self._given.append(name)
        return name

    def load(self, schema: str, table: str, rows: pa.RecordBatchReader) -> None:
        """Create a table of these rows, which are read once."""
        given = f"_cdcflow_loaded_{self._number}"
        self._number += 1
        place = self._place(schema, table)
        self._db.register(given, rows)
        try:
            self._run(f"CREATE TABLE {place} AS SELECT * FROM {given}")  # noqa: S608  quoted
        finally:
            self._db.unregister(given)

    def name(self, schema: str, table: str, view: str) -> str:
        """Give a view the name that a query uses for a table, until `forget`; return that name, quoted."""
        place = self._place(schema, table)
        self._run(f"CREATE OR REPLACE VIEW {place} AS SELECT * FROM {view}")  # noqa: S608  quoted
        return place

    def _place(self, schema: str, table: str) -> str:
        """Create the schema of a table if necessary, and return the table's name, quoted."""
        if not schema:
            return quote(table)
        self._run(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
        return f"{quote(schema)}.{quote(table)}"

    def forget(self, views: Sequence[str] = ()) -> None:
        """Drop all rows that were given, and these named views."""
        for view in views:
            self._run(f"DROP VIEW IF EXISTS {view}")
        for name in self._given:
            self._db.unregister(name)
        self._given.clear()

    def arrow(self, sql: str) -> pa.Table:
        return self._db.sql(sql).to_arrow_table()

    def types(self, sql: str) -> list[str]:
        """Return DuckDB's types of the columns of a query's result."""
        return [str(type_) for type_ in self._db.sql(sql).types]

    def count(self, sql: str) -> int:
        ((found,),) = self._db.execute(sql).fetchall()
        return int(found)

    def _run(self, sql: str) -> Any:
        return self._db.execute(sql).fetchall()


_FRAME: Node = {
    "type": "SELECT_NODE",
    "modifiers": [],
    "cte_map": {"map": []},
    "from_table": {"type": "EMPTY", "alias": "", "sample": None, "query_location": 0},
    "where_clause": None,
    "group_expressions": [],
    "group_sets": [],
    "aggregate_handling": "STANDARD_HANDLING",
    "having": None,
    "sample": None,
    "qualify": None,
}
