"""PostgreSQL's types as Debezium's PostgreSQL connector publishes them."""

from __future__ import annotations

import pyarrow as pa

from cdcflow.model.table import Column
from cdcflow.publish import connect, values
from cdcflow.publish.columns import (
    Encoding,
    Modes,
    by_arrow,
    decimal,
    list_of,
    moment,
    number,
    of_column,
    parse_type,
    text,
    zero,
    zoned_moment,
)
from cdcflow.publish.connect import Schema

BITS_MAX = 2_147_483_647
_NAMED_TEXTS: dict[str, tuple[Schema, str]] = {
    "uuid": (connect.UUID, ""),
    "json": (connect.JSON, ""),
    "jsonb": (connect.JSON, ""),
    "xml": (connect.XML, ""),
    "tsvector": (connect.TSVECTOR, ""),
    "ltree": (connect.LTREE, ""),
}
_EXTENSIONS = ("hstore", "ltree", "citext")


def encoding(column: Column, modes: Modes) -> Encoding:
    """Return how a column is published. The server's name of its type decides; if that is unknown, its Arrow type in
    the log."""
    return of_column(_encoding(column.type.source, column.type.arrow, modes), nullable=column.nullable)


def _encoding(source: str, arrow: pa.DataType, modes: Modes) -> Encoding:
    name, first, second, is_list = parse_type(source)
    if is_list:
        if not pa.types.is_list(arrow):
            return text(modes)
        return list_of(_scalar(name, first, second, arrow.value_type, modes), modes)
    return _scalar(name, first, second, arrow, modes)


def _scalar(name: str, first: int | None, second: int | None, arrow: pa.DataType, modes: Modes) -> Encoding:
    extension = name.rpartition(".")[2]
    if extension in _EXTENSIONS:
        name = extension
    if not pa.types.is_string(arrow):
        return _plain_encoding(name, first, arrow, modes)
    match name:
        case "numeric":
            return _number_text(second if second is not None else 0 if first else None, first, modes)
        case "bit" | "bit varying":
            return _bits(name, first, modes)
        case "time without time zone":
            return _clock(6 if first is None else first, modes)
        case "time with time zone":
            return text(modes, connect.ZONED_TIME, values.zoned_clock, "00:00:00Z")
        case "hstore":
            return text(modes, connect.JSON, values.hstore_json, "{}")
        case "point":
            return Encoding(connect.POINT, values.point, None, values.point_at(0.0, 0.0))
        case _ if name in _NAMED_TEXTS:
            schema, neutral = _NAMED_TEXTS[name]
            return text(modes, schema, neutral=neutral)
        case _:
            return text(modes)


def _plain_encoding(name: str, first: int | None, arrow: pa.DataType, modes: Modes) -> Encoding:
    match name:
        case "money":
            return decimal(arrow, None, modes)
        case "numeric" if pa.types.is_decimal(arrow):
            return decimal(arrow, first or arrow.precision, modes)
        case "timestamp without time zone":
            return moment(6 if first is None else first, modes)
        case "timestamp with time zone":
            return zoned_moment(6 if first is None else first, modes)
        case _:
            return by_arrow(arrow, modes)


def _number_text(scale: int | None, precision: int | None, modes: Modes) -> Encoding:
    """Return the encoding of a `numeric` without precision, or with more than a decimal of the log holds: exact
    text."""
    match modes.decimal:
        case "string":
            return text(modes, convert=values.plain_text_number, neutral=zero(scale or 0))
        case "double":
            return Encoding(connect.DOUBLE, values.text_double, None, 0.0)
        case "precise" if scale is None:
            return Encoding(connect.VARIABLE_SCALE_DECIMAL, values.variable_scale, None, {"scale": 0, "value": b"\0"})
        case "precise":
            assert scale is not None  # noqa: S101  otherwise the previous case
            return Encoding(connect.decimal(scale, precision), values.scaled_text(scale), None, b"\0")


def _bits(name: str, first: int | None, modes: Modes) -> Encoding:
    if name == "bit" and first == 1:
        return Encoding(connect.BOOLEAN, values.bit_of_text, None, False)
    length = BITS_MAX if first is None else first
    schema = connect.named_schema(connect.BYTES, "io.debezium.data.Bits", length=str(length))
    return Encoding(schema, values.bits_of_text, modes.unavailable.encode(), b"")


def _clock(digits: int, modes: Modes) -> Encoding:
    if modes.time == "connect":
        return number(connect.CONNECT_TIME, values.clock_millis)
    if modes.time == "adaptive" and digits <= 3:
        return number(connect.TIME, values.clock_millis)
    return number(connect.MICRO_TIME, values.clock_micros)
