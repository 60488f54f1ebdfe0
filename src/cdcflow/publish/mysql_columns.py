"""MySQL's and MariaDB's types as Debezium's connectors publish them.

The source's knowledge of its types is in `cdcflow/sources/mysql/types`, a module for each family. Their published form
is defined here, because sinks do not depend on sources: it is derived from the type's SQL text and its Arrow type,
which logs store.
"""

from __future__ import annotations

import re

import pyarrow as pa

from cdcflow.model.table import Column
from cdcflow.publish import connect, values
from cdcflow.publish.columns import (
    Encoding,
    Modes,
    by_arrow,
    decimal,
    moment,
    number,
    of_column,
    parse_type,
    text,
    zoned_moment,
)

_UNSIGNED_DIGITS = 20
"""The most digits that a BIGINT UNSIGNED has."""
_LABEL = re.compile(r"'((?:[^']|'')*)'")


def encoding(name: str, column: Column, modes: Modes) -> Encoding:
    """Return how a column is published; `name` is its full name, for errors."""
    return of_column(_encoding(name, column.type.source, column.type.arrow, modes), nullable=column.nullable)


def _encoding(name: str, source: str, arrow: pa.DataType, modes: Modes) -> Encoding:
    if source.startswith(("enum(", "set(")):
        labels = ",".join(label.replace("''", "'") for label in _LABEL.findall(source))
        kind = "io.debezium.data.Enum" if source.startswith("enum") else "io.debezium.data.EnumSet"
        return text(modes, connect.named_schema(connect.STRING, kind, allowed=labels))
    plain, first, _, _ = parse_type(source)
    digits = first or 0
    match plain:
        case "bit" if digits == 1:
            return Encoding(connect.BOOLEAN, values.bit_of_number, None, False)
        case "bit":
            schema = connect.named_schema(connect.BYTES, "io.debezium.data.Bits", length=str(digits))
            return Encoding(schema, values.bits_of_number(digits), None, b"")
        case "bigint unsigned" if modes.bigint_unsigned == "long":
            return number(connect.INT64, values.unsigned_long(name))
        case "bigint unsigned":
            return Encoding(connect.decimal(0, _UNSIGNED_DIGITS), values.unsigned_precise, None, b"\0")
        case "mediumint unsigned":
            return number(connect.INT32, lambda v: v.cast(pa.int32()))
        case "year":
            return number(connect.YEAR, lambda v: v.cast(pa.int32()))
        case "json":
            return text(modes, connect.JSON, neutral="{}")
        case "geometry":
            return Encoding(connect.GEOMETRY, values.geometry, None, {"wkb": b"", "srid": None})
        case "vector":
            schema = connect.named_schema(connect.array(connect.FLOAT), "io.debezium.data.FloatVector")
            return Encoding(schema, values.as_is, None, [])
        case "decimal" | "decimal unsigned" if pa.types.is_decimal(arrow):
            return decimal(arrow, arrow.precision, modes)
    if pa.types.is_timestamp(arrow):
        return moment(digits, modes) if arrow.tz is None else zoned_moment(digits, modes)
    if pa.types.is_duration(arrow):
        if modes.time == "connect":
            return number(connect.CONNECT_TIME, values.duration_millis(name))
        return number(connect.MICRO_TIME, values.micros)
    return by_arrow(arrow, modes)
