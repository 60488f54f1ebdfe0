"""Convert values of the change log to Debezium's plain types, a column at a time.

Every function takes the column as the log stores it and keeps NULL as NULL. Conversions that need a loop over values
(text of composite types, dates outside Python's range) are done by `_each`, and only for the values that need it.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.publish.base64_text import of_parts

DAY_US = 86_400_000_000
MONTH_US = 2_629_800_000_000
"""A twelfth of 365.25 days: the length of an interval's month in Debezium."""
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d)(?:\.(\d+))?([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")


def as_is(values: pa.Array) -> pa.Array:
    return values


def _each(values: pa.Array, kind: pa.DataType, of: Callable[..., object]) -> pa.Array:
    return pa.array([None if v is None else of(v) for v in values.to_pylist()], kind)


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


def unscaled_bytes(values: pa.Array) -> pa.Array:
    """Return a decimal's unscaled number: two's complement, big-endian, in as few bytes as possible."""
    width = values.type.byte_width
    raw = np.frombuffer(values.buffers()[1] or b"", np.uint8).reshape(-1, width)
    cells = raw[values.offset : values.offset + len(values), ::-1]
    # A leading byte is redundant if it only repeats the sign bit of the next one.
    sign = np.where(cells[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    idle = (cells[:, :-1] == sign) & ((cells[:, 1:] & 0x80) == (sign & 0x80))
    skipped = np.cumprod(idle, axis=1).sum(axis=1, dtype=np.int64)
    kept = np.arange(width) >= skipped[:, None]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(width - skipped)])
    return of_parts(ends, cells[kept], values).cast(pa.binary())


def plain_decimal(values: pa.Array) -> pa.Array:
    """Return a decimal's digits, never with an exponent."""
    texts = values.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    return _each(values, pa.string(), lambda v: format(v, "f"))


def number_bytes(number: int) -> bytes:
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


VARIABLE_SCALE = pa.struct([("scale", pa.int32()), ("value", pa.binary())])


def variable_scale(values: pa.Array) -> pa.Array:
    """Return numbers in text form, each with its own scale. NaN and infinities have no scale and become NULL."""

    def scale_and_value(text: str) -> dict[str, object] | None:
        scale, number = _exact(text)
        return None if number is None else {"scale": scale, "value": number_bytes(number)}

    return _each(values, VARIABLE_SCALE, scale_and_value)


_NO_NUMBERS = frozenset(("NaN", "Infinity", "-Infinity"))


def _exact(text: str) -> tuple[int, int | None]:
    """Return the number of digits after the point, and the unscaled number."""
    if text in _NO_NUMBERS:
        return 0, None
    whole, _, fraction = text.partition(".")
    digits = whole + fraction
    # Above some number of digits Python converts only a Decimal to an int.
    return len(fraction), int(digits) if len(digits) < 4000 else int(Decimal(digits))


def scaled_text(scale: int) -> Callable[[pa.Array], pa.Array]:
    """Return a function that converts numbers in text form, whose column has this scale, to unscaled numbers."""

    def unscaled_number(text: str) -> bytes | None:
        own, number = _exact(text)
        return None if number is None else number_bytes(number * 10 ** (scale - own))

    return lambda values: _each(values, pa.binary(), unscaled_number)


def text_double(values: pa.Array) -> pa.Array:
    return _each(values, pa.float64(), float)


def decimal_double(values: pa.Array) -> pa.Array:
    return values.cast(pa.float64())


def plain_text_number(values: pa.Array) -> pa.Array:
    """Return the server's text of a number, without an exponent."""
    return _each(values, pa.string(), lambda v: v if v[-1].isalpha() else format(Decimal(v), "f"))


def unsigned_long(name: str) -> Callable[[pa.Array], pa.Array]:
    """Return a function that converts unsigned numbers of 64 bits to signed ones. It raises an error with the column's
    name if one does not fit."""

    def convert(values: pa.Array) -> pa.Array:
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid:
            raise ConfigurationError(
                f"publishing column {name}: a value does not fit into int64",
                remedy="set publish.kafka.bigint_unsigned_handling_mode: precise",
                runbook="value-not-representable",
            ) from None

    return convert


def unsigned_precise(values: pa.Array) -> pa.Array:
    return unscaled_bytes(values.cast(pa.decimal128(20, 0)))


# ── bytes and bits ──────────────────────────────────────────────────────────────────────────────────────────


def base64_of(values: pa.Array) -> pa.Array:
    return _each(values, pa.string(), lambda v: base64.b64encode(v).decode())


def base64_url_of(values: pa.Array) -> pa.Array:
    return _each(values, pa.string(), lambda v: base64.urlsafe_b64encode(v).decode())


def hex_of(values: pa.Array) -> pa.Array:
    return _each(values, pa.string(), bytes.hex)


def bits_of_text(values: pa.Array) -> pa.Array:
    """Return texts of 0 and 1 as bytes, least significant first, as few as possible."""

    def bits(text: str) -> bytes:
        number = int(text, 2) if text else 0
        return number.to_bytes((number.bit_length() + 7) // 8, "little")

    return _each(values, pa.binary(), bits)


def bits_of_number(length: int) -> Callable[[pa.Array], pa.Array]:
    size = (length + 7) // 8
    return lambda values: _each(values, pa.binary(), lambda v: v.to_bytes(size, "little"))


def bit_of_text(values: pa.Array) -> pa.Array:
    return pc.equal(values, "1")


def bit_of_number(values: pa.Array) -> pa.Array:
    return pc.not_equal(values, pa.scalar(0, values.type))


# ── times ───────────────────────────────────────────────────────────────────────────────────────────────────


def days(values: pa.Array) -> pa.Array:
    return values.view(pa.int32())


def micros(values: pa.Array) -> pa.Array:
    """Return timestamps in microseconds since 1970, or durations in microseconds."""
    return values.view(pa.int64())


def millis(values: pa.Array) -> pa.Array:
    """Return timestamps in milliseconds since 1970, rounded down."""
    return _floor_divide(values.view(pa.int64()), 1000)


def _floor_divide(numbers: pa.Array, by: int) -> pa.Array:
    found = pa.array(numbers.fill_null(0).to_numpy(zero_copy_only=False) // by)
    return pc.if_else(numbers.is_valid(), found, pa.scalar(None, pa.int64())) if numbers.null_count else found


def utc_text(digits: int) -> Callable[[pa.Array], pa.Array]:
    """Return a function that formats timestamps as ISO 8601 in UTC with `digits` fractional digits of the second."""

    def convert(values: pa.Array) -> pa.Array:
        numbers = values.view(pa.int64())
        far = pc.or_(pc.less(numbers, _YEAR_1), pc.greater_equal(numbers, _YEAR_10000))
        if pc.any(far).as_py():
            return _each(numbers, pa.string(), lambda v: _moment(v, digits))
        texts = pc.replace_substring(numbers.view(pa.timestamp("us")).cast(pa.string()), " ", "T")
        if digits < 6:
            texts = pc.utf8_slice_codeunits(texts, 0, 19 + digits + (digits > 0))
        return pc.binary_join_element_wise(texts, "Z", "")

    return convert


def _moment(us: int, digits: int) -> str:
    """Return the text of any timestamp of the proleptic calendar. A year beyond 9999 has a sign, as ISO 8601
    requires."""
    day, rest = divmod(us, DAY_US)
    era, day_of_era = divmod(day + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    date = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (month <= 2)
    text = f"+{year}" if year > 9999 else f"{year:04d}" if year >= 0 else f"-{-year:04d}"
    second, fraction = divmod(rest, 1_000_000)
    after = f".{fraction:06d}"[: digits + 1] if digits else ""
    return f"{text}-{month:02d}-{date:02d}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{after}Z"


def clock_micros(values: pa.Array) -> pa.Array:
    """Return times of day, given as the server prints them, in microseconds since midnight."""

    def two(at: int) -> pa.Array:
        return pc.utf8_slice_codeunits(values, at, at + 2).cast(pa.int64())

    second = pc.add(pc.multiply(pc.add(pc.multiply(two(0), 60), two(3)), 60), two(6))
    fraction = pc.utf8_rpad(pc.utf8_slice_codeunits(values, 9), 6, "0").cast(pa.int64())
    return pc.add(pc.multiply(second, 1_000_000), fraction)


def clock_millis(values: pa.Array) -> pa.Array:
    return _floor_divide(clock_micros(values), 1000).cast(pa.int32())


def duration_millis(name: str) -> Callable[[pa.Array], pa.Array]:
    """Return a function that converts times to Connect's Time, which must be within a day. It raises an error with the
    column's name for any other time."""

    def convert(values: pa.Array) -> pa.Array:
        numbers = values.view(pa.int64())
        if pc.any(pc.or_(pc.less(numbers, 0), pc.greater(numbers, DAY_US))).as_py():
            raise ConfigurationError(
                f"publishing column {name}: a value is not a time of day, and Connect's Time holds nothing else",
                remedy="set publish.kafka.time_precision_mode: adaptive_time_microseconds",
                runbook="value-not-representable",
            )
        return _floor_divide(numbers, 1000).cast(pa.int32())

    return convert


def zoned_clock(values: pa.Array) -> pa.Array:
    """Return times of day with an offset, converted to UTC."""

    def utc_clock(text: str) -> str:
        found = _CLOCK.fullmatch(text)
        assert found is not None  # noqa: S101  the server's own text
        hour, minute, second, fraction, sign, *offset = found.groups()
        away = sum(int(n or 0) * by for n, by in zip(offset, (3600, 60, 1), strict=True))
        at = (int(hour) * 60 + int(minute)) * 60 + int(second) - (away if sign == "+" else -away)
        at %= 86_400
        rest = f".{fraction.rstrip('0')}" if fraction and fraction.strip("0") else ""
        return f"{at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}{rest}Z"

    return _each(values, pa.string(), utc_clock)


def micro_duration(values: pa.Array) -> pa.Array:
    """Return intervals in microseconds; a month counts as a twelfth of 365.25 days.

    Raises:
        ConfigurationError: one does not fit into 64 bits.
    """
    months, day, us = (values.field(i).cast(pa.int64()) for i in range(3))
    try:
        total = pc.add_checked(
            pc.add_checked(pc.multiply_checked(months, MONTH_US), pc.multiply_checked(day, DAY_US)), us
        )
    except pa.ArrowInvalid:
        raise ConfigurationError(
            "publishing an interval: its microseconds do not fit into int64",
            remedy="set publish.kafka.interval_handling_mode: string",
            runbook="value-not-representable",
        ) from None
    return pc.if_else(values.is_valid(), total, pa.scalar(None, pa.int64())) if values.null_count else total


def iso_interval(values: pa.Array) -> pa.Array:
    def interval_text(value: dict[str, int]) -> str:
        months, rest = value["months"], value["microseconds"]
        sign = -1 if rest < 0 else 1
        second, fraction = divmod(abs(rest), 1_000_000)
        years, month = (abs(months) // 12 * (-1 if months < 0 else 1), abs(months) % 12 * (-1 if months < 0 else 1))
        hours, minutes = sign * (second // 3600), sign * (second // 60 % 60)
        seconds = Decimal(sign * (second % 60 * 1_000_000 + fraction)) / 1_000_000
        text = format(seconds.normalize() if fraction else seconds, "f")
        return f"P{years}Y{month}M{value['days']}DT{hours}H{minutes}M{text}S"

    return _each(values, pa.string(), interval_text)


# ── texts of composite types ────────────────────────────────────────────────────────────────────────────────

_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")')
_BACKSLASHED = re.compile(r"\\(.)", re.DOTALL)


def hstore_json(values: pa.Array) -> pa.Array:
    """Return the texts of hstores as JSON objects of texts."""
    import json

    def as_json(text: str) -> str:
        pairs = {
            _BACKSLASHED.sub(r"\1", k): None if v is None else _BACKSLASHED.sub(r"\1", v)
            for k, v in ((m[1], m[2]) for m in _PAIR.finditer(text))
        }
        return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))

    return _each(values, pa.string(), as_json)


POINT = pa.struct([("x", pa.float64()), ("y", pa.float64()), ("wkb", pa.binary()), ("srid", pa.int32())])
GEOMETRY = pa.struct([("wkb", pa.binary()), ("srid", pa.int32())])
_HAS_SRID = 0x20
"""The flag of EWKB for a value that has an SRID, in the last byte of the value's little-endian type."""


def point_at(x: float, y: float) -> dict[str, object]:
    return {"x": x, "y": y, "wkb": struct.pack("<BIdd", 1, 1, x, y), "srid": None}


def point(values: pa.Array) -> pa.Array:
    """Return points, given as texts, as coordinates and as WKB."""

    def coordinates(text: str) -> dict[str, object]:
        x, y = text.strip("()").split(",")
        return point_at(float(x), float(y))

    return _each(values, POINT, coordinates)


def geometry(values: pa.Array) -> pa.Array:
    """Return EWKB (little-endian) as WKB and its SRID, which is NULL if there is none."""

    def wkb_and_srid(value: bytes) -> dict[str, object]:
        if value[4] & _HAS_SRID == 0:
            return {"wkb": value, "srid": None}
        kind, srid = struct.unpack_from("<Ii", value, 1)
        return {"wkb": value[:1] + struct.pack("<I", kind & ~(_HAS_SRID << 24)) + value[9:], "srid": srid}

    return _each(values, GEOMETRY, wkb_and_srid)
