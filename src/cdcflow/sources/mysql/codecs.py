"""Which Arrow type each column becomes, and who decodes its values on both paths: the one table of both.

Backfill and stream must give the same value for the same row, so both take their decoder from here. A chunk's SELECT
asks for an expression that carries all of the value: text in the column's own character set, so that both paths decode
the same bytes, and floats as doubles.

`docs/mysql-types.md` is this table for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.mysql import charsets, decimals, json_text, numbers, special, temporal
from cdcflow.sources.mysql.charsets import Charset, charset_of
from cdcflow.sources.mysql.sql import quoted
from cdcflow.sources.mysql.types import BINARY_COLLATION, Policy, ServerColumn, TypeCode, type_text
from cdcflow.sources.mysql.values import Decoder, Where

_TEMPORAL = (TypeCode.DATE, TypeCode.DATETIME, TypeCode.TIMESTAMP)
_OLD = {
    TypeCode.TIMESTAMP_OLD: "a timestamp",
    TypeCode.TIME_OLD: "a time",
    TypeCode.DATETIME_OLD: "a datetime",
    TypeCode.DECIMAL_OLD: "a decimal",
}
_INTEGERS = {
    TypeCode.TINY: (pa.int8(), pa.uint8(), "i1"),
    TypeCode.SHORT: (pa.int16(), pa.uint16(), "i2"),
    TypeCode.LONG: (pa.int32(), pa.uint32(), "i4"),
    TypeCode.LONGLONG: (pa.int64(), pa.uint64(), "i8"),
    TypeCode.INT24: (pa.int32(), pa.uint32(), ""),
}
_FLOATS = {TypeCode.FLOAT: (pa.float32(), "<f4"), TypeCode.DOUBLE: (pa.float64(), "<f8")}


@dataclass(frozen=True, slots=True)
class Codec:
    """How one column's values become Arrow.

    In a row image a value takes `width` bytes, or has `prefix` bytes of length before it (then `width` is 0). `image`
    decodes such values, `result` what a SELECT of the column's expression brings. `form` names the decoders of both
    for the compiled decoder, with a number that each of them needs; empty where it has none.
    """

    where: Where
    arrow: pa.DataType
    width: int
    prefix: int
    image: Decoder
    result: Decoder
    form: str = ""
    number: int = 0


def codec_of(column: ServerColumn, table: TableId, policy: Policy) -> Codec:
    """The codec of a column.

    Raises:
        ConfigurationError: the type is not captured, or the policy is not one that it knows.
    """
    name = f"{table}.{column.name}"
    where = _where(column, name, policy)
    code = column.type_code
    if code in _OLD:
        raise ConfigurationError(
            f"column {name} is {_OLD[TypeCode(code)]} in the format of servers before 5.6.4",
            remedy=f"run ALTER TABLE {table} FORCE, which writes it in today's format, then start again",
        )
    if column.extra in _EXTRAS:
        return _extra(column, where)
    if code in _INTEGERS:
        return _integer(column, where)
    if code in _FLOATS:
        return _float(column, where)
    if code in _TEMPORAL or code == TypeCode.TIME:
        return _moment(column, where)
    if code in (TypeCode.ENUM, TypeCode.SET):
        return _labelled(column, where)
    if code == TypeCode.DECIMAL:
        arrow = decimals.arrow_of(column.metadata & 0xFF, column.metadata >> 8)
        width = decimals.width_of(arrow.precision, arrow.scale)
        image, result = partial(decimals.from_image, arrow), partial(decimals.from_text, arrow)
        return Codec(where, arrow, width, 0, image, result, "decimal", arrow.precision << 8 | arrow.scale)
    if code == TypeCode.BIT:
        width = (column.metadata >> 8) + (column.metadata & 0xFF > 0)
        decode = partial(numbers.bits, width)
        return Codec(where, pa.uint64(), width, 0, decode, decode, "bits", width)
    if code == TypeCode.YEAR:
        return Codec(where, pa.int16(), 1, 0, numbers.year, partial(numbers.number_text, pa.int16()), "year")
    if code == TypeCode.JSON:
        utf8 = partial(charsets.text, charset_of(45))
        return Codec(where, pa.string(), 0, column.metadata, json_text.text, utf8, "json")
    if code == TypeCode.GEOMETRY:
        return Codec(where, pa.binary(), 0, column.metadata, special.well_known, special.well_known)
    if code == TypeCode.VECTOR:
        return Codec(where, special.VECTOR, 0, column.metadata, special.vector, special.vector)
    if code in _PREFIXES:
        return _bytes(column, where)
    raise ConfigurationError(
        f"column {name} has the type number {code}, which cdcflow does not know",
        remedy="leave the table out of source.tables",
    )


def check_key(column: ServerColumn, where: Where, policy: Policy) -> None:
    """A column of a key, with what its codec says of values that have no place in its type.

    Raises:
        ConfigurationError: the policy would make keys of different rows one.
    """
    if column.type_code in _TEMPORAL and where.zero_dates == "null":
        setting, found, instead = "zero_dates", "null", "text"
    elif _charset(column) is not None and where.bad_text == "replace":
        setting, found, instead = "bad_text", "replace", "stop"
    else:
        return
    said = f"source.columns says {found} for it" if where.column in policy.columns else f"source.{setting} is {found}"
    raise ConfigurationError(
        f"{where} is part of the table's key, and {said}: rows whose keys differ in such values only would become one "
        "row",
        remedy=f"in cdcflow.yaml set source.columns to {{{where.column}: {instead}}}",
    )


def select_expression(column: ServerColumn) -> str:
    """What a chunk's SELECT asks for so that no bit of this column's values is lost on the way.

    Text comes in its own character set, because a conversion would put `?` for what it cannot convert. A FLOAT is
    printed with six digits, a double with all; subtracting zero keeps the sign of zero (hard case N21).
    """
    name = quoted(column.name)
    if column.type_code in _FLOATS:
        return f"{name} - 0e0"
    if column.type_code in _PREFIXES and not column.extra and _charset(column) not in (None, charset_of(45)):
        return f"CONVERT({name} USING binary)"
    return name


def _where(column: ServerColumn, name: str, policy: Policy) -> Where:
    charset = _charset(column)
    text = type_text(column, charset.bytes_max if charset else 1)
    own = policy.columns.get(name)
    if own is None:
        return Where(name, text, policy.zero_dates, policy.bad_text)
    if column.type_code in _TEMPORAL and own in ("stop", "null", "text"):
        return Where(name, text, own, policy.bad_text)  # type: ignore[arg-type]  # tested just now
    if charset is not None and own in ("stop", "replace"):
        return Where(name, text, policy.zero_dates, own)  # type: ignore[arg-type]  # tested just now
    raise ConfigurationError(
        f"column {name} is a {text}, for which source.columns does not know {own!r}",
        remedy="use stop, null or text for a date, datetime or timestamp, and stop or replace for text",
    )


def _charset(column: ServerColumn) -> Charset | None:
    """The character set of text; None for what is no text."""
    if column.collation is None or column.collation == BINARY_COLLATION or column.type_code not in _PREFIXES:
        return None
    return charset_of(column.collation)


def _integer(column: ServerColumn, where: Where) -> Codec:
    signed, unsigned, kind = _INTEGERS[TypeCode(column.type_code)]
    arrow = unsigned if column.unsigned else signed
    result = partial(numbers.number_text, arrow)
    if not kind:
        return Codec(where, arrow, 3, 0, partial(numbers.medium, arrow), result, "medium", not column.unsigned)
    image = partial(numbers.integer, f"<{'u' if column.unsigned else 'i'}{kind[1]}", arrow)
    return Codec(
        where, arrow, int(kind[1]), 0, image, result, "unsigned" if column.unsigned else "signed", int(kind[1])
    )


def _float(column: ServerColumn, where: Where) -> Codec:
    arrow, kind = _FLOATS[TypeCode(column.type_code)]
    width = int(kind[2])
    result = numbers.float_text if width == 4 else partial(numbers.number_text, arrow)
    return Codec(where, arrow, width, 0, partial(numbers.integer, kind, arrow), result, "float", width)


def _moment(column: ServerColumn, where: Where) -> Codec:
    code, digits = column.type_code, column.metadata
    as_text = where.zero_dates == "text"
    utf8 = partial(charsets.text, charset_of(45))
    if code == TypeCode.DATE:
        if as_text:
            return Codec(where, pa.string(), 3, 0, temporal.date_as_text, utf8)
        return Codec(where, temporal.DATE, 3, 0, temporal.date, temporal.date_text, "date")
    fraction = temporal.fraction_width(digits)
    if code == TypeCode.TIME:
        image, result = partial(temporal.time, digits), partial(temporal.time_text, digits)
        return Codec(where, temporal.TIME, 3 + fraction, 0, image, result, "time", digits)
    if code == TypeCode.DATETIME:
        if as_text:
            return Codec(where, pa.string(), 5 + fraction, 0, partial(temporal.datetime_as_text, digits), utf8)
        image, result = partial(temporal.datetime, digits), partial(temporal.datetime_text, digits)
        return Codec(where, temporal.DATETIME, 5 + fraction, 0, image, result, "datetime", digits)
    if as_text:
        return Codec(where, pa.string(), 4 + fraction, 0, partial(temporal.timestamp_as_text, digits), utf8)
    image, result = partial(temporal.timestamp, digits), partial(temporal.timestamp_text, digits)
    return Codec(where, temporal.TIMESTAMP, 4 + fraction, 0, image, result, "timestamp", digits)


def _labelled(column: ServerColumn, where: Where) -> Codec:
    decode = numbers.enum_label if column.type_code == TypeCode.ENUM else numbers.set_labels
    image = partial(decode, column.metadata, column.labels)
    form = "enum" if column.type_code == TypeCode.ENUM else "set"
    return Codec(
        where, pa.string(), column.metadata, 0, image, partial(charsets.text, charset_of(45)), form, column.metadata
    )


_PREFIXES = (
    TypeCode.CHAR,
    TypeCode.VARCHAR,
    TypeCode.BLOB,
    TypeCode.VARCHAR_COMPRESSED,
    TypeCode.BLOB_COMPRESSED,
)


def _prefix(column: ServerColumn) -> int:
    if column.type_code in (TypeCode.BLOB, TypeCode.BLOB_COMPRESSED):
        return column.metadata
    return 1 if column.metadata < 256 else 2


def _bytes(column: ServerColumn, where: Where) -> Codec:
    """CHAR, VARCHAR, TEXT and the three of bytes, COMPRESSED or not."""
    charset = _charset(column)
    arrow, form, width = (pa.string(), f"text {charset.name}", 0) if charset else (pa.binary(), "bytes", 0)
    plain: Decoder = partial(charsets.text, charset) if charset else special.raw
    if charset is None and column.type_code == TypeCode.CHAR:
        plain, form, width = partial(special.fixed, column.metadata), "fixed", column.metadata
    image = plain
    if column.type_code in (TypeCode.VARCHAR_COMPRESSED, TypeCode.BLOB_COMPRESSED):
        image, form = partial(special.inflated, plain), ""
    return Codec(where, arrow, 0, _prefix(column), image, plain, form, width)


def _extra(column: ServerColumn, where: Where) -> Codec:
    """MariaDB's types that the binary log shows as strings of bytes."""
    image = _EXTRAS[column.extra]
    utf8 = partial(charsets.text, charset_of(45))
    if column.extra == "vector":
        return Codec(where, special.VECTOR, 0, _prefix(column), image, image)
    return Codec(where, pa.string(), 0, _prefix(column), image, utf8)


_EXTRAS: dict[str, Decoder] = {
    "uuid": special.uuid_text,
    "inet4": special.inet4,
    "inet6": special.inet6,
    "vector": special.vector,
}
