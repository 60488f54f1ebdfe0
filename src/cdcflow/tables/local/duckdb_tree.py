"""The tree that DuckDB's parser makes of a text; nothing is run."""

from __future__ import annotations

import json

import duckdb

from cdcflow.tables.sql.trees import Node, SqlRefused


def tree_of(connection: duckdb.DuckDBPyConnection, text: str) -> Node:
    """Return the tree of a text. A text that is not a query has a tree with `error`.

    Raises:
        SqlRefused: DuckDB cannot parse it.
    """
    try:
        ((tree,),) = connection.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [text]).fetchall()
    except duckdb.Error as error:
        raise SqlRefused(f"DuckDB cannot parse it ({type(error).__name__})") from error
    found: Node = json.loads(tree)
    return found
