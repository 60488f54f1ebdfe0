"""Determine how a column is published: its schema, the conversion of its values, and the placeholder for an unsent
value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.config import BinaryMode, DecimalMode, IntervalMode, TimeMode, UnsignedMode
from cdcflow.publish import connect, values
from cdcflow.publish.connect import Schema

Convert = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class Modes:
    """Debezium's settings of the same names: they choose between several encodings of a value."""

    decimal: DecimalMode = "precise"
    time: TimeMode = "adaptive"
    binary: BinaryMode = "bytes"
    interval: IntervalMode = "numeric"
    bigint_unsigned: UnsignedMode = "long"
    unavailable: str = "__debezium_unavailable_value"


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a column is published.

    `unavailable` is the placeholder for a value that the source did not send, None if the type has none. `neutral`
    replaces a missing value in a column that is never NULL: in the old row of a delete for which only the key is known.
    """

    schema: Schema
    convert: Convert = values.as_is
    unavailable: object = None
    neutral: object = None


def text(modes: Modes, schema: Schema = connect.STRING, convert: Convert = values.as_is, neutral: str = "") -> Encoding:
    return Encoding(schema, convert, modes.unavailable, neutral)


def number(schema: Schema, convert: Convert = values.as_is) -> Encoding:
    return Encoding(schema, convert, None, 0)


def binary(modes: Modes) -> Encoding:
    match modes.binary:
        case "bytes":
            return Encoding(connect.BYTES, values.as_is, modes.unavailable.encode(), b"")
        case "hex":
            return text(modes, convert=values.hex_of)
        case "base64":
            return text(modes, convert=values.base64_of)
        case "base64-url-safe":
            return text(modes, convert=values.base64_url_of)


def decimal(arrow: pa.DataType, precision: int | None, modes: Modes) -> Encoding:
    """Return the encoding of a number with a scale, which the log stores as a decimal."""
    match modes.decimal:
        case "precise":
            return Encoding(connect.decimal(arrow.scale, precision), values.unscaled_bytes, None, b"\0")
        case "string":
            return text(modes, convert=values.plain_decimal, neutral=zero(arrow.scale))
        case "double":
            return Encoding(connect.DOUBLE, values.decimal_double, None, 0.0)


def zero(scale: int) -> str:
    """Return the text of 0 with this many digits after the point."""
    return f"{0:.{scale}f}"


def moment(digits: int, modes: Modes) -> Encoding:
    """Return the encoding of a date and time without a zone."""
    if modes.time == "connect":
        return number(connect.CONNECT_TIMESTAMP, values.millis)
    return number(connect.TIMESTAMP, values.millis) if digits <= 3 else number(connect.MICRO_TIMESTAMP, values.micros)


def zoned_moment(digits: int, modes: Modes) -> Encoding:
    return text(modes, connect.ZONED_TIMESTAMP, values.utc_text(digits), "1970-01-01T00:00:00Z")


def date(modes: Modes) -> Encoding:
    return number(connect.CONNECT_DATE if modes.time == "connect" else connect.DATE, values.days)


def list_of(inner: Encoding, modes: Modes) -> Encoding:
    """Return the encoding of an array whose elements have an encoding."""

    def convert(lists: pa.Array) -> pa.Array:
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        ends = pa.array([0, *lengths.cumsum()], pa.int32())
        # A NULL array and an empty one differ only in the mask.
        return pa.ListArray.from_arrays(ends, inner.convert(lists.flatten()), mask=lists.is_null())

    placeholder: object = None
    match inner.schema.type:
        case "string" if inner.schema.name in (None, connect.UUID.name):
            placeholder = [modes.unavailable]
        case "int32" | "int64" if inner.schema.name is None:
            placeholder = list(modes.unavailable.encode())
    return Encoding(connect.array(inner.schema), convert, placeholder, [])


def by_arrow(arrow: pa.DataType, modes: Modes) -> Encoding:
    """Return the encoding of a type for which this package has no rule, such as a domain, an enum or an extension's
    type: the type in the log decides."""
    if pa.types.is_boolean(arrow):
        return Encoding(connect.BOOLEAN, neutral=False)
    if pa.types.is_int8(arrow) or pa.types.is_uint8(arrow) or pa.types.is_int16(arrow):
        return number(connect.INT16, lambda v: v.cast(pa.int16()))
    if pa.types.is_int32(arrow) or pa.types.is_uint16(arrow):
        return number(connect.INT32, lambda v: v.cast(pa.int32()))
    if pa.types.is_int64(arrow) or pa.types.is_uint32(arrow):
        return number(connect.INT64, lambda v: v.cast(pa.int64()))
    if pa.types.is_float32(arrow):
        return Encoding(connect.FLOAT, neutral=0.0)
    if pa.types.is_float64(arrow):
        return Encoding(connect.DOUBLE, neutral=0.0)
    if pa.types.is_decimal(arrow):
        return decimal(arrow, arrow.precision, modes)
    if pa.types.is_binary(arrow):
        return binary(modes)
    if pa.types.is_date32(arrow):
        return date(modes)
    if pa.types.is_timestamp(arrow):
        return moment(6, modes) if arrow.tz is None else zoned_moment(6, modes)
    if pa.types.is_list(arrow):
        return list_of(by_arrow(arrow.value_type, modes), modes)
    if pa.types.is_struct(arrow):
        return interval(modes)
    return text(modes)


def interval(modes: Modes) -> Encoding:
    if modes.interval == "string":
        return text(modes, connect.INTERVAL, values.iso_interval, "P0Y0M0DT0H0M0S")
    return number(connect.MICRO_DURATION, values.micro_duration)


def of_column(encoding: Encoding, *, nullable: bool) -> Encoding:
    return encoding if nullable else replace(encoding, schema=encoding.schema.as_required)


_TYPE = re.compile(
    r"^(?P<name>.*?)(?:\((?P<first>\d+)(?:,\s*(?P<second>-?\d+))?\))?(?P<rest>[^()\[\]]*)(?P<lists>\[\])?$"
)


def parse_type(source: str) -> tuple[str, int | None, int | None, bool]:
    """Return a type's text without its numbers, its numbers, and whether it is an array."""
    found = _TYPE.match(source)
    assert found is not None  # noqa: S101  matches anything
    first, second = found["first"], found["second"]
    name = (found["name"] + found["rest"]).strip()
    return name, first and int(first), second and int(second), found["lists"] is not None  # type: ignore[return-value]
