"""Keys as SQL: what comes behind a row, up to a row, and the rows with given keys. Pure.

Order and equality are the server's alone (W16): text has a collation, ENUM is ordered by number, a BIGINT UNSIGNED
goes beyond what a signed number holds. So a cursor is a literal made from the bytes that the server itself sent for
the last row, in the column's own character set, and every comparison is done there.

Row values like (a, b) > (1, 2) find no index in MySQL; the same written out with OR does.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.sources.mysql.charsets import charset_of
from cdcflow.sources.mysql.codecs import select_expression
from cdcflow.sources.mysql.sql import literal, quoted
from cdcflow.sources.mysql.types import BINARY_COLLATION, ServerColumn, TypeCode

_INTEGERS = frozenset((TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG, TypeCode.YEAR))
_NUMBERS = _INTEGERS | {TypeCode.DECIMAL, TypeCode.FLOAT, TypeCode.DOUBLE}
_FLOATS = frozenset((TypeCode.FLOAT, TypeCode.DOUBLE))
_MOMENTS = frozenset((TypeCode.DATE, TypeCode.TIME, TypeCode.DATETIME, TypeCode.TIMESTAMP))
_TEXTS = frozenset((TypeCode.CHAR, TypeCode.VARCHAR, TypeCode.BLOB))
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")
_MOMENT = re.compile(r"[-0-9:. ]+")

KEYS_AT_ONCE = 1000
"""With more keys in one statement the server may give up the index (`range_optimizer_max_mem_size`)."""

Literals = tuple[str, ...]
"""A row's key as SQL, one literal a column."""


@dataclass(frozen=True, slots=True)
class Key:
    """The columns that tell a table's rows apart, in the order of their index."""

    columns: tuple[ServerColumn, ...]
    index: str

    @property
    def names(self) -> str:
        return ", ".join(quoted(c.name) for c in self.columns)

    @property
    def descending(self) -> str:
        return ", ".join(f"{quoted(c.name)} DESC" for c in self.columns)

    @property
    def selected(self) -> str:
        """What to select so that `literals` can read it."""
        return ", ".join(select_expression(c) for c in self.columns)

    @property
    def is_sought(self) -> bool:
        """The index finds where a comparison begins and ends. Else every part would look at the whole table."""
        return all(_comparable(c) == quoted(c.name) for c in self.columns)

    @property
    def is_whole_number(self) -> bool:
        """One column of whole numbers, which can be reckoned with."""
        return len(self.columns) == 1 and self.columns[0].type_code in _INTEGERS

    @property
    def digest(self) -> str:
        """Changes when literals made for this key can no longer be compared with it."""
        return ";".join(f"{c.name}:{c.type_code}:{c.collation}:{len(c.labels)}:{c.extra}" for c in self.columns)

    def literals(self, cells: Sequence[bytes | None]) -> Literals:
        """A row's key, from the cells that the server sent for it."""
        if None in cells:
            raise SourceUnavailable("the server sent a row whose key is NULL")
        return tuple(literal_of(c, cell or b"") for c, cell in zip(self.columns, cells, strict=True))

    def after(self, row: Literals) -> str:
        """The condition for rows behind this one."""
        return _compared(self.columns, row, ">", ">")

    def upto(self, row: Literals) -> str:
        """The condition for rows up to and including this one."""
        return _compared(self.columns, row, "<", "<=")

    def among(self, keys: KeySet) -> Iterator[str]:
        """Conditions that together find the rows with these keys, a thousand keys each."""
        columns = [keys.keys.column(c.name).to_pylist() for c in self.columns]
        rows = [
            tuple(value_literal(c, value) for c, value in zip(self.columns, row, strict=True))
            for row in zip(*columns, strict=True)
        ]
        left = self.names if len(self.columns) == 1 else f"({self.names})"
        for first in range(0, len(rows), KEYS_AT_ONCE):
            some = rows[first : first + KEYS_AT_ONCE]
            texts = [row[0] if len(row) == 1 else f"({', '.join(row)})" for row in some]
            yield f"{left} IN ({', '.join(texts)})"


def _compared(columns: Sequence[ServerColumn], row: Literals, inner: str, last: str) -> str:
    column, *rest = columns
    name = _comparable(column)
    if not rest:
        return f"{name} {last} {row[0]}"
    return f"({name} {inner} {row[0]} OR ({name} = {row[0]} AND {_compared(rest, row[1:], inner, last)}))"


def _comparable(column: ServerColumn) -> str:
    """The column in a comparison that agrees with ORDER BY on it."""
    name = quoted(column.name)
    if column.type_code in (TypeCode.ENUM, TypeCode.SET):
        return f"({name} + 0)"  # with a text they compare as text; they are ordered by number (W19)
    if column.type_code == TypeCode.FLOAT:
        return f"({name} - 0e0)"  # compared with the column itself the server rounds the literal to six digits
    return name


def literal_of(column: ServerColumn, cell: bytes) -> str:
    """A value as SQL, from the text that the server sent for it.

    Raises:
        SourceUnavailable: it is no text that a column of this type has.
        ConfigurationError: a type that no key can have.
    """
    code = column.type_code
    if column.extra:
        return literal(cell.decode())
    if code == TypeCode.BIT:
        return str(int.from_bytes(cell, "big"))
    if code in (TypeCode.ENUM, TypeCode.SET):
        return _label_number(column, cell.decode())
    if code in _NUMBERS:
        return _checked(_NUMBER, cell, column) + ("e0" if code in _FLOATS and b"e" not in cell else "")
    if code in _MOMENTS:
        return f"'{_checked(_MOMENT, cell, column)}'"
    if code in _TEXTS:
        if column.collation in (None, BINARY_COLLATION):
            return f"X'{cell.hex()}'"
        # The bytes are as they are stored, except that utf8mb4 is what the session speaks anyway.
        return f"_{charset_of(column.collation or 0).name} X'{cell.hex()}'"
    raise _no_key(column)


def value_literal(column: ServerColumn, value: Any) -> str:  # Any: whatever Arrow holds for a key
    """A value as SQL, from what the log has of it."""
    match value:
        case int() | Decimal():
            return str(value)
        case float():
            text = repr(value)
            return text if "e" in text else f"{text}e0"
        case bytes():
            return f"X'{value.hex()}'"
        case datetime.datetime():
            return f"'{value.replace(tzinfo=None).isoformat(' ')}'"
        case datetime.date():
            return f"'{value.isoformat()}'"
        case datetime.timedelta():
            return f"'{_time(value)}'"
        case list():
            return _label_number(column, ",".join(value))
        case str() if column.type_code in (TypeCode.ENUM, TypeCode.SET):
            return _label_number(column, value)
        case str() if column.type_code in _MOMENTS:
            return f"'{_checked(_MOMENT, value.encode(), column)}'"
        case str():
            return literal(value)
    raise _no_key(column)


def _time(value: datetime.timedelta) -> str:
    us = value // datetime.timedelta(microseconds=1)
    sign, us = ("-", -us) if us < 0 else ("", us)
    seconds, fraction = divmod(us, 1_000_000)
    return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"


def _label_number(column: ServerColumn, text: str) -> str:
    if column.type_code == TypeCode.ENUM:
        return str(column.labels.index(text) + 1 if text in column.labels else 0)
    chosen = set(text.split(",")) if text else set()
    return str(sum(1 << i for i, label in enumerate(column.labels) if label in chosen))


def _checked(pattern: re.Pattern[str], cell: bytes, column: ServerColumn) -> str:
    text = cell.decode("ascii", "replace")
    if pattern.fullmatch(text) is None:
        raise SourceUnavailable(f"the server sent a key of column {column.name} that is none of its type")
    return text


def _no_key(column: ServerColumn) -> ConfigurationError:
    return ConfigurationError(
        f"column {column.name} is part of a key, and cdcflow cannot compare values of its type",
        remedy="ALTER TABLE … ADD PRIMARY KEY over other columns",
    )
