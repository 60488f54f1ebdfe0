"""DATE, DATETIME, TIMESTAMP and TIME: from row images and from the server's text.

Row images store them in parts, packed into bits (MySQL's `my_time.cc`, since 5.6.4):

    DATE       3 bytes, little-endian:  year 15 │ month 4 │ day 5
    DATETIME   5 bytes, big-endian:     1 │ year * 13 + month 17 │ day 5 │ hour 5 │ minute 6 │ second 6
    TIMESTAMP  4 bytes, big-endian:     seconds since 1970, UTC
    TIME       3 bytes, big-endian:     800000 and above: hour 10 │ minute 6 │ second 6; below: the same, negative

and after the last three a fraction of (digits + 1) // 2 bytes. A TIME with its fraction is one number, so that in a
negative one both parts are negative (hard case N04).

A date with a zero year, month or day, or with a day that its month does not have, does not exist in the calendar (N02):
stop, NULL, or the whole column as the server's text, by `Where.zero_dates`.

Compiled kernels (`compiled/values.pxi`): the forms `date`, `datetime`, `timestamp` and `time` have the kernels DATE,
DATETIME, TIMESTAMP and TIME, and in result sets DATE_TEXT, MOMENT_TEXT and TIME_TEXT. A column that is read as the
server's text has no kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import Bools, Bytes, Cells, fixed_text
from cdcflow.sources.engine.numbers import DAY_US, clock_parts, days_since_1970, time_us, write_digits
from cdcflow.sources.mysql.types import row_texts
from cdcflow.sources.mysql.types.charsets import utf8
from cdcflow.sources.mysql.types.columns import CatalogColumn, ServerColumn, TypeCode, not_captured
from cdcflow.sources.mysql.types.family import Codec, RowText, TypeFamily, Where, unreadable, valid_text

DATE = pa.date32()
DATETIME = pa.timestamp("us")
TIMESTAMP = pa.timestamp("us", tz="UTC")
TIME = pa.duration("us")

_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0], np.int64)
_ZERO = ord("0")


@dataclass(frozen=True, slots=True)
class Moments:
    """A column's dates and times in parts. `us` is the fraction in microseconds, whatever its number of digits."""

    year: Int64s
    month: Int64s
    day: Int64s
    hour: Int64s
    minute: Int64s
    second: Int64s
    us: Int64s

    def in_calendar(self) -> Bools:
        return (self.year > 0) & (self.month > 0) & (self.day > 0) & (self.day <= _days_in(self.year, self.month))

    def days(self) -> Int64s:
        return days_since_1970(self.year, self.month, self.day)

    def time_us(self) -> Int64s:
        return time_us(self.hour, self.minute, self.second, self.us)


def _days_in(year: Int64s, month: Int64s) -> Int64s:
    leap = (month == 2) & (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    return np.asarray(_MONTH_DAYS[month & 15] + leap)


def fraction_width(digits: int) -> int:
    """The number of bytes of a fraction with this many digits."""
    return (digits + 1) // 2


def date(cells: Cells, where: Where) -> pa.Array:
    return _dates(_date_image(cells), cells, where)


def date_text(cells: Cells, where: Where) -> pa.Array:
    return _dates(_date_digits(cells, where), cells, where)


def datetime(digits: int, cells: Cells, where: Where) -> pa.Array:
    return _moments(_datetime_image(digits, cells), DATETIME, cells, where)


def datetime_text(digits: int, cells: Cells, where: Where) -> pa.Array:
    return _moments(_moment_digits(digits, cells, where), DATETIME, cells, where)


def timestamp(digits: int, cells: Cells, where: Where) -> pa.Array:
    """Decode seconds since 1970. All zeros mean 0000-00-00 00:00:00, so the earliest time that a column can hold is one
    tick after 1970 began."""
    us = _seconds_us(digits, cells)
    return _within_calendar(us, us != 0, TIMESTAMP, cells, where)


def timestamp_text(digits: int, cells: Cells, where: Where) -> pa.Array:
    """Decode a TIMESTAMP's text. The session's time zone must be +00:00."""
    return _moments(_moment_digits(digits, cells, where), TIMESTAMP, cells, where)


def date_as_text(cells: Cells, where: Where) -> pa.Array:
    """Return a row image's date as the server prints it, whether or not it exists in the calendar."""
    return fixed_text(_date_letters(_date_image(cells)), cells.valid)


def datetime_as_text(digits: int, cells: Cells, where: Where) -> pa.Array:
    return fixed_text(_letters(_datetime_image(digits, cells), digits), cells.valid)


def timestamp_as_text(digits: int, cells: Cells, where: Where) -> pa.Array:
    us = _seconds_us(digits, cells)
    days, rest = np.divmod(us, DAY_US)
    seconds, fraction = np.divmod(rest, 1_000_000)
    year, month, day = _civil(days)
    zero = us == 0
    year, month, day = (np.where(zero, 0, part) for part in (year, month, day))
    moments = Moments(year, month, day, seconds // 3600, seconds // 60 % 60, seconds % 60, fraction)
    return fixed_text(_letters(moments, digits), cells.valid)


def time(digits: int, cells: Cells, where: Where) -> pa.Array:
    width = fraction_width(digits)
    packed = cells.big_endian(3 + width) - (0x800000 << 8 * width)
    size = np.abs(packed)
    seconds, us = size >> 8 * width, _fraction_us(size & ((1 << 8 * width) - 1), width)
    hour, minute, second = seconds >> 12, seconds >> 6 & 63, seconds & 63
    return _duration(hour, minute, second, us, packed < 0, cells, where)


def time_text(digits: int, cells: Cells, where: Where) -> pa.Array:
    """Parse [-][h]hh:mm:ss[.ffffff] from its end, from which every digit has a fixed distance."""
    tail = digits + 1 if digits else 0
    negative = cells.byte(0) == ord("-")
    size = cells.size - negative - tail
    there = cells.present
    if ((size < 8) | (size > 9))[there].any():
        raise unreadable(where, "a time")
    ends = np.where(there, cells.start + cells.size, 9 + tail)
    raw = cells.buffer.bytes[ends[:, None] + np.arange(-8 - tail, 0)]
    parts = _numbers(raw, "dd:dd:dd" + ("." + "d" * digits if digits else ""), there, where)
    before = np.where(there & (size == 9), cells.buffer.bytes[np.maximum(ends - 9 - tail, 0)], _ZERO).astype(np.int64)
    if ((before < _ZERO) | (before > _ZERO + 9)).any():
        raise unreadable(where, "a time")
    hour = parts[0] + (before - _ZERO) * 100
    us = parts[3] * 10 ** (6 - digits) if digits else np.zeros(len(cells), np.int64)
    return _duration(hour, parts[1], parts[2], us, negative, cells, where)


def _duration(
    hour: Int64s, minute: Int64s, second: Int64s, us: Int64s, negative: Bools, cells: Cells, where: Where
) -> pa.Array:
    if ((minute > 59) | (second > 59) | (us > 999_999))[cells.present].any():
        raise unreadable(where, "a time")
    value = time_us(hour, minute, second, us)
    return pa.array(np.where(negative, -value, value), TIME, mask=cells.mask)


def _date_image(cells: Cells) -> Moments:
    value = cells.buffer.values("<u4", cells.start).astype(np.int64) & 0xFFFFFF
    none = np.zeros(len(cells), np.int64)
    return Moments(value >> 9, value >> 5 & 15, value & 31, none, none, none, none)


def _datetime_image(digits: int, cells: Cells) -> Moments:
    packed = cells.big_endian(5) - (1 << 39)
    year_month = packed >> 22
    return Moments(
        year_month // 13, year_month % 13, packed >> 17 & 31, packed >> 12 & 31, packed >> 6 & 63, packed & 63,
        _fraction(digits, 5, cells),
    )  # fmt: skip


def _seconds_us(digits: int, cells: Cells) -> Int64s:
    return cells.big_endian(4) * 1_000_000 + _fraction(digits, 4, cells)


def _fraction(digits: int, at: int, cells: Cells) -> Int64s:
    width = fraction_width(digits)
    return _fraction_us(cells.big_endian(width, at), width)


def _fraction_us(value: Int64s, width: int) -> Int64s:
    return np.asarray(value * 10 ** (6 - 2 * width))


def _dates(moments: Moments, cells: Cells, where: Where) -> pa.Array:
    return _within_calendar(moments.days().astype(np.int32), moments.in_calendar(), DATE, cells, where)


def _moments(moments: Moments, arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    wrong = (moments.hour > 23) | (moments.minute > 59) | (moments.second > 59) | (moments.us > 999_999)
    if wrong[cells.present].any():
        raise unreadable(where, "a moment")
    return _within_calendar(moments.days() * DAY_US + moments.time_us(), moments.in_calendar(), arrow, cells, where)


def _within_calendar(values: Int64s, good: Bools, arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    there = cells.present
    if where.zero_dates == "stop" and not good[there].all():
        raise out_of_calendar(where)
    good = good & there
    plain = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.array(values, plain, mask=None if good.all() else ~good).view(arrow)


def _date_digits(cells: Cells, where: Where) -> Moments:
    year, month, day = _numbers(_fixed_bytes(10, cells, where), "dddd-dd-dd", cells.present, where)
    none = np.zeros(len(cells), np.int64)
    return Moments(year, month, day, none, none, none, none)


def _moment_digits(digits: int, cells: Cells, where: Where) -> Moments:
    form = "dddd-dd-dd dd:dd:dd" + ("." + "d" * digits if digits else "")
    parts = _numbers(_fixed_bytes(len(form), cells, where), form, cells.present, where)
    if digits:
        parts[6] *= 10 ** (6 - digits)
    else:
        parts.append(np.zeros(len(cells), np.int64))
    return Moments(*parts)


def _fixed_bytes(width: int, cells: Cells, where: Where) -> Bytes:
    if (cells.size[cells.present] != width).any():
        raise unreadable(where, f"{width} characters long")
    return cells.matrix(width)


def _numbers(raw: Bytes, form: str, there: Bools, where: Where) -> list[Int64s]:
    """Return the numbers in texts of this form. In `form`, `d` means any digit; every other character must be in the
    text."""
    found: list[Int64s] = []
    fresh = True
    right = np.ones(len(raw), np.bool_)
    for nth, letter in enumerate(form):
        column = raw[:, nth]
        if letter != "d":
            right &= column == ord(letter)
            fresh = True
            continue
        digit = column.astype(np.int64) - _ZERO
        right &= (digit >= 0) & (digit <= 9)
        if fresh:
            found.append(digit)
            fresh = False
        else:
            found[-1] = found[-1] * 10 + digit
    if not right[there].all():
        raise unreadable(where, f"written as {form.replace('d', '9')}")
    return [np.where(there, number, 0) for number in found]


def _civil(days: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return year, month and day of days since 1970."""
    shifted = days + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    of_year_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    day_of_year = of_era - (365 * of_year_era + of_year_era // 4 - of_year_era // 100)
    part = (5 * day_of_year + 2) // 153
    month = part + np.where(part < 10, 3, -9)
    return of_year_era + era * 400 + (month <= 2), month, day_of_year - (153 * part + 2) // 5 + 1


def _date_letters(moments: Moments) -> Bytes:
    return write_digits(_date_parts(moments))


def _date_parts(moments: Moments) -> list[tuple[Int64s, int] | str]:
    return [(moments.year, 4), "-", (moments.month, 2), "-", (moments.day, 2)]


def _letters(moments: Moments, digits: int) -> Bytes:
    clock = clock_parts(moments.hour, moments.minute, moments.second)
    parts = [*_date_parts(moments), " ", *clock]
    return write_digits([*parts, ".", (moments.us // 10 ** (6 - digits), digits)] if digits else parts)


def out_of_calendar(where: Where) -> ConfigurationError:
    or_null = "" if where.key_of else " (or null)"
    return ConfigurationError(
        f"decoding {where}: found a date that does not exist (a zero year, month or day, or a day that its month "
        "does not have), and zero_dates is stop",
        remedy=f"in cdcflow.yaml set source.columns to {{{where.column}: text}}{or_null}, or source.zero_dates "
        "for all columns, then start again",
        runbook="value-not-representable",
    )


# ── the family ──────────────────────────────────────────────────────────────────────────────────────────────────

_CODES = {
    "date": TypeCode.DATE,
    "time": TypeCode.TIME,
    "datetime": TypeCode.DATETIME,
    "timestamp": TypeCode.TIMESTAMP,
}
_NAMES = {code: name for name, code in _CODES.items()}
_MOMENT = re.compile(r"[-0-9:. ]+")


def _from_catalog(column: CatalogColumn) -> ServerColumn:
    if column.type == "date":
        return column.stored_as(TypeCode.DATE)
    if "mariadb-5.3" in column.full_type:
        raise not_captured(column, "is of a kind from before MariaDB 10.1", "ALTER TABLE … FORCE")
    return column.stored_as(_CODES[column.type], column.fraction or 0)


def _type_text(column: ServerColumn) -> str:
    digits = f"({column.metadata})" if column.metadata and column.type_code != TypeCode.DATE else ""
    return _NAMES[TypeCode(column.type_code)] + digits


def _codec(column: ServerColumn, where: Where) -> Codec:
    digits = column.metadata
    fraction = fraction_width(digits)
    match TypeCode(column.type_code), where.zero_dates == "text":
        case TypeCode.DATE, True:
            return Codec(where, pa.string(), 3, 0, date_as_text, utf8)
        case TypeCode.DATE, _:
            return Codec(where, DATE, 3, 0, date, date_text, "date")
        case TypeCode.TIME, _:
            image, result = partial(time, digits), partial(time_text, digits)
            return Codec(where, TIME, 3 + fraction, 0, image, result, "time", digits)
        case TypeCode.DATETIME, True:
            return Codec(where, pa.string(), 5 + fraction, 0, partial(datetime_as_text, digits), utf8)
        case TypeCode.DATETIME, _:
            image, result = partial(datetime, digits), partial(datetime_text, digits)
            return Codec(where, DATETIME, 5 + fraction, 0, image, result, "datetime", digits)
        case _, True:
            return Codec(where, pa.string(), 4 + fraction, 0, partial(timestamp_as_text, digits), utf8)
    image, result = partial(timestamp, digits), partial(timestamp_text, digits)
    return Codec(where, TIMESTAMP, 4 + fraction, 0, image, result, "timestamp", digits)


def _cell_literal(column: ServerColumn, cell: bytes) -> str:
    return f"'{valid_text(_MOMENT, cell, column)}'"


def _row_text(column: ServerColumn, codec: Codec) -> RowText:
    return (row_texts.duration if column.type_code == TypeCode.TIME else row_texts.moment)(column, codec)


FAMILY = TypeFamily(
    codes={TypeCode.DATE: 0, **dict.fromkeys((TypeCode.TIMESTAMP, TypeCode.DATETIME, TypeCode.TIME), 1)},
    old={
        TypeCode.TIMESTAMP_OLD: "a timestamp",
        TypeCode.TIME_OLD: "a time",
        TypeCode.DATETIME_OLD: "a datetime",
    },
    names=frozenset(_CODES),
    from_catalog=_from_catalog,
    type_text=_type_text,
    codec=_codec,
    row_text=_row_text,
    setting=lambda column: None if column.type_code == TypeCode.TIME else "zero_dates",
    cell_literal=_cell_literal,
    text_literal=lambda column, text: _cell_literal(column, text.encode()),
)
