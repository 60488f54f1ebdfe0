"""Conditions of settings over the columns of a row: parsed by DuckDB itself, and only what is listed here is allowed.

A condition is data from a settings file. DuckDB parses it into a tree without running anything; each node must be of a
kind below, and each function one that computes a value from values. There are no subqueries, no tables, no
parameters, no functions that read, write or depend on time or chance. What is run is the text that was parsed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from cdcflow.model.suggestions import did_you_mean

_KINDS = frozenset(
    {"CONJUNCTION", "COMPARISON", "COLUMN_REF", "CONSTANT", "FUNCTION", "OPERATOR", "CAST", "CASE", "BETWEEN", "TYPE"}
)
_FUNCTIONS = frozenset(
    {
        *("+", "-", "*", "/", "//", "%", "||", "~~", "!~~", "~~*", "!~~*"),
        *("abs", "ceil", "ceiling", "floor", "round", "sign", "trunc", "mod", "greatest", "least"),
        *("length", "len", "char_length", "octet_length", "strlen", "lower", "upper", "trim", "ltrim", "rtrim"),
        *("contains", "starts_with", "prefix", "suffix", "ends_with", "left", "right", "substr", "substring"),
        *("replace", "concat", "strpos", "instr", "like_escape", "not_like_escape", "regexp_matches"),
        *("regexp_full_match", "coalesce", "nullif", "ifnull", "isnan", "isfinite", "isinf"),
        *("date_part", "date_trunc", "year", "month", "day", "hour", "minute", "second", "dayofweek", "epoch"),
        *("list_contains", "array_length", "list_value"),
    }
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in DuckDB's SQL, in parentheses, and the columns that it names."""

    sql: str
    columns: tuple[str, ...]


def parse_condition(connection: duckdb.DuckDBPyConnection, text: str, columns: Collection[str]) -> Condition:
    """Parse a condition over these columns.

    Raises:
        ValueError: it is none, or it uses more than columns, values and functions of them; with what is wrong.
    """
    sql = f"({text}\n)"  # a comment at its end must not hide the parenthesis
    # Alone it must be one expression, and in parentheses the same one: `a) OR (b` is neither.
    (alone, inside) = (_expression(connection, one) for one in (f"{text}\n", sql))
    if alone is None or inside is None:
        raise ValueError("it is not one expression of SQL")
    named: dict[str, None] = {}
    known = {name.lower(): name for name in columns}
    for part in _parts(inside):
        _check(part)
        if part["class"] == "COLUMN_REF":
            names = part["column_names"]
            if len(names) != 1 or names[0].lower() not in known:
                name = ".".join(names)
                raise ValueError(f"there is no column {name}; {did_you_mean(name, columns)}".rstrip("; "))
            named[known[names[0].lower()]] = None
    return Condition(sql, tuple(named))


def _expression(connection: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any] | None:
    """The tree of a text that is one expression of SQL, and nothing around it; `None` otherwise."""
    ((found,),) = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {text}"]).fetchall()
    tree = json.loads(found)
    if tree.get("error") or len(tree["statements"]) != 1:
        return None
    node = tree["statements"][0]["node"]
    others = ("where_clause", "having", "sample", "qualify", "modifiers", "group_expressions")
    is_plain = (
        node.get("type") == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and (node.get("from_table") or {}).get("type") == "EMPTY"
        and not any(node.get(name) for name in others)
        and not (node.get("cte_map") or {}).get("map")
    )
    expression: dict[str, Any] = node["select_list"][0] if is_plain else {}
    return expression or None


def _check(part: dict[str, Any]) -> None:
    if part["class"] not in _KINDS:
        raise ValueError(f"{part['class'].lower().replace('_', ' ')} is not allowed in a condition")
    if part["class"] != "FUNCTION":
        return
    name = str(part.get("function_name", "")).lower()
    if name not in _FUNCTIONS or part.get("schema") or part.get("catalog") or part.get("filter"):
        raise ValueError(
            f"{name} is not a function that conditions may use; {did_you_mean(name, _FUNCTIONS)}".rstrip("; ")
        )


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every part of a tree that has a kind, and so is checked."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for inner in value.values():
            yield from _parts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner)
