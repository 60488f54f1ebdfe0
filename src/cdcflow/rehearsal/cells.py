"""Values as a test writes them: texts that become values of a column, and values as texts for a report."""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

Cell = str | None | list[Any] | dict[str, Any]
"""A value in a test file: the text that is written there, NULL, or a list or mapping of them."""

_DURATION = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def value_of(cell: Any, arrow: pa.DataType) -> Any:  # Any: a Python value as Arrow converts it
    """Return a cell of a test as a value of this type. A cell that is not a text is returned unchanged.

    Raises:
        ValueError: it is not a value of the type.
    """
    if cell is None:
        return None
    if kinds.is_list(arrow) or kinds.is_large_list(arrow):
        if not isinstance(cell, Sequence) or isinstance(cell, str | bytes):
            raise ValueError("must be a list")
        return [value_of(one, arrow.value_type) for one in cell]
    if kinds.is_struct(arrow):
        if not isinstance(cell, Mapping) or cell.keys() - {field.name for field in arrow}:
            raise ValueError(f"must be a mapping with {', '.join(field.name for field in arrow)}")
        return {field.name: value_of(cell.get(field.name), field.type) for field in arrow}
    if not isinstance(cell, str):
        return _check(cell, arrow)
    try:
        return _check(_parse(cell, arrow), arrow)
    except (ValueError, InvalidOperation, binascii.Error, pa.ArrowException):
        raise ValueError(f"is no {arrow} value{_advice(arrow)}") from None


def text_of(value: Any) -> str:  # Any: a value of any column
    """Return a value as text for a report: a text unchanged, NULL as NULL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case bytes():
            return f"0x{value.hex()}"
        case float():
            return repr(value)
        case Decimal():
            return f"{value:f}"
        case list():
            return f"[{', '.join(map(text_of, value))}]"
        case dict():
            return f"{{{', '.join(f'{name}: {text_of(inner)}' for name, inner in value.items())}}}"
        case _:
            return str(value)


def comparable(value: Any) -> Any:  # Any: as above
    """Return a hashable form of a value: two are equal exactly if the values are."""
    match value:
        case float():
            return ("NaN",) if math.isnan(value) else (value, math.copysign(1, value))
        case list():
            return tuple(map(comparable, value))
        case dict():
            return tuple((name, comparable(inner)) for name, inner in sorted(value.items()))
        case _:
            return value


def _parse(text: str, arrow: pa.DataType) -> Any:  # Any: as above
    if kinds.is_boolean(arrow):
        if text.lower() not in _TRUTHS:
            raise ValueError
        return _TRUTHS[text.lower()]
    if kinds.is_integer(arrow):
        return int(text)
    if kinds.is_floating(arrow):
        return float(text)
    if kinds.is_decimal(arrow):
        return Decimal(text)
    if kinds.is_binary(arrow) or kinds.is_large_binary(arrow) or kinds.is_fixed_size_binary(arrow):
        is_hexadecimal = text.startswith(("0x", "\\x"))
        return binascii.unhexlify(text[2:]) if is_hexadecimal else text.encode()
    if kinds.is_timestamp(arrow):
        found = datetime.fromisoformat(text)
        if (found.tzinfo is None) != (arrow.tz is None):
            raise ValueError
        return found
    if kinds.is_date(arrow):
        return date.fromisoformat(text)
    if kinds.is_time(arrow):
        return time.fromisoformat(text)
    if kinds.is_duration(arrow):
        return _duration(text)
    return text


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError
    sign, hours, minutes, seconds, fraction = found.groups()
    micros = int((fraction or "").ljust(6, "0"))
    span = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds), microseconds=micros)
    return -span if sign else span


def _check(value: Any, arrow: pa.DataType) -> Any:  # Any: as above
    """Return a value after a conversion to the type and back, so that a value that does not fit raises an error here,
    and equal values are equal."""
    try:
        return pa.scalar(value, arrow).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise ValueError(f"is no {arrow} value{_advice(arrow)}") from None


def _advice(arrow: pa.DataType) -> str:
    """Return how to write a value, for types whose values are often written wrongly."""
    if kinds.is_timestamp(arrow):
        zone = "with" if arrow.tz else "without"
        return f": write it {zone} a zone, as in 2026-01-31 12:00:00{'+00:00' if arrow.tz else ''}"
    if kinds.is_decimal(arrow):
        return f": it has at most {arrow.precision} digits, {arrow.scale} of them after the point"
    return ""
