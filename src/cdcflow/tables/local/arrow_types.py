"""Arrow's types by Spark's names for them, as far as tables here have them."""

from __future__ import annotations

import re

import pyarrow as pa

from cdcflow.tables.port import HandOver

TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""Arrow's types by Spark's names for them."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def type_of(text: str) -> pa.DataType:
    """Return Arrow's type for Spark's text of it. HandOver: there is no such type here."""
    if text in TYPES:
        return TYPES[text]
    if (decimal := _DECIMAL.fullmatch(text)) is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if text.startswith("array<"):
        return pa.list_(type_of(text[len("array<") : -1]))
    raise HandOver(f"it has a column of type {text}")
