"""Applies the operators of expressions to columns. Pure.

A value is an Arrow array, or a scalar if it is the same for all rows. Errors are Arrow's own; the caller must not show
their texts, which may contain values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import Int64s
from cdcflow.sources.engine.compiled_module import compiled_module

Value = Any
"""An Arrow array or scalar: pyarrow has no types."""
DECIMAL128_DIGITS = 38


@dataclass(frozen=True, slots=True)
class InputRows:
    """The columns that an expression uses, of `count` rows."""

    columns: Mapping[str, pa.Array]
    count: int

    def among(self, mask: pa.Array) -> InputRows:
        """The rows for which the mask, which has no NULL, is true."""
        found = {name: column.filter(mask) for name, column in self.columns.items()}
        return InputRows(found, pc.sum(mask).as_py() or 0)


Evaluate = Callable[[InputRows], Value]


def as_array(value: Value, count: int) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, count) if value.is_valid else pa.nulls(count, value.type)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def convert(value: Value, arrow: pa.DataType) -> Value:
    """Convert a value to a type that holds it; a 64-bit integer or a decimal to the nearest double."""
    if value.type == arrow:
        return value
    if pa.types.is_floating(arrow) and pa.types.is_integer(value.type):
        return pc.cast(value, arrow, safe=False)
    return pc.cast(value, arrow)


# ── only for some rows ──────────────────────────────────────────────────────────────────────────────────────


def where_true(rows: InputRows, mask: pa.Array, evaluate: Evaluate) -> pa.Array:
    """Return the values where a mask without NULL is true, and NULL elsewhere.

    Elsewhere the expression is not evaluated, so it cannot fail.
    """
    count = pc.sum(mask).as_py() or 0
    if count == rows.count:
        return as_array(evaluate(rows), rows.count)
    found = as_array(evaluate(rows.among(mask)), count)
    places = np.cumsum(mask.to_numpy(zero_copy_only=False)) - 1
    return found.take(pa.array(places, mask=pc.invert(mask).to_numpy(zero_copy_only=False)))


def and_then(left: Evaluate, right: Evaluate) -> Evaluate:
    """Return AND with a right side that may fail: it is evaluated only where the left side is not false."""

    def evaluate(rows: InputRows) -> Value:
        first = as_array(left(rows), rows.count)
        return pc.and_kleene(first, where_true(rows, pc.fill_null(first, True), right))

    return evaluate


def or_else(left: Evaluate, right: Evaluate) -> Evaluate:
    """Return OR with a right side that may fail: it is evaluated only where the left side is not true."""

    def evaluate(rows: InputRows) -> Value:
        first = as_array(left(rows), rows.count)
        return pc.or_kleene(first, where_true(rows, pc.invert(pc.fill_null(first, False)), right))

    return evaluate


def case(branches: Sequence[tuple[Evaluate, Evaluate]], otherwise: Evaluate) -> Evaluate:
    """Return CASE. Each condition is evaluated only for the rows for which no earlier condition is true, and each value
    only for the rows for which its own condition is true."""

    def evaluate(rows: InputRows) -> Value:
        left = pa.repeat(pa.scalar(True), rows.count)
        found: list[tuple[pa.Array, pa.Array]] = []
        for condition, value in branches:
            holds = pc.fill_null(where_true(rows, left, condition), False)
            found.append((holds, where_true(rows, holds, value)))
            left = pc.and_(left, pc.invert(holds))
        result = where_true(rows, left, otherwise)
        for holds, values in reversed(found):
            result = pc.if_else(holds, values, result)
        return result

    return evaluate


# ── comparisons ─────────────────────────────────────────────────────────────────────────────────────────────

_COMPARE: Mapping[str, Callable[[Value, Value], Value]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def compare(sign: str, a: Value, b: Value) -> Value:
    """Compare two values of one type. NaN equals NaN and is greater than every other number, as in PostgreSQL."""
    if not pa.types.is_floating(a.type):
        return _COMPARE[sign](a, b)
    odd_a, odd_b = pc.is_nan(a), pc.is_nan(b)
    match sign:
        case "=":
            return pc.or_kleene(pc.equal(a, b), pc.and_(odd_a, odd_b))
        case "<":
            return pc.or_kleene(pc.less(a, b), pc.and_(pc.invert(odd_a), odd_b))
        case ">":
            return compare("<", b, a)
        case "<>":
            return pc.invert(compare("=", a, b))
        case "<=":
            return pc.invert(compare("<", b, a))
        case _:
            return pc.invert(compare("<", a, b))


def differs(a: Value, b: Value) -> Value:
    """Compute IS DISTINCT FROM."""
    one_is_null = pc.xor(pc.is_null(a), pc.is_null(b))
    return pc.or_(one_is_null, pc.fill_null(compare("<>", a, b), False))


def among(tested: Value, listed: Sequence[Value]) -> Value:
    """Compute IN: NULL if the tested value equals none of the listed ones, and one of them is NULL."""
    found: Value = pa.scalar(False)
    for one in listed:
        found = pc.or_kleene(found, compare("=", tested, one))
    return found


def is_true(value: Value) -> Value:
    return pc.fill_null(value, False)


def is_false(value: Value) -> Value:
    return pc.fill_null(pc.invert(value), False)


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


def divide(a: Value, b: Value) -> Value:
    if pc.any(pc.equal(as_array(b, 1), pa.scalar(0, b.type))).as_py():
        raise pa.ArrowInvalid("division by zero")
    return pc.divide(a, b)


def remainder(a: Value, b: Value) -> Value:
    """Compute the remainder of 64-bit integers; it has the sign of `a`."""
    return pc.subtract_checked(a, pc.multiply_checked(pc.divide_checked(a, b), b))


def round_decimal(value: Value, arrow: pa.DataType) -> Value:
    """Round a decimal, or the text of a number, to fewer digits after the point: halves away from zero.

    Raises pa.ArrowInvalid if it has too many digits before the point.
    """
    if not pa.types.is_decimal(value.type):
        value = pc.cast(value, pa.decimal256(76, DECIMAL128_DIGITS))
    if value.type.scale > arrow.scale:
        wide = pc.cast(value, pa.decimal256(76, value.type.scale))
        value = pc.round(wide, arrow.scale, round_mode="half_towards_infinity")
    return pc.cast(value, arrow)


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────


class _JsonNumber(str):
    """The text of a number in a document, which must not be rounded or written differently."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_int=_JsonNumber, parse_float=_JsonNumber)


class CompiledPaths(Protocol):
    """The compiled scanner of documents; `compiled/json_paths.pyx` documents it."""

    def texts_at(self, documents: pa.Array, path: Sequence[str | int]) -> tuple[pa.Array, Int64s | None]: ...


COMPILED = cast("CompiledPaths | None", compiled_module("cdcflow.sources.rows.compiled.json_paths"))


def json_text(values: Value, path: Sequence[str | int], compiled: CompiledPaths | None = COMPILED) -> Value:
    """Return the value of documents at a path, as text; NULL if they have nothing there, or null.

    Raises:
        pa.ArrowInvalid: a text is not a JSON document.
    """
    if isinstance(values, pa.Scalar):
        return json_text(as_array(values, 1), path, compiled)[0]
    if compiled is None:
        return _json_text(values, path)
    found, left = compiled.texts_at(values, path)
    if left is None:
        return found
    # For each document one of the two kernels gives NULL, so the results can be merged.
    where = np.full(len(values), -1)
    where[left] = np.arange(len(left))
    return pc.coalesce(found, _json_text(values.take(pa.array(left)), path).take(pa.array(where, mask=where < 0)))


def _json_text(values: pa.Array, path: Sequence[str | int]) -> pa.Array:
    """Return the result of `json_text` with the plain kernel, which is the reference. It reads each distinct document
    once."""
    encoded = values.dictionary_encode()
    try:
        # This creates a Python object per distinct document, if nothing was compiled and for rare documents: Arrow has
        # no function for a path.
        found = [_at_path(text, path) for text in encoded.dictionary.to_pylist()]
        return pa.array(found, pa.string()).take(encoded.indices)
    except (ValueError, RecursionError):
        raise pa.ArrowInvalid("a text is not a JSON document") from None


def _at_path(text: str, path: Sequence[str | int]) -> str | None:
    found = _DECODER.decode(text)
    for step in path:
        if isinstance(step, str) and isinstance(found, dict):
            found = found.get(step)
        elif isinstance(step, int) and isinstance(found, list):
            found = found[step] if step < len(found) else None
        else:
            return None
    return None if found is None else str(found) if isinstance(found, str) else _json_of(found)


def _json_of(value: object) -> str:
    match value:
        case _JsonNumber():
            return str(value)
        case dict():
            return "{" + ", ".join(f"{_json_of(name)}: {_json_of(one)}" for name, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_json_of, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
