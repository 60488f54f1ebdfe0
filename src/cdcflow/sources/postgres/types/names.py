"""Types by the names that users write, without a server: `numeric(12,2)`, `timestamptz`, `text[]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.types.decimals import NUMERIC_OID
from cdcflow.sources.postgres.types.describe import AttributeInfo, Policy, arrow_type

_OIDS: Mapping[str, int] = {
    "boolean": 16,
    "bytea": 17,
    "name": 19,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": 25,
    "oid": 26,
    "json": 114,
    "real": 700,
    "double precision": 701,
    "money": 790,
    "character": 1042,
    "character varying": 1043,
    "date": 1082,
    "time without time zone": 1083,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "interval": 1186,
    "time with time zone": 1266,
    "bit": 1560,
    "bit varying": 1562,
    "numeric": NUMERIC_OID,
    "uuid": 2950,
    "jsonb": 3802,
    "inet": 869,
    "cidr": 650,
    "xml": 142,
    "citext": 0,
}
"""The types by the names that `format_type` prints, and their OIDs; 0: an extension's, which the log has as text."""

_SHORT: Mapping[str, str] = {
    "bool": "boolean",
    "int": "integer",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "serial": "integer",
    "bigserial": "bigint",
    "float4": "real",
    "float8": "double precision",
    "decimal": "numeric",
    "char": "character",
    "varchar": "character varying",
    "time": "time without time zone",
    "timetz": "time with time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "varbit": "bit varying",
}
_TYPE = re.compile(
    r"([a-z_][a-z0-9_ ]*?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?(\s+with(?:out)? time zone)?((?:\[\])*)"
)


@dataclass(frozen=True, slots=True)
class _Name:
    """A type's name as `format_type` prints it, without brackets of an array."""

    text: str
    oid: int
    modifier: int


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as users write it: its name as `format_type` prints it, the numbers in its parentheses, and `[]`."""

    base: str
    modifiers: tuple[int, ...]
    brackets: bool

    @property
    def digits(self) -> tuple[int, int]:
        """The precision and scale in its parentheses."""
        precision, scale, *_ = (*self.modifiers, 0, 0)
        return precision, scale


def type_name(text: str) -> TypeName | None:
    """Return the parts of a type's name; None if cdcflow does not know it."""
    found = _TYPE.fullmatch(" ".join(text.lower().split()))
    if found is None:
        return None
    base, first, second, zone, brackets = found.groups()
    base = _long_name(base + (zone or ""))
    if base not in _OIDS:
        return None
    return TypeName(base, tuple(int(n) for n in (first, second) if n is not None), bool(brackets))


def column_type(table: TableId, column: str, text: str, policy: Policy) -> ColumnType:
    """Return the type in the log of a column that has this type at the source.

    Raises:
        ConfigurationError: the policy of the settings does not fit the type.
        ValueError: cdcflow does not know the name; the message suggests the most similar one.
    """
    found = _TYPE.fullmatch(" ".join(text.lower().split()))
    if found is None:
        raise ValueError(f'"{text}" is not the name of a type')
    base, first, second, zone, brackets = found.groups()
    one = _scalar(base + (zone or ""), first, second)
    if brackets:
        attribute = AttributeInfo(
            column, 1, 0, -1, one.text + "[]", element_oid=one.oid or 25, element_modifier=one.modifier
        )
    else:
        attribute = AttributeInfo(column, 1, one.oid, one.modifier, one.text, base_modifier=one.modifier)
    return ColumnType(attribute.type_text, arrow_type(attribute, table, policy))


def _long_name(base: str) -> str:
    has_zone = any(base.startswith(f"{short} with") for short in ("timestamp", "time"))
    return base if has_zone else _SHORT.get(base, base)


def _scalar(base: str, first: str | None, second: str | None) -> _Name:
    name = _long_name(base)
    if name not in _OIDS:
        raise ValueError(
            f'"{base}" is not the name of a type that cdcflow knows; {did_you_mean(base, {*_OIDS, *_SHORT})}'
            "an enum, a domain or a type of an extension is captured as text"
        )
    if first is None:
        return _Name(name, _OIDS[name], -1)
    if name == "numeric":
        scale = int(second or 0)
        return _Name(f"numeric({first},{scale})", NUMERIC_OID, (int(first) << 16 | scale) + 4)
    head, gap, zone = name.partition(" with")
    return _Name(f"{head}({first}){gap}{zone}", _OIDS[name], -1)
