"""What `$name` and conditions of a test mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_NAME = re.compile(r"\\?\$(\w+|\{\w+\})")
_CALL = re.compile(r"query_get_value\s*\((.*),\s*([^,]+?)\s*,\s*(\d+|\$\w+)\s*\)\s*$", re.DOTALL)
_COMPARED = re.compile(r"(.+?)\s*(==|!=|>=|<=|<|>)\s*(.+)$", re.DOTALL)
_NUMBER = re.compile(r"\s*(-?\d+)")
Ask = Callable[[str, str | None, int], str]
"""One value of a query: its text, the column (None: the first), and the row's number from 1."""


def filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with each `$name` replaced by the variable's value; unknown ones are empty."""

    def value(found: re.Match[str]) -> str:
        if found[0].startswith("\\"):
            return found[0][1:]
        return variables.get(found[1].strip("{}"), "")

    return _NAME.sub(value, text)


def value_of(text: str, variables: Mapping[str, str], ask: Ask) -> str:
    """The value of the right side of a `let`: text, a query in backticks, or one value of a query's result."""
    text = text.strip()
    if text.startswith("`") and text.endswith("`") and len(text) > 1:
        return ask(filled(text[1:-1], variables), None, 1)
    if call := _CALL.match(text):
        query, column, row = (filled(part.strip(), variables) for part in call.groups())
        return ask(_unquoted(query), _unquoted(column), int(row or 1))
    return filled(_unquoted(text) if text[:1] in "'\"" else text, variables)


def holds(condition: str, variables: Mapping[str, str], ask: Ask) -> bool:
    """Whether the condition of an `if` or `while` is met."""
    negated = condition.startswith("!")
    text = condition[1:].strip() if negated else condition.strip()
    if not text.startswith("`") and (compared := _COMPARED.match(text)):
        left, sign, right = compared.groups()
        return negated != _compared(value_of(left, variables, ask), sign, value_of(right, variables, ask))
    value = value_of(text, variables, ask).strip()
    number = _NUMBER.match(value)
    return negated != (bool(value) and (number is None or int(number[1]) != 0))


def _compared(left: str, sign: str, right: str) -> bool:
    if sign in ("==", "!="):
        return (left.strip().lower() == right.strip().lower()) == (sign == "==")
    a, b = (int(found[1]) if (found := _NUMBER.match(side)) else 0 for side in (left, right))
    return {"<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}[sign]


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


__all__ = ["Ask", "filled", "holds", "value_of"]
