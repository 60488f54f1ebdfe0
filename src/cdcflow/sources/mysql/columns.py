"""Columns as `information_schema` words them, brought to the `ServerColumn` that a table map gives. Pure.

Rows of the binary log know neither `varchar(20)` nor a collation's name; they know a type's code, a length in bytes
and a number. Both descriptions must come to the same value, or a chunk's rows would have another shape than the
stream's (M34). Generated and invisible columns are columns like others: the log has them too (M49).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql.types import BINARY_COLLATION, ServerColumn, TypeCode, bit_metadata, decimal_metadata

ASKED = (
    "COLUMN_NAME, IS_NULLABLE, DATA_TYPE, COLUMN_TYPE, CHARACTER_OCTET_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE, "
    "DATETIME_PRECISION, COLLATION_NAME, EXTRA"
)
"""What `CatalogColumn` takes, in its order."""


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


_PLAIN: Mapping[str, tuple[TypeCode, int]] = {
    "tinyint": (TypeCode.TINY, 0),
    "smallint": (TypeCode.SHORT, 0),
    "mediumint": (TypeCode.INT24, 0),
    "int": (TypeCode.LONG, 0),
    "bigint": (TypeCode.LONGLONG, 0),
    "float": (TypeCode.FLOAT, 4),
    "double": (TypeCode.DOUBLE, 8),
    "date": (TypeCode.DATE, 0),
    "year": (TypeCode.YEAR, 0),
    "json": (TypeCode.JSON, 4),
    "vector": (TypeCode.VECTOR, 4),
}
_FRACTIONS: Mapping[str, TypeCode] = {
    "timestamp": TypeCode.TIMESTAMP,
    "datetime": TypeCode.DATETIME,
    "time": TypeCode.TIME,
}
_BLOBS: Mapping[str, int] = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_GEOMETRIES = frozenset(
    [
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    ]
)
_FIXED: Mapping[str, int] = {"uuid": 16, "inet6": 16, "inet4": 4}
_NUMBERS = frozenset(("tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "decimal"))


def server_column(column: CatalogColumn, collations: Mapping[str, int]) -> ServerColumn:
    """The column as a table map has it. `collations` gives each collation's number.

    Raises:
        ConfigurationError: a type that cdcflow does not know.
    """
    code, metadata = _type(column)
    labels = _labels(column.full_type) if column.type in ("enum", "set") else ()
    if labels:
        metadata = _label_bytes(column.type, len(labels))
    return ServerColumn(
        name=column.name,
        type_code=code,
        metadata=metadata,
        nullable=column.nullable == "YES",
        unsigned=column.type in _NUMBERS and " unsigned" in column.full_type,
        collation=_collation(column, code, collations),
        labels=labels,
        extra=column.type if column.type in _FIXED else "",
    )


def _type(column: CatalogColumn) -> tuple[int, int]:
    kind, octets = column.type, column.octets or 0
    is_compressed = "COMPRESSED" in column.full_type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _FRACTIONS:
        if "mariadb-5.3" in column.full_type:
            raise _unknown(column, "is of a kind from before MariaDB 10.1", "ALTER TABLE … FORCE")
        return _FRACTIONS[kind], column.fraction or 0
    if kind in ("char", "binary"):
        return TypeCode.CHAR, octets
    if kind in ("varchar", "varbinary"):
        # The first byte of a compressed value says how it is compressed, and counts.
        return (TypeCode.VARCHAR_COMPRESSED, octets + 1) if is_compressed else (TypeCode.VARCHAR, octets)
    if kind.endswith(("text", "blob")):
        return (TypeCode.BLOB_COMPRESSED if is_compressed else TypeCode.BLOB), _BLOBS[kind[:-4]]
    if kind == "decimal":
        return TypeCode.DECIMAL, decimal_metadata(column.precision or 0, column.scale or 0)
    if kind == "bit":
        return TypeCode.BIT, bit_metadata(column.precision or 0)
    if kind in ("enum", "set"):
        return (TypeCode.ENUM if kind == "enum" else TypeCode.SET), 0
    if kind in _GEOMETRIES:
        return TypeCode.GEOMETRY, 4
    if kind in _FIXED:
        return TypeCode.CHAR, _FIXED[kind]
    raise _unknown(column, f"has the type {kind}, which is not captured", "ALTER TABLE … MODIFY …")


def _unknown(column: CatalogColumn, why: str, statement: str) -> ConfigurationError:
    return ConfigurationError(f"column {column.name} {why}", remedy=f"run {statement}, or leave its table out")


def _label_bytes(kind: str, count: int) -> int:
    if kind == "enum":
        return 1 if count < 256 else 2
    octets = (count + 7) // 8
    return octets if octets <= 4 else 8


def _collation(column: CatalogColumn, code: int, collations: Mapping[str, int]) -> int | None:
    if column.collation is not None:
        found = collations.get(column.collation)
        if found is None:
            raise _unknown(column, f"has the collation {column.collation}, which the server does not list", "…")
        return found
    holds_bytes = (TypeCode.CHAR, TypeCode.VARCHAR, TypeCode.VARCHAR_COMPRESSED, TypeCode.BLOB)
    return BINARY_COLLATION if code in (*holds_bytes, TypeCode.BLOB_COMPRESSED) else None


_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED: Mapping[str, str] = {"\\n": "\n", "\\r": "\r", "\\0": "\0", "\\\\": "\\", "''": "'", "\\'": "'"}


def _labels(full_type: str) -> tuple[str, ...]:
    """The labels of `enum('a','b''c')`: a quote is doubled, a backslash and a line break are escaped."""
    inner = full_type[full_type.index("(") + 1 :]
    return tuple(
        re.sub(r"''|\\.", lambda e: _ESCAPED.get(e[0], e[0][1:]), found[1], flags=re.DOTALL)
        for found in _LABEL.finditer(inner)
    )
