"""The text of a value in its row's digest (`model.digest`), in the SQL of MySQL and MariaDB: functions that
the families of types name. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.types.charsets import charset_of
from cdcflow.sources.mysql.types.columns import BINARY_COLLATION, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.family import TWO_DIGITS, Codec, RowText, whole_year

_WHOLE_SETS = ("utf8mb4", "utf8mb3", "ascii", "latin1")
"""Character sets in which every value means the same to the server and to cdcflow."""
_EPOCH_DAYS = 719_528
"""TO_DAYS('1970-01-01')."""
_PLAIN_TEXTS = (TypeCode.CHAR, TypeCode.VARCHAR, TypeCode.BLOB)


def none(column: ServerColumn, codec: Codec) -> RowText:
    return RowText(lacking=f"{codec.where.type_text} has no text that is the same everywhere")


def number(column: ServerColumn, codec: Codec) -> RowText:
    """Return the text of a number, without the zeros of ZEROFILL. A number of more than 38 digits is text in
    the copy."""
    if pa.types.is_floating(codec.arrow):
        return none(column, codec)
    name = quote_name(column.name)
    if pa.types.is_decimal(codec.arrow) and codec.arrow.precision > 38:
        return _nullable(column, f"CONCAT(OCTET_LENGTH({name}), ':', {name})")
    return _nullable(column, whole_year(column) if column.extra == TWO_DIGITS else f"{name} + 0")


def hexadecimal(column: ServerColumn, codec: Codec) -> RowText:
    return _nullable(column, f"HEX({quote_name(column.name)})")


def duration(column: ServerColumn, codec: Codec) -> RowText:
    text = f"CAST({quote_name(column.name)} AS TIME(6))"
    return _nullable(column, f"CONCAT(OCTET_LENGTH({text}), ':', {text})")


def moment(column: ServerColumn, codec: Codec) -> RowText:
    """Return days or microseconds since 1970. For a date that does not exist in the calendar, return a text that no
    copy has; or, if `zero_dates` is null, the text of NULL."""
    if codec.arrow == pa.string():
        return cast_text(column, codec)
    name = quote_name(column.name)
    # For a day that its month does not have, TO_DAYS returns a day of the next month, so `is_day` is false.
    number = f"TO_DAYS({name}) - {_EPOCH_DAYS}"
    if column.type_code != TypeCode.DATE:
        number = f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {name})"
    is_day = f"FROM_DAYS(TO_DAYS({name})) <=> DATE({name})"
    other = "''" if codec.where.zero_dates == "null" else f"CONCAT('?', {name})"
    return RowText((f"IF({is_day}, IFNULL({number}, ''), {other})",))


def cast_text(column: ServerColumn, codec: Codec) -> RowText:
    return _with_length(column, f"CAST({quote_name(column.name)} AS CHAR)")


def text(column: ServerColumn, codec: Codec) -> RowText:
    """Return a text converted to UTF-8, after its length in bytes."""
    if column.collation in (None, BINARY_COLLATION):
        return cast_text(column, codec)
    charset, name = charset_of(column.collation or 0).name, quote_name(column.name)
    if charset not in _WHOLE_SETS:
        return RowText(lacking=f"its character set is {charset}")
    if codec.where.bad_text == "replace":
        return RowText(lacking="bad_text is replace")
    is_plain = column.type_code in _PLAIN_TEXTS and charset == "utf8mb4"
    return _with_length(column, name if is_plain else f"CONVERT({name} USING utf8mb4)")


def _with_length(column: ServerColumn, text: str) -> RowText:
    """Return a text after its length in bytes."""
    pieces: Sequence[str] = (f"OCTET_LENGTH({text})", "':'", text)
    return RowText((f"IFNULL(CONCAT({', '.join(pieces)}), '')",) if column.nullable else tuple(pieces))


def _nullable(column: ServerColumn, text: str) -> RowText:
    return RowText((f"IFNULL({text}, '')" if column.nullable else text,))
