"""Decodes, in columns, numbers that servers send in parts: decimals as groups of digits, dates as years, months, days.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.model.change import Int64s, Uint64s
from cdcflow.sources.engine.buffers import Bools, Bytes, bitmap

DAY_US = 86_400_000_000
_LOW = np.uint64(0xFFFFFFFF)
_ZERO = ord("0")

Limbs = npt.NDArray[np.uint64]
"""Numbers of any size: a row for each 32 bits, the lowest first, and a column for each number."""


def decimals_of_groups(
    groups: Iterable[tuple[Int64s | Uint64s, int]],
    negative: Bools,
    arrow: pa.Decimal128Type | pa.Decimal256Type,
    valid: Bools | None,
) -> pa.Array:
    """Return decimals from groups of digits, the most significant group first, each with the power of ten that its
    digits are below.

    They are computed as one number of 64 bits if that is enough, otherwise in limbs.
    """
    if arrow.precision <= 18:
        total = np.zeros(len(negative), np.int64)
        for digits, factor in groups:
            total = total * factor + digits.astype(np.int64)
        return decimal128_of(np.where(negative, -total, total), arrow, valid)
    limbs = no_limbs(arrow, len(negative))
    for digits, factor in groups:
        append_digits(limbs, factor, digits.astype(np.uint64))
    return decimals_of(limbs, negative, arrow, valid)


def decimal128_of(values: Int64s, arrow: pa.Decimal128Type, valid: Bools | None) -> pa.Array:
    """Return whole numbers as decimals with the same digits; the type's scale places the point."""
    wide = np.empty((len(values), 2), np.int64)
    wide[:, 0] = values
    wide[:, 1] = values >> 63
    return pa.Array.from_buffers(arrow, len(values), [bitmap(valid), pa.py_buffer(wide)])


def decimal_ends(arrow: pa.Decimal128Type | pa.Decimal256Type) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the greatest and the least value of a type."""
    digits = "9" * arrow.precision
    number = digits if not arrow.scale else f"{digits[: -arrow.scale]}.{digits[-arrow.scale :]}"
    ends = pa.array([number, "-" + number]).cast(arrow)
    return ends[0], ends[1]


def no_limbs(arrow: pa.Decimal128Type | pa.Decimal256Type, count: int) -> Limbs:
    """Return the limbs of `count` zeros, as wide as this type."""
    return np.zeros((arrow.bit_width // 32, count), np.uint64)


def append_digits(limbs: Limbs, factor: int, digits: Uint64s) -> None:
    """Multiply each number by `factor`, a power of ten, and add `digits`, which are below it. Changes `limbs`."""
    carry = digits
    for limb in limbs:
        limb *= np.uint64(factor)
        limb += carry
        carry = limb >> np.uint64(32)
        limb &= _LOW


def decimals_of(
    limbs: Limbs, negative: Bools, arrow: pa.Decimal128Type | pa.Decimal256Type, valid: Bools | None
) -> pa.Array:
    """Return the numbers as decimals; `negative` marks those that get a minus."""
    carry = negative.astype(np.uint64)
    for limb in limbs:  # two's complement of the negative ones
        limb[:] = np.where(negative, limb ^ _LOW, limb) + carry
        carry = limb >> np.uint64(32)
        limb &= _LOW
    data = np.ascontiguousarray(limbs.T.astype("<u4"))
    return pa.Array.from_buffers(arrow, limbs.shape[1], [bitmap(valid), pa.py_buffer(data)])


def days_since_1970(year: Int64s, month: Int64s, day: Int64s) -> Int64s:
    """Return the days since 1970-01-01 of dates in the proleptic Gregorian calendar, where the year 0 is before the
    year 1."""
    year = year - (month <= 2)
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    return np.asarray(era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468)


def time_us(hour: Int64s, minute: Int64s, second: Int64s, us: Int64s) -> Int64s:
    return np.asarray(((hour * 60 + minute) * 60 + second) * 1_000_000 + us)


def write_digits(parts: Sequence[tuple[Int64s, int] | str]) -> Bytes:
    """Return texts, one row of bytes per value: each part is a number with its count of digits, or letters between
    them."""
    columns: list[Bytes] = []
    count = next(len(part[0]) for part in parts if not isinstance(part, str))
    for part in parts:
        if isinstance(part, str):
            columns.append(np.full(count, ord(part), np.uint8))
        else:
            number, width = part
            columns += [(number // 10**digit % 10 + _ZERO).astype(np.uint8) for digit in range(width - 1, -1, -1)]
    return np.stack(columns, axis=1)


def clock_parts(hour: Int64s, minute: Int64s, second: Int64s) -> list[tuple[Int64s, int] | str]:
    """Return the parts of HH:MM:SS for `write_digits`."""
    return [(hour, 2), ":", (minute, 2), ":", (second, 2)]
