"""Keys as SQL: the literals of their values, and expressions that compare as the server orders (see
`engine.table_key`). Pure.

Text has a collation, ENUM is ordered by number, a BIGINT UNSIGNED exceeds the range of a signed number. So a literal
contains the server's own bytes, in the column's own character set.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from cdcflow.sources.engine.table_key import KeyColumn, TableKey
from cdcflow.sources.mysql.sql import literal, quote_name
from cdcflow.sources.mysql.types.columns import ServerColumn
from cdcflow.sources.mysql.types.family import as_is, no_key
from cdcflow.sources.mysql.types.numbers import WHOLE
from cdcflow.sources.mysql.types.registry import family_of, select_expression


def table_key(columns: Sequence[ServerColumn], index: str) -> TableKey:
    """Return a key of these columns, with the index that has them."""
    digest = ";".join(f"{c.name}:{c.type_code}:{c.collation}:{len(c.labels)}:{c.extra}" for c in columns)
    return TableKey(tuple(map(_key_column, columns)), index, digest)


def _key_column(column: ServerColumn) -> KeyColumn:
    return KeyColumn(
        name=column.name,
        quoted=quote_name(column.name),
        selected=select_expression(column),
        comparable=_comparable(column),
        is_whole_number=column.type_code in WHOLE,
        cell_literal=partial(literal_of, column),
        value_literal=partial(value_literal, column),
    )


def _comparable(column: ServerColumn) -> str:
    family = family_of(column)
    return as_is(column) if family is None else family.comparable(column)


def literal_of(column: ServerColumn, cell: bytes) -> str:
    """Return a value as SQL, from the text that the server sent for it.

    Raises:
        SourceUnavailable: a column of this type cannot have this text.
        ConfigurationError: a type that a key cannot have.
    """
    family = family_of(column)
    if family is None or family.cell_literal is None:
        raise no_key(column)
    return family.cell_literal(column, cell)


def value_literal(column: ServerColumn, value: Any) -> str:  # Any: whatever Arrow holds for a key
    """Return a value as SQL, from the value in the log."""
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
