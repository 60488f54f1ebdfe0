"""Columns as MySQL and MariaDB store them, and as `information_schema` describes them.

Rows of the binary log contain neither `varchar(20)` nor a collation's name, but a type's code, a length in bytes and a
number. The catalog and the log describe the same column in different words, and both are converted to one
`ServerColumn`: everything else (the type's text, its Arrow type, its decoder) is derived from that, so that a chunk's
rows have the same shape as the stream's (M34). Generated and invisible columns are treated like others: the log
contains them too (M49).

The codes are those of `enum_field_types` (MySQL's `field_types.h`, MariaDB's `mysql_com.h`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cdcflow.errors import ConfigurationError

ZeroDates = Literal["stop", "null", "text"]
BadText = Literal["stop", "replace"]

BINARY_COLLATION = 63
UTF8_COLLATION = 45


class TypeCode(enum.IntEnum):
    """A column's type, as a table map names it once CHAR, ENUM and SET are distinguished."""

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

    `type_code` is a `TypeCode` (`resolve_type` derives it from a table map's bytes). `metadata` by type, always in the
    form that `resolve_type` and the functions `*_metadata` return:

    - CHAR (also BINARY), VARCHAR, VARCHAR_COMPRESSED: the maximum bytes of a value.
    - BLOB, BLOB_COMPRESSED, JSON, GEOMETRY, VECTOR: the number of bytes (1-4) of a value's length.
    - ENUM, SET: the number of bytes of a value.
    - DECIMAL: precision | scale << 8. BIT: bits % 8 | bits // 8 << 8.
    - FLOAT, DOUBLE: 4, 8. TIMESTAMP, DATETIME, TIME: digits of the fraction. Otherwise 0.

    `unsigned` is False for all types that are not numbers. `collation` is the id for text (including ENUM and SET), 63
    for bytes, None for the others. `labels` are those of ENUM and SET, in order. `extra` is a type that only the
    catalog knows and that rows need: MariaDB's `uuid`, `inet4`, `inet6`, `year(2)`; usually empty.
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
    """What happens to values that their Arrow type cannot hold.

    `zero_dates`: for dates with a zero year, month or day: stop with an error that names the column, NULL, or the whole
    column as text. `bad_text`: for bytes that are invalid in the column's character set: stop with an error that names
    the column, or replace them by U+FFFD. `columns` overrides either for one column by its full name
    (`shop.orders.due`). `of_another_type`: ignore a policy that the column's type does not support, instead of refusing
    it, because the column has, or had, another type elsewhere in the log.
    """

    zero_dates: ZeroDates = "stop"
    bad_text: BadText = "stop"
    columns: Mapping[str, str] = field(default_factory=dict)
    of_another_type: bool = False


def resolve_type(code: int, metadata: bytes) -> tuple[int, int]:
    """Convert a table map's type byte and its 0-2 bytes of metadata to the form of `ServerColumn`.

    CHAR, BINARY, ENUM and SET share one code in a table map. The first byte of the metadata holds the real type, except
    that two of its bits, inverted, are bits 8 and 9 of a CHAR's length.
    """
    if code != TypeCode.CHAR:
        return code, int.from_bytes(metadata, "little")
    first, second = metadata
    if first & 0x30 == 0x30:
        return first, second
    return first | 0x30, second | ((first & 0x30) ^ 0x30) << 4


ASKED = (
    "COLUMN_NAME, IS_NULLABLE, DATA_TYPE, COLUMN_TYPE, CHARACTER_OCTET_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE, "
    "DATETIME_PRECISION, COLLATION_NAME, EXTRA"
)
"""The columns that `CatalogColumn` takes, in its order."""


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """One row of `information_schema.columns`."""

    name: str
    nullable: str
    type: str
    full_type: str
    octets: int | None
    precision: int | None
    scale: int | None
    fraction: int | None
    collation: str | None
    extra: str

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> CatalogColumn:
        return cls(*row)

    def stored_as(
        self,
        code: TypeCode,
        metadata: int = 0,
        *,
        unsigned: bool = False,
        collation: int | None = None,
        labels: tuple[str, ...] = (),
        extra: str = "",
    ) -> ServerColumn:
        """Return the column as the server stores it. `collation`: the one to use if the catalog names none."""
        return ServerColumn(self.name, code, metadata, self.nullable == "YES", unsigned, collation, labels, extra)


def not_captured(column: CatalogColumn, why: str, statement: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {column.name} {why}", remedy=f"run {statement}, or leave its table out", runbook="table-not-capturable"
    )
