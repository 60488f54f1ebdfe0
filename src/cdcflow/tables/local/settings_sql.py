"""SQL in settings, as DuckDB reads it: the tree of a text, and what may be shown of an error."""

from __future__ import annotations

import json

import duckdb

from cdcflow.tables.sql.trees import Node, SqlRefused

_SHOWN = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)
"""Errors whose texts quote the query, and no values of rows."""


def tree_of(connection: duckdb.DuckDBPyConnection, text: str) -> Node:
    """Return the tree of a text, of which nothing is run. A text that is not a query has a tree with `error`.

    Raises:
        SqlRefused: DuckDB cannot parse it.
    """
    try:
        ((tree,),) = connection.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [text]).fetchall()
    except duckdb.Error as error:
        raise SqlRefused(f"DuckDB cannot parse it ({type(error).__name__})") from error
    found: Node = json.loads(tree)
    return found


def reason_of(error: duckdb.Error) -> str:
    """Return what may be shown of an error: no value of a row."""
    kind = type(error).__name__
    return f"{kind}: {str(error).splitlines()[0]}" if isinstance(error, _SHOWN) else kind
