"""The queries that derived tables may have, and the tables that a query reads."""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.model.suggestions import did_you_mean
from cdcflow.tables.sql.functions import AGGREGATES, CLOCKS, ORDERED_AGGREGATES, SCALARS, WINDOWS
from cdcflow.tables.sql.trees import (
    ROW_EXPRESSIONS,
    ExpressionRules,
    Node,
    SqlRefused,
    function_of,
    nodes_of,
    select_of,
)

_RULES = ExpressionRules(
    "derived tables", ROW_EXPRESSIONS | {"WINDOW", "SUBQUERY", "STAR"}, SCALARS | AGGREGATES | ORDERED_AGGREGATES
)
QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE"})
SOURCES = frozenset({"BASE_TABLE", "JOIN", "SUBQUERY", "EMPTY", "EXPRESSION_LIST"})
_ORDERS = frozenset({"ORDER_MODIFIER", "DISTINCT_MODIFIER", "ORDER_DEFAULT", "ASCENDING", "DESCENDING"})
_UNORDERED_JOINS = frozenset({"REGULAR", "CROSS", "NATURAL", "DEPENDENT"})
_CATALOGS = frozenset({"system", "temp", "memory", "information_schema", "pg_catalog"})
"""Names of DuckDB's own catalogs and schemas, which no table of a query may have."""


def query_of(tree: Node) -> Node:
    """Return the query of a text, which must be its only statement.

    Raises:
        SqlRefused: the text is anything else, or has parts that a derived table may not have.
    """
    query = select_of(tree)
    if query.get("type") not in QUERIES:
        raise SqlRefused("it is not a SELECT")
    for node in nodes_of(query):
        _check_node(node)
    return query


def tables_of(query: Node) -> list[tuple[str, str]]:
    """Return the tables that a query reads, each once, as its text has them: (schema or "", name)."""
    local = {str(entry["key"]).lower() for node in nodes_of(query) for entry in _common_tables(node)}
    found: dict[tuple[str, str], None] = {}
    for node in nodes_of(query):
        if node.get("type") != "BASE_TABLE":
            continue
        schema, name = str(node.get("schema_name") or ""), str(node["table_name"])
        if schema or name.lower() not in local:
            found[schema, name] = None
    return list(found)


def split_name(name: str) -> tuple[str, str]:
    """Return the schema ("" if none is written) and the name of a table, in the form of `tables_of`."""
    schema, _, table = name.rpartition(".")
    return schema, table


def resolve_table(schema: str, name: str, known: Mapping[str, tuple[str, str]]) -> str:
    """Return the full name of the table that a query means. `known`: the tables that exist, as (schema, name), keyed by
    full name.

    Raises:
        SqlRefused: the name is unknown, or may mean several tables.
    """
    written = f"{schema}.{name}" if schema else name

    def fits(one: tuple[str, str], fold: bool) -> bool:
        pair = tuple(map(str.lower, one)) if fold else one
        asked = (schema.lower(), name.lower()) if fold else (schema, name)
        return pair[1] == asked[1] and (not schema or pair[0] == asked[0])

    for fold in (False, True):
        found = [whole for whole, one in known.items() if fits(one, fold)]
        if len(found) == 1:
            return found[0]
        if found:
            raise SqlRefused(f"its table {written} may be any of {', '.join(sorted(found))}: write schema.name")
    why = f"its table {written} is neither captured nor derived"
    raise SqlRefused(f"{why}; {did_you_mean(written, known)}".rstrip("; "))


def _common_tables(node: Node) -> list[Node]:
    held = node.get("cte_map")
    return list(held["map"]) if isinstance(held, Mapping) else []


def _check_node(node: Node) -> None:
    if node.get("sample") is not None:
        raise SqlRefused("it has a sample, which is random")
    if "class" in node:
        _RULES.check(node)
        _check_expression(node)
    elif node.get("type") is not None:
        _check_part(node, str(node["type"]))


def _check_part(node: Node, kind: str) -> None:
    if kind in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"):
        raise SqlRefused("it has a LIMIT, and which rows that leaves is not determined")
    if kind == "TABLE_FUNCTION":
        raise SqlRefused(f"it reads from {function_of(node['function'])}(), and only tables may be read")
    if kind not in QUERIES | SOURCES | _ORDERS:
        raise SqlRefused(f"it has {kind.lower()}, which derived tables do not support")
    if kind == "DISTINCT_MODIFIER" and node.get("distinct_on_targets"):
        raise SqlRefused("it has DISTINCT ON, and which rows that leaves is not determined")
    if kind == "JOIN" and node.get("ref_type", "REGULAR") not in _UNORDERED_JOINS:
        raise SqlRefused(f"it has a join of kind {str(node['ref_type']).lower()}")
    if kind == "BASE_TABLE":
        check_table(node)


def check_table(node: Node) -> None:
    """Check a table that a query names.

    Raises:
        SqlRefused: it names more than a schema and a table.
    """
    schema = str(node.get("schema_name") or "")
    if node.get("catalog_name") or schema.lower() in _CATALOGS:
        raise SqlRefused(f"its table {node['table_name']} names a catalog")
    if node.get("at_clause") is not None:
        raise SqlRefused(f"its table {node['table_name']} names a version")
    path = (node.get("qualified_name") or {}).get("path", [])
    if path and path != [part for part in (schema, node["table_name"]) if part]:
        raise SqlRefused(f"its table {node['table_name']} has more than a schema and a name")


def _check_expression(node: Node) -> None:
    match node["class"]:
        case "COLUMN_REF":
            names = node["column_names"]
            if len(names) == 1 and str(names[0]).lower() in CLOCKS:
                raise SqlRefused(f"it uses {names[0]}, whose value is not in the tables")
        case "FUNCTION":
            name = function_of(node)
            if name in ORDERED_AGGREGATES and not node["order_bys"]["orders"]:
                raise SqlRefused(f"it uses {name} without ORDER BY, whose result is not determined")
        case "WINDOW":
            name = function_of(node)
            if name not in WINDOWS | AGGREGATES:
                raise SqlRefused(f"it calls {name}() over a window, which derived tables do not support")


def is_aggregate(node: Node) -> bool:
    """Return whether a node is a call of an aggregate function that is not over a window."""
    return node.get("class") == "FUNCTION" and function_of(node) in AGGREGATES | ORDERED_AGGREGATES
