"""Decodes dates, times and intervals.

The session settings that their text depends on are fixed (hard case P67): DateStyle ISO, IntervalStyle postgres,
TimeZone UTC. Arrow's own parsers handle the usual values. The odd ones (BC, years of more than four digits, infinities)
are picked out first, and a regular expression parses these few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import Bools, Cells, binary_array
from cdcflow.sources.engine.numbers import DAY_US, clock_parts, days_since_1970, time_us, write_digits
from cdcflow.sources.postgres.lsn import EPOCH_DAYS, EPOCH_US
from cdcflow.sources.postgres.types import row_texts
from cdcflow.sources.postgres.types.texts import TEXT, text
from cdcflow.sources.postgres.types.values import (
    PostgresType,
    Unholdable,
    ValueDecoder,
    Where,
    apply_policy,
    cast,
    check_size,
    integers,
    unreadable,
)

INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])
TIMESTAMP = pa.timestamp("us")
TIMESTAMPTZ = pa.timestamp("us", tz="UTC")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_ZERO = ord("0")

_DAYS_MAX, _US_MAX = divmod(_INT64_MAX, DAY_US)  # the latest time in microseconds since 1970

_DATE = r"^(?P<y>\d{4,7})-(?P<m>\d\d)-(?P<d>\d\d)(?P<bc> BC)?$"
_TIMESTAMP = (
    r"^(?P<y>\d{4,6})-(?P<m>\d\d)-(?P<d>\d\d) (?P<h>\d\d):(?P<n>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d{1,6}))?"
    r"(?:\+00)?(?P<bc> BC)?$"
)
_INTERVAL = (
    r"^(?:(?P<years>[+-]?\d+) years? ?)?(?:(?P<months>[+-]?\d+) mons? ?)?(?:(?P<days>[+-]?\d+) days? ?)?"
    r"(?:(?P<sign>[+-])?(?P<h>\d+):(?P<n>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d{1,6}))?)?$"
)

_INTERVAL_ENDS = (
    pa.scalar({"months": _INT32_MAX, "days": _INT32_MAX, "microseconds": _INT64_MAX}, INTERVAL),
    pa.scalar({"months": -_INT32_MAX - 1, "days": -_INT32_MAX - 1, "microseconds": -_INT64_MAX - 1}, INTERVAL),
)


def date_text(cells: Cells, where: Where) -> pa.Array:
    odd = cells.present & (cells.size != 10)
    if not odd.any():
        return cast(cells.binary(), pa.date32(), where, "a date (DateStyle must be ISO)")

    def days(parts: dict[str, Int64s]) -> tuple[Int64s, Bools]:
        values = _days(parts)
        return values, np.zeros(len(values), np.bool_)

    return _with_odd(cells, where, odd, pa.date32(), np.int32, _DATE, days)


def date(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 4, where)
    days = cells.buffer.int32(cells.start)
    up, down = days == _INT32_MAX, days == -_INT32_MAX - 1
    values = np.where(up | down, 0, days + EPOCH_DAYS).astype(np.int32)
    if not (cells.present & (up | down)).any():
        return integers(values, cells, pa.date32())
    return _within_range(values, cells, up, down, np.zeros(len(up), np.bool_), pa.date32(), 32, where)


def timestamp_text(zoned: bool, cells: Cells, where: Where) -> pa.Array:
    arrow = TIMESTAMPTZ if zoned else TIMESTAMP
    last = cells.buffer.bytes[cells.start + np.maximum(cells.size - 1, 0)]
    odd = cells.present & ((cells.byte(4) != ord("-")) | (last == ord("C")))
    if not odd.any():
        return cast(cells.binary(), arrow, where, "a timestamp (DateStyle must be ISO, TimeZone UTC)")
    return _with_odd(cells, where, odd, arrow, np.int64, _TIMESTAMP, _microseconds)


def timestamp(zoned: bool, cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 8, where)
    arrow = TIMESTAMPTZ if zoned else TIMESTAMP
    micros = cells.buffer.int64(cells.start)
    high = micros > _INT64_MAX - EPOCH_US
    down = micros == -_INT64_MAX - 1
    values = np.where(high, 0, micros) + EPOCH_US
    if not (cells.present & (high | down)).any():
        return integers(values, cells, arrow)
    up = micros == _INT64_MAX
    return _within_range(values, cells, up, down, high & ~up, arrow, 64, where)


def time(zoned: bool, cells: Cells, where: Where) -> pa.Array:
    """Decode times as the server prints them: 24:00:00 exists, and an offset may have seconds (hard case T06)."""
    check_size(cells, 12 if zoned else 8, where)
    micros = np.where(cells.present, cells.buffer.int64(cells.start), 0)
    seconds, fraction = micros // 1_000_000, micros % 1_000_000
    parts = [*_clock(seconds), ".", (fraction, 6)]
    if zoned:
        west = np.where(cells.present, cells.buffer.int32(cells.start + 8), 0)
        parts += ["+", *_clock(np.abs(west))]
    out = write_digits(parts)
    kept = np.zeros(out.shape, np.bool_)
    kept[:, :8] = True
    # The server prints no trailing zeros of the fraction, so a digit is printed only if it or a later one is not 0.
    kept[:, 9:15] = np.maximum.accumulate((out[:, 9:15] != _ZERO)[:, ::-1], axis=1)[:, ::-1]
    kept[:, 8] = kept[:, 9]
    if zoned:
        out[west > 0, 15] = ord("-")
        kept[:, 15:18] = True
        kept[:, 18:21] = (west % 3600 != 0)[:, None]
        kept[:, 21:24] = (west % 60 != 0)[:, None]
    kept &= cells.present[:, None]
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    return binary_array(out[kept], offsets, cells.valid).cast(pa.string())


def interval_text(cells: Cells, where: Where) -> pa.Array:
    up, down = _infinite(cells)
    found = [Unholdable(up, "infinity", _INTERVAL_ENDS[0]), Unholdable(down, "-infinity", _INTERVAL_ENDS[1])]
    plain = cells.without(up | down)
    parts = _parts(_INTERVAL, plain, where, "an interval (IntervalStyle must be postgres)")
    micros = _time_us(parts)
    micros = np.where(parts["sign"] == -1, -micros, micros)
    return apply_policy(_interval_of(parts["years"] * 12 + parts["months"], parts["days"], micros, plain), found, where)


def interval(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 16, where)
    micros = cells.buffer.int64(cells.start)
    days, months = cells.buffer.int32(cells.start + 8), cells.buffer.int32(cells.start + 12)
    present = cells.present
    up = present & (micros == _INT64_MAX) & (days == _INT32_MAX) & (months == _INT32_MAX)
    down = present & (micros == -_INT64_MAX - 1) & (days == -_INT32_MAX - 1) & (months == -_INT32_MAX - 1)
    found = [Unholdable(up, "infinity", _INTERVAL_ENDS[0]), Unholdable(down, "-infinity", _INTERVAL_ENDS[1])]
    plain = cells.without(up | down) if (up | down).any() else cells
    return apply_policy(_interval_of(months, days, micros, plain), found, where)


def _interval_of(months: Int64s, days: Int64s, microseconds: Int64s, cells: Cells) -> pa.Array:
    mask = None if cells.valid is None else pa.array(~cells.valid)
    parts = [pa.array(months.astype(np.int32)), pa.array(days.astype(np.int32)), pa.array(microseconds)]
    return pa.StructArray.from_arrays(parts, fields=list(INTERVAL), mask=mask)


def _within_range(
    values: Int64s | npt.NDArray[np.int32],
    cells: Cells,
    up: Bools,
    down: Bools,
    beyond: Bools,
    arrow: pa.DataType,
    bits: int,
    where: Where,
) -> pa.Array:
    greatest, least = _ends(arrow, bits)
    present = cells.present
    found = [
        Unholdable(present & up, "infinity", greatest),
        Unholdable(present & down, "-infinity", least),
        Unholdable(present & beyond, "a timestamp after the year 294246", greatest),
    ]
    return apply_policy(integers(values, cells.without(up | down | beyond), arrow), found, where)


def _ends(arrow: pa.DataType, bits: int) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the greatest and the least value of a date or timestamp type, for `clamp`."""
    plain = pa.int32() if bits == 32 else pa.int64()
    greatest = 2 ** (bits - 1) - 1
    ends = pa.array([greatest, -greatest - 1], plain).view(arrow)
    return ends[0], ends[1]


def _infinite(cells: Cells) -> tuple[Bools, Bools]:
    first, second = cells.byte(0), cells.byte(1)
    return first == ord("i"), (first == ord("-")) & (second == ord("i"))


def _with_odd(
    cells: Cells,
    where: Where,
    odd: Bools,
    arrow: pa.DataType,
    width: type[np.int32 | np.int64],
    pattern: str,
    convert: Callable[[dict[str, Int64s]], tuple[Int64s, Bools]],
) -> pa.Array:
    """Decode dates or timestamps: the odd ones with the pattern, the others with Arrow's parser."""
    up, down = _infinite(cells)
    usual = cast(cells.without(odd).binary(), arrow, where, "a date or timestamp (DateStyle must be ISO)")
    values = usual.view(pa.int32() if width is np.int32 else pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    values = values.copy()
    rare = odd & ~up & ~down
    beyond = np.zeros(len(cells), np.bool_)
    if rare.any():
        parts = _parts(pattern, cells.where(rare), where, "a date or timestamp (DateStyle must be ISO)")
        values[rare], beyond[rare] = convert(parts)
    greatest, least = _ends(arrow, 32 if width is np.int32 else 64)
    found = [
        Unholdable(up, "infinity", greatest),
        Unholdable(down, "-infinity", least),
        Unholdable(beyond, "a timestamp after the year 294246", greatest),
    ]
    return apply_policy(integers(values, cells.without(up | down | beyond), arrow), found, where)


def _parts(pattern: str, cells: Cells, where: Where, expected: str) -> dict[str, Int64s]:
    """Return the named groups of a pattern as numbers, 0 if a group is absent; NULL cells give 0.

    `sign` and `bc` are -1 if the text has a minus or BC; `f` is microseconds.
    """
    strings = text(cells, where)
    groups = pc.extract_regex(strings, pattern)
    if groups.null_count != strings.null_count:
        raise unreadable(where, expected)
    out: dict[str, Int64s] = {}
    for name in (f.name for f in groups.type):
        column = pc.fill_null(pc.struct_field(groups, name), "")
        if name in ("sign", "bc"):
            negative = pc.is_in(column, pa.array(["-", " BC"]))
            out[name] = np.where(negative.to_numpy(zero_copy_only=False), -1, 1)
            continue
        if name == "f":
            column = pc.utf8_rpad(column, 6, "0")
        column = pc.replace_substring_regex(pc.if_else(pc.equal(column, ""), "0", column), r"^\+", "")
        out[name] = cast(column, pa.int64(), where, expected).to_numpy(zero_copy_only=False)
    return out


def _days(parts: dict[str, Int64s]) -> Int64s:
    """Return the days since 1970; the year before 1 is 1 BC."""
    year = np.where(parts["bc"] == -1, 1 - parts["y"], parts["y"])
    return days_since_1970(year, parts["m"], parts["d"])


def _time_us(parts: dict[str, Int64s]) -> Int64s:
    return time_us(parts["h"], parts["n"], parts["s"], parts["f"])


def _microseconds(parts: dict[str, Int64s]) -> tuple[Int64s, Bools]:
    days, time = _days(parts), _time_us(parts)
    beyond = (days > _DAYS_MAX) | ((days == _DAYS_MAX) & (time > _US_MAX))
    return np.where(beyond, 0, days) * DAY_US + time, beyond


def _clock(seconds: Int64s) -> list[tuple[Int64s, int] | str]:
    return clock_parts(seconds // 3600, seconds // 60 % 60, seconds % 60)


def _timestamp(arrow: pa.DataType, *, zoned: bool) -> PostgresType:
    return PostgresType(
        arrow,
        ValueDecoder(partial(timestamp_text, zoned), "text.timestamp"),
        ValueDecoder(partial(timestamp, zoned), "binary.timestamp"),
        lossy=True,
        digest=row_texts.microseconds,
    )


TYPES: Mapping[int, PostgresType] = {
    1082: PostgresType(
        pa.date32(),
        ValueDecoder(date_text, "text.date"),
        ValueDecoder(date, "binary.date"),
        lossy=True,
        digest=row_texts.days,
    ),
    1083: PostgresType(
        pa.string(), TEXT, ValueDecoder(partial(time, False), "binary.time"), digest=row_texts.with_length
    ),
    1114: _timestamp(TIMESTAMP, zoned=False),
    1184: _timestamp(TIMESTAMPTZ, zoned=True),
    1186: PostgresType(INTERVAL, ValueDecoder(interval_text), ValueDecoder(interval, "binary.interval"), lossy=True),
    1266: PostgresType(
        pa.string(), TEXT, ValueDecoder(partial(time, True), "binary.timetz"), digest=row_texts.with_length
    ),
}
