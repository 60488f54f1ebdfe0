"""Columns as MySQL and MariaDB store them: the codes of their types, and the one text for each type.

The catalog and the binary log describe the same column in different words. Both are brought to one `ServerColumn`,
and everything else (the type's text, its Arrow type, its decoder) is made from that, so that two descriptions of the
same table are equal.

`docs/mysql-types.md` is the table of types for people. The codes are those of `enum_field_types` (MySQL's
`field_types.h`, MariaDB's `mysql_com.h`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ZeroDates = Literal["stop", "null", "text"]
BadText = Literal["stop", "replace"]

BINARY_COLLATION = 63


class TypeCode(enum.IntEnum):
    """A column's type, as a table map names it once CHAR, ENUM, SET are told apart."""

    DECIMAL_OLD = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TIMESTAMP_OLD = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME_OLD = 11
    DATETIME_OLD = 12
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    TIMESTAMP = 17
    DATETIME = 18
    TIME = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    DECIMAL = 246
    ENUM = 247
    SET = 248
    BLOB = 252
    CHAR = 254
    GEOMETRY = 255


@dataclass(frozen=True, slots=True)
class ServerColumn:
    """One column as the server stores it.

    `type_code` is a `TypeCode` (`resolved` makes it from a table map's bytes). `metadata` by type, always as
    `resolved` and the functions `*_metadata` make it:

    - CHAR (also BINARY), VARCHAR, VARCHAR_COMPRESSED: the most bytes a value has.
    - BLOB, BLOB_COMPRESSED, JSON, GEOMETRY, VECTOR: how many bytes (1-4) a value's length takes.
    - ENUM, SET: how many bytes a value takes.
    - DECIMAL: precision | scale << 8. BIT: bits % 8 | bits // 8 << 8.
    - FLOAT, DOUBLE: 4, 8. TIMESTAMP, DATETIME, TIME: digits of the fraction. Else 0.

    `unsigned` is False for all that is no number. `collation` is the id for text (ENUM and SET, too), 63 for bytes,
    None for the others. `labels` are those of ENUM and SET, in order. `extra` is what only the catalog tells and
    rows need: MariaDB's `uuid`, `inet4`, `inet6`; empty mostly.
    """

    name: str
    type_code: int
    metadata: int
    nullable: bool
    unsigned: bool = False
    collation: int | None = None
    labels: tuple[str, ...] = ()
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of values that have no place in their Arrow type.

    `zero_dates`: of dates with a zero year, month or day: stop by name, NULL, or the whole column as text.
    `bad_text`: of bytes that are invalid in the column's character set: stop by name, or U+FFFD in their place.
    `columns` overrides either for one column by its full name (`shop.orders.due`).
    """

    zero_dates: ZeroDates = "stop"
    bad_text: BadText = "stop"
    columns: Mapping[str, str] = field(default_factory=dict)


def resolved(code: int, metadata: bytes) -> tuple[int, int]:
    """A table map's type byte and the 0-2 bytes of its metadata, as `ServerColumn` has them.

    CHAR, BINARY, ENUM and SET share one code in a table map. Its first byte holds the real type, except that two of
    its bits, inverted, are bits 8 and 9 of a CHAR's length.
    """
    if code != TypeCode.CHAR:
        return code, int.from_bytes(metadata, "little")
    first, second = metadata
    if first & 0x30 == 0x30:
        return first, second
    return first | 0x30, second | ((first & 0x30) ^ 0x30) << 4


def decimal_metadata(precision: int, scale: int) -> int:
    return precision | scale << 8


def bit_metadata(bits: int) -> int:
    return bits % 8 | bits // 8 << 8


_INTEGERS = {
    TypeCode.TINY: "tinyint",
    TypeCode.SHORT: "smallint",
    TypeCode.INT24: "mediumint",
    TypeCode.LONG: "int",
    TypeCode.LONGLONG: "bigint",
    TypeCode.FLOAT: "float",
    TypeCode.DOUBLE: "double",
}
_MOMENTS = {TypeCode.DATETIME: "datetime", TypeCode.TIMESTAMP: "timestamp", TypeCode.TIME: "time"}
_PLAIN = {
    TypeCode.DATE: "date",
    TypeCode.YEAR: "year",
    TypeCode.JSON: "json",
    TypeCode.GEOMETRY: "geometry",
    TypeCode.VECTOR: "vector",
}
_SIZES = ("tiny", "", "medium", "long")


def type_text(column: ServerColumn, bytes_a_character: int = 1) -> str:
    """The type in SQL's words, as far as it matters to values. Made from the column alone, whoever described it."""
    code, size = column.type_code, column.metadata
    if column.extra:
        return column.extra
    if code in _INTEGERS:
        return _INTEGERS[TypeCode(code)] + " unsigned" * column.unsigned
    if code == TypeCode.DECIMAL:
        return f"decimal({size & 0xFF},{size >> 8})" + " unsigned" * column.unsigned
    if code in _MOMENTS:
        return _MOMENTS[TypeCode(code)] + (f"({size})" if size else "")
    if code == TypeCode.BIT:
        return f"bit({(size >> 8) * 8 + (size & 0xFF)})"
    if code in (TypeCode.ENUM, TypeCode.SET):
        labels = ",".join("'" + label.replace("'", "''") + "'" for label in column.labels)
        return f"{'enum' if code == TypeCode.ENUM else 'set'}({labels})"
    if code in _PLAIN:
        return _PLAIN[TypeCode(code)]
    return _text_of_bytes(column, bytes_a_character)


def _text_of_bytes(column: ServerColumn, bytes_a_character: int) -> str:
    code, size = column.type_code, column.metadata
    is_binary = column.collation in (None, BINARY_COLLATION)
    if code in (TypeCode.BLOB, TypeCode.BLOB_COMPRESSED):
        return f"{_SIZES[(size - 1) & 3]}{'blob' if is_binary else 'text'}"
    if code == TypeCode.CHAR:
        return f"binary({size})" if is_binary else f"char({size // bytes_a_character})"
    if code == TypeCode.VARCHAR_COMPRESSED:
        size -= 1
    return f"varbinary({size})" if is_binary else f"varchar({size // bytes_a_character})"
