"""Keys as SQL: conditions for rows after a row, through a row, and with given keys. Pure.

Only the server determines order and equality (W16): text has a collation, ENUM is ordered by number, a BIGINT UNSIGNED
exceeds what a signed number holds. So a cursor is a literal made from the bytes that the server itself sent for the
last row, in the column's own character set, and the server does every comparison.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.sources.engine.key_ranges import KEYS_AT_ONCE, Literals, comparison
from cdcflow.sources.mysql.sql import literal, quote_name
from cdcflow.sources.mysql.types.columns import ServerColumn
from cdcflow.sources.mysql.types.family import as_is, no_key
from cdcflow.sources.mysql.types.numbers import WHOLE
from cdcflow.sources.mysql.types.registry import family_of, select_expression


@dataclass(frozen=True, slots=True)
class TableKey:
    """The columns that identify a table's rows, in the order of their index."""

    columns: tuple[ServerColumn, ...]
    index: str

    @property
    def names(self) -> str:
        return ", ".join(quote_name(c.name) for c in self.columns)

    @property
    def descending(self) -> str:
        return ", ".join(f"{quote_name(c.name)} DESC" for c in self.columns)

    @property
    def select_list(self) -> str:
        """What to select so that `literals` can read it."""
        return ", ".join(select_expression(c) for c in self.columns)

    @property
    def is_sought(self) -> bool:
        """The index finds where a comparison begins and ends. Otherwise every part would scan the whole table."""
        return all(_comparable(c) == quote_name(c.name) for c in self.columns)

    @property
    def is_whole_number(self) -> bool:
        """One integer column, which allows arithmetic."""
        return len(self.columns) == 1 and self.columns[0].type_code in WHOLE

    @property
    def digest(self) -> str:
        """Changes if literals made for this key can no longer be compared with it."""
        return ";".join(f"{c.name}:{c.type_code}:{c.collation}:{len(c.labels)}:{c.extra}" for c in self.columns)

    def literals(self, cells: Sequence[bytes | None]) -> Literals:
        """A row's key, from the cells that the server sent for it."""
        if None in cells:
            raise SourceUnavailable("the server sent a row whose key is NULL")
        return tuple(literal_of(c, cell or b"") for c, cell in zip(self.columns, cells, strict=True))

    def after(self, row: Literals) -> str:
        """The condition for rows after this one."""
        return comparison([_comparable(c) for c in self.columns], row, ">", ">")

    def upto(self, row: Literals) -> str:
        """The condition for rows up to and including this one."""
        return comparison([_comparable(c) for c in self.columns], row, "<", "<=")

    def among(self, keys: KeySet) -> Iterator[str]:
        """Conditions that together match the rows with these keys, at most `KEYS_AT_ONCE` keys each."""
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


def _comparable(column: ServerColumn) -> str:
    family = family_of(column)
    return as_is(column) if family is None else family.comparable(column)


def literal_of(column: ServerColumn, cell: bytes) -> str:
    """A value as SQL, from the text that the server sent for it.

    Raises:
        SourceUnavailable: a column of this type cannot have this text.
        ConfigurationError: a type that a key cannot have.
    """
    family = family_of(column)
    if family is None or family.cell_literal is None:
        raise no_key(column)
    return family.cell_literal(column, cell)


def value_literal(column: ServerColumn, value: Any) -> str:  # Any: whatever Arrow holds for a key
    """A value as SQL, from the value in the log."""
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
        case list():  # labels of a set
            return _text_literal(column, ",".join(value))
        case str():
            return _text_literal(column, value)
    raise no_key(column)


def _text_literal(column: ServerColumn, value: str) -> str:
    family = family_of(column)
    return literal(value) if family is None else family.text_literal(column, value)


def _time(value: datetime.timedelta) -> str:
    us = value // datetime.timedelta(microseconds=1)
    sign, us = ("-", -us) if us < 0 else ("", us)
    seconds, fraction = divmod(us, 1_000_000)
    return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
