"""Check SQL of the settings, given as the tree that DuckDB's parser makes of its text.

DuckDB runs what its own parser has read, so no second parser can understand the text differently. Only what is listed
passes: a kind of node, or a function, that is unknown is refused, even if a later version of DuckDB adds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cdcflow.model.suggestions import did_you_mean

Node = Mapping[str, Any]
"""A part of a tree. An expression has a `class`, every other part only a `type`."""

ROW_EXPRESSIONS = frozenset(
    {"COLUMN_REF", "CONSTANT", "FUNCTION", "COMPARISON", "CONJUNCTION", "OPERATOR", "CASE", "CAST", "BETWEEN", "TYPE"}
)
"""Classes of expressions whose value depends on one row only."""


class SqlRefused(Exception):
    """The error for SQL that the settings cannot have; the text is the reason, and has no values of rows."""


@dataclass(frozen=True, slots=True)
class ExpressionRules:
    """The rules for what expressions may contain. `owners`: the things that have such expressions, for errors, such as
    `derived tables`."""

    owners: str
    classes: frozenset[str]
    functions: frozenset[str]

    def check(self, node: Node) -> None:
        """Check one expression, but not those inside of it.

        Raises:
            SqlRefused: it has a part that the rules do not list.
        """
        if node["class"] not in self.classes:
            kind = str(node["class"]).lower().replace("_", " ")
            raise SqlRefused(f"it has {kind}, which {self.owners} do not support")
        if node["class"] == "FUNCTION":
            name = function_of(node)
            if name not in self.functions:
                near = did_you_mean(name, self.functions)
                raise SqlRefused(f"it calls {name}(), which {self.owners} do not support; {near}".rstrip("; "))
        if node["class"] == "TYPE" and (node.get("catalog") or node.get("schema")):
            raise SqlRefused("it casts to a type of a schema")


def nodes_of(tree: object) -> Iterator[Node]:
    """Yield a node and everything in it."""
    if isinstance(tree, Mapping):
        yield tree
        for value in tree.values():
            yield from nodes_of(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes_of(value)


def select_of(tree: Node) -> Node:
    """Return the query of a text, which must be its only statement. Nothing in the query is checked yet.

    Raises:
        SqlRefused: the text is something else.
    """
    if tree.get("error"):
        raise SqlRefused(f"it is not one SELECT ({tree.get('error_type', 'unknown')} error)")
    statements = tree["statements"]
    if len(statements) != 1:
        raise SqlRefused(f"it has {len(statements)} statements, and must have one SELECT")
    query: Node = statements[0]["node"]
    if not isinstance(query, Mapping):
        raise SqlRefused("it is not a SELECT")
    return query


def function_of(node: Node) -> str:
    """Return the name of the function that a node calls.

    Raises:
        SqlRefused: the function is not one of DuckDB's own.
    """
    if node.get("schema") or node.get("catalog"):
        raise SqlRefused(f"it calls {node['function_name']}() of a schema")
    return str(node["function_name"]).lower()
