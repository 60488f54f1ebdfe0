"""Find which columns of a table a query may read, in the tree of its text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cdcflow.tables.sql.trees import ROW_EXPRESSIONS, Node, nodes_of

_EXPRESSIONS = ROW_EXPRESSIONS | {"WINDOW", "SUBQUERY"}
"""Classes of expressions that name each column which they read."""

_PARTS = frozenset(
    {
        *("SELECT_NODE", "SET_OPERATION_NODE", "BASE_TABLE", "SUBQUERY", "EMPTY", "EXPRESSION_LIST", "CROSS"),
        *("ORDER_MODIFIER", "ORDER_DEFAULT", "ASCENDING", "DESCENDING", "LIMIT_MODIFIER"),
    }
)


def needed_columns(query: Node, table: str, columns: Sequence[str]) -> list[str]:
    """Return the columns of a table that a query may read: perhaps more than it does, and never fewer. `table`: the
    name of the table in the query."""
    nodes = list(nodes_of(query))
    if not all(map(_names_its_columns, nodes)) or _reads_whole_rows(nodes, table):
        return list(columns)
    texts = {text.lower() for text in _texts_of(query)}
    # To count rows no column is needed, but a table has one.
    return [name for name in columns if name.lower() in texts] or list(columns[:1])


def _names_its_columns(node: Node) -> bool:
    if "class" in node:
        return node["class"] in _EXPRESSIONS
    kind = node.get("type")
    if kind == "JOIN":
        return node.get("ref_type", "REGULAR") in ("REGULAR", "CROSS")
    return not node.get("column_name_alias") and (not isinstance(kind, str) or kind in _PARTS)


def _reads_whole_rows(nodes: Iterable[Node], table: str) -> bool:
    """Return whether an expression reads a whole row as one value: it is the name of this table, or an alias of any
    table."""
    names = {table.lower()}
    references = set()
    for node in nodes:
        if node.get("class") == "COLUMN_REF":
            references.add(str(node["column_names"][-1]).lower())
        elif "class" not in node and node.get("alias"):
            names.add(str(node["alias"]).lower())
    return bool(names & references)


def _texts_of(tree: object) -> Iterator[str]:
    """Yield every text in a tree, including those that are not names."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _texts_of(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts_of(value)
