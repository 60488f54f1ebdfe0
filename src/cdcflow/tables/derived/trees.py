"""Check a derived table's query, given as the tree that DuckDB's parser makes of its text.

The tree is what DuckDB executes later, so no second parser can understand the text differently. Only what is listed
here passes: a kind of node, or a function, that is unknown is refused, whatever a later version of DuckDB adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cdcflow.tables.derived.functions import AGGREGATES, CLOCKS, ORDERED_AGGREGATES, SCALARS, WINDOWS

Node = Mapping[str, Any]

EXPRESSIONS = frozenset(
    {"COLUMN_REF", "CONSTANT", "FUNCTION", "COMPARISON", "CONJUNCTION", "OPERATOR", "CASE", "CAST", "BETWEEN"}
    | {"WINDOW", "SUBQUERY", "STAR", "TYPE"}
)
QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE"})
SOURCES = frozenset({"BASE_TABLE", "JOIN", "SUBQUERY", "EMPTY", "EXPRESSION_LIST"})
_ORDERS = frozenset({"ORDER_MODIFIER", "DISTINCT_MODIFIER", "ORDER_DEFAULT", "ASCENDING", "DESCENDING"})
_UNORDERED_JOINS = frozenset({"REGULAR", "CROSS", "NATURAL", "DEPENDENT"})
_CATALOGS = frozenset({"system", "temp", "memory", "information_schema", "pg_catalog"})
"""Names that DuckDB resolves to its own catalogs and schemas."""


class QueryRefused(Exception):
    """A derived table cannot have this query; the text is the reason."""


def nodes_of(tree: object) -> Iterator[Node]:
    """Yield a node and everything in it."""
    if isinstance(tree, Mapping):
        yield tree
        for value in tree.values():
            yield from nodes_of(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes_of(value)


def query_of(parsed: Node) -> Node:
    """Return the query of a parsed text, whose one statement it must be.

    Raises:
        QueryRefused: the text is anything else, or has what a derived table may not have.
    """
    if parsed.get("error"):
        raise QueryRefused(f"it is not one SELECT ({parsed.get('error_type', 'unknown')} error)")
    statements = parsed["statements"]
    if len(statements) != 1:
        raise QueryRefused(f"it has {len(statements)} statements, and must have one SELECT")
    if statements[0].get("named_param_map"):
        raise QueryRefused("it has parameters")
    query: Node = statements[0]["node"]
    if not isinstance(query, Mapping) or query.get("type") not in QUERIES:
        raise QueryRefused("it is not a SELECT")
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


def resolve_table(schema: str, name: str, known: Mapping[str, tuple[str, str]]) -> str:
    """Return which table a query means. `known`: the tables that exist, as (schema, name), keyed by their whole name.

    Raises:
        QueryRefused: it may be several, or is unknown.
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
            raise QueryRefused(f"its table {written} may be any of {', '.join(sorted(found))}: write schema.name")
    raise QueryRefused(f"its table {written} is neither captured nor derived")


def _common_tables(node: Node) -> list[Node]:
    held = node.get("cte_map")
    return list(held["map"]) if isinstance(held, Mapping) else []


def _check_node(node: Node) -> None:
    kind, class_ = node.get("type"), node.get("class")
    if node.get("sample") is not None:
        raise QueryRefused("it has a sample, which is random")
    if class_ is not None:
        if class_ not in EXPRESSIONS:
            raise QueryRefused(f"it has {str(kind).lower()}, which derived tables do not support")
        _check_expression(node)
    elif kind is not None:
        _check_part(node, str(kind))


def _check_part(node: Node, kind: str) -> None:
    if kind in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"):
        raise QueryRefused("it has a LIMIT, and which rows that leaves is not determined")
    if kind == "TABLE_FUNCTION":
        raise QueryRefused(f"it reads from {_function(node['function'])}(), and only tables may be read")
    if kind not in QUERIES | SOURCES | _ORDERS:
        raise QueryRefused(f"it has {kind.lower()}, which derived tables do not support")
    if kind == "DISTINCT_MODIFIER" and node.get("distinct_on_targets"):
        raise QueryRefused("it has DISTINCT ON, and which rows that leaves is not determined")
    if kind == "JOIN" and node.get("ref_type", "REGULAR") not in _UNORDERED_JOINS:
        raise QueryRefused(f"it has a join of kind {str(node['ref_type']).lower()}")
    if kind == "BASE_TABLE":
        _check_table(node)


def _check_table(node: Node) -> None:
    schema = str(node.get("schema_name") or "")
    if node.get("catalog_name") or schema.lower() in _CATALOGS:
        raise QueryRefused(f"its table {node['table_name']} names a catalog")
    if node.get("at_clause") is not None:
        raise QueryRefused(f"its table {node['table_name']} names a version")
    path = (node.get("qualified_name") or {}).get("path", [])
    if path and path != [part for part in (schema, node["table_name"]) if part]:
        raise QueryRefused(f"its table {node['table_name']} has more than a schema and a name")


def _check_expression(node: Node) -> None:
    match node["class"]:
        case "COLUMN_REF":
            names = node["column_names"]
            if len(names) == 1 and str(names[0]).lower() in CLOCKS:
                raise QueryRefused(f"it uses {names[0]}, whose value is not in the tables")
        case "FUNCTION":
            name = _function(node)
            if name in ORDERED_AGGREGATES and not node["order_bys"]["orders"]:
                raise QueryRefused(f"it uses {name} without ORDER BY, whose result is not determined")
            if name not in SCALARS | AGGREGATES | ORDERED_AGGREGATES:
                raise QueryRefused(f"it calls {name}(), which derived tables do not support")
        case "WINDOW":
            name = _function(node)
            if name not in WINDOWS | AGGREGATES:
                raise QueryRefused(f"it calls {name}() over a window, which derived tables do not support")
        case "TYPE":
            if node.get("catalog") or node.get("schema"):
                raise QueryRefused("it casts to a type of a schema")


def _function(node: Node) -> str:
    """Return the name of a function, which must be DuckDB's own."""
    if node.get("schema") or node.get("catalog"):
        raise QueryRefused(f"it calls {node['function_name']}() of a schema")
    return str(node["function_name"]).lower()


def is_aggregate(node: Node) -> bool:
    """Return whether a node is a call of an aggregate function that is not over a window."""
    return node.get("class") == "FUNCTION" and _function(node) in AGGREGATES | ORDERED_AGGREGATES
