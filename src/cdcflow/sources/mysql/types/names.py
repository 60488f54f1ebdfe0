"""Types by the names that users write, without a server: `decimal(12,2)`, `bigint unsigned`, `enum('a','b')`."""

from __future__ import annotations

import re

from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.mysql.types.columns import UTF8_COLLATION, CatalogColumn, Policy
from cdcflow.sources.mysql.types.registry import FAMILIES, codec_of, server_column

_SHORT = {
    "integer": "int",
    "bool": "tinyint",
    "boolean": "tinyint",
    "numeric": "decimal",
    "dec": "decimal",
    "real": "double",
    "double precision": "double",
}
_TYPE = re.compile(r"([a-z][a-z0-9_ ]*?)\s*(?:\((.*)\))?(\s+(?:unsigned|zerofill|signed))*", re.DOTALL)
_NUMBERS = re.compile(r"\s*(\d+)\s*(?:,\s*(\d+)\s*)?")
_DECIMAL = (10, 0)
"""Precision and scale of `decimal` alone."""
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")


def column_type(table: TableId, column: str, text: str, policy: Policy, *, is_mariadb: bool = False) -> ColumnType:
    """Return the type in the log of a column that has this type at the source.

    Raises:
        ConfigurationError: the policy of the settings does not fit the type, or the type is not captured.
        ValueError: cdcflow does not know the name; the message suggests the nearest one.
    """
    given = text.strip()
    found = _TYPE.fullmatch(given) or _TYPE.fullmatch(given.lower())
    if found is None:
        raise ValueError(f'"{text}" is not the name of a type')
    base = _SHORT.get(found[1], found[1])
    known = {name for family in FAMILIES for name in family.names}
    if base not in known:
        raise ValueError(
            f'"{found[1]}" is not a type that cdcflow knows; {did_you_mean(found[1], known | _SHORT.keys())}'.rstrip(
                "; "
            )
        )
    numbers = _NUMBERS.fullmatch(found[2] or "")
    first = int(numbers[1]) if numbers else None
    second = int(numbers[2]) if numbers and numbers[2] else None
    precision, scale = (first, second or 0) if first is not None else _DECIMAL
    described = CatalogColumn(
        name=column,
        nullable="YES",
        type=base,
        full_type=given,
        octets=None if first is None else first * (1 if base in ("binary", "varbinary") else 4),
        precision=(first or 1) if base == "bit" else precision,
        scale=scale,
        fraction=first or 0,
        collation="utf8mb4" if base in _TEXTS else None,
        extra="",
    )
    server = server_column(described, {"utf8mb4": UTF8_COLLATION}, is_mariadb=is_mariadb)
    codec = codec_of(server, table, policy)
    return ColumnType(codec.where.type_text, codec.arrow)
