"""Conditions of settings over the columns of a row, in DuckDB's SQL.

A condition has no subqueries, tables or parameters, and its functions compute a value from values. The text that was
checked is the text that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cdcflow.model.suggestions import did_you_mean
from cdcflow.tables.sql.functions import SCALARS
from cdcflow.tables.sql.trees import ROW_EXPRESSIONS, ExpressionRules, Node, SqlRefused, nodes_of, select_of

_RULES = ExpressionRules("conditions", ROW_EXPRESSIONS, SCALARS)
_CLAUSES = ("where_clause", "having", "sample", "qualify", "modifiers", "group_expressions")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in parentheses, and the columns that it names."""

    sql: str
    columns: tuple[str, ...]


def parse_condition(parse: Callable[[str], Node], text: str, columns: Collection[str]) -> Condition:
    """Parse a condition over these columns. `parse`: returns DuckDB's tree of a text.

    Raises:
        SqlRefused: it is not a condition, or has anything other than columns, values and functions of them.
    """
    sql = f"({text}\n)"  # a comment at its end must not hide the parenthesis
    # Alone it must be one expression, and in parentheses the same one: `a) OR (b` is neither.
    (alone, inside) = (_expression(parse, one) for one in (f"{text}\n", sql))
    if alone is None or inside is None:
        raise SqlRefused("it is not one expression of SQL")
    named: dict[str, None] = {}
    known = {name.lower(): name for name in columns}
    for part in nodes_of(inside):
        if "class" not in part:
            continue
        _RULES.check(part)
        if part.get("filter") is not None:
            raise SqlRefused("it has FILTER, which conditions do not support")
        if part["class"] == "COLUMN_REF":
            names = part["column_names"]
            if len(names) != 1 or names[0].lower() not in known:
                name = ".".join(names)
                raise SqlRefused(f"there is no column {name}; {did_you_mean(name, columns)}".rstrip("; "))
            named[known[names[0].lower()]] = None
    return Condition(sql, tuple(named))


def _expression(parse: Callable[[str], Node], text: str) -> Node | None:
    """Return the tree of a text; `None` if it is not one expression of SQL."""
    tree = parse(f"SELECT {text}")
    try:
        query = select_of(tree)
    except SqlRefused:
        return None
    is_plain = (
        query.get("type") == "SELECT_NODE"
        and len(query["select_list"]) == 1
        and (query.get("from_table") or {}).get("type") == "EMPTY"
        and not any(query.get(clause) for clause in _CLAUSES)
        and not (query.get("cte_map") or {}).get("map")
    )
    expression: Node | None = query["select_list"][0] if is_plain else None
    return expression
