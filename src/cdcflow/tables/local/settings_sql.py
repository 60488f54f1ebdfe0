"""Read SQL of the settings with DuckDB: return the tree of a text, and what may be shown of an error."""

from __future__ import annotations

import json

import duckdb

from cdcflow.tables.sql.trees import Node, SqlRefused

_VERSION = 2
"""The oldest version of DuckDB whose trees `tables.sql` can check. In those of 1.5 the types of constants are in
other places."""

_SHOWN = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)
"""Errors whose texts may be shown: they quote the query, and no values of rows."""


def tree_of(connection: duckdb.DuckDBPyConnection, text: str) -> Node:
    """Return the tree of a text, without running it. The tree of a text that is not a query has the member `error`.

    Raises:
        SqlRefused: DuckDB cannot parse the text, or is an older version, whose trees are different.
    """
    if int(duckdb.__version__.partition(".")[0]) < _VERSION:
        raise SqlRefused(
            f"it needs DuckDB {_VERSION} or newer, and {duckdb.__version__} is installed: run `pip install --upgrade"
            " duckdb`"
        )
    try:
        ((tree,),) = connection.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [text]).fetchall()
    except duckdb.Error as error:
        raise SqlRefused(f"DuckDB cannot parse it ({type(error).__name__})") from error
    found: Node = json.loads(tree)
    return found


def reason_of(error: duckdb.Error) -> str:
    """Return the part of an error's text that may be shown: no value of a row."""
    kind = type(error).__name__
    return f"{kind}: {str(error).splitlines()[0]}" if isinstance(error, _SHOWN) else kind
