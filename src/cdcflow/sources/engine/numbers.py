"""Numbers that servers send in parts, in columns: decimals as groups of digits, dates as years, months, days. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.model.change import Int64s, Uint64s
from cdcflow.sources.buffers import Bools, bitmap

DAY_US = 86_400_000_000
_LOW = np.uint64(0xFFFFFFFF)

Limbs = npt.NDArray[np.uint64]
"""Numbers of any size: a row for each 32 bits, the lowest first, and a column for each number."""


def no_limbs(arrow: pa.Decimal128Type | pa.Decimal256Type, count: int) -> Limbs:
    """As many zeros, with the bits of this type."""
    return np.zeros((arrow.bit_width // 32, count), np.uint64)


def append_digits(limbs: Limbs, factor: int, digits: Uint64s) -> None:
    """Each number times `factor`, a power of ten, plus `digits`, which are below it."""
    carry = digits
    for limb in limbs:
        limb *= np.uint64(factor)
        limb += carry
        carry = limb >> np.uint64(32)
        limb &= _LOW


def decimals_of(
    limbs: Limbs, negative: Bools, arrow: pa.Decimal128Type | pa.Decimal256Type, valid: Bools | None
) -> pa.Array:
    """The numbers as decimals, some of them negative."""
    carry = negative.astype(np.uint64)
    for limb in limbs:  # two's complement of the negative ones
        limb[:] = np.where(negative, limb ^ _LOW, limb) + carry
        carry = limb >> np.uint64(32)
        limb &= _LOW
    data = np.ascontiguousarray(limbs.T.astype("<u4"))
    return pa.Array.from_buffers(arrow, limbs.shape[1], [bitmap(valid), pa.py_buffer(data)])


def days_since_1970(year: Int64s, month: Int64s, day: Int64s) -> Int64s:
    """In the proleptic Gregorian calendar, where the year 0 is before the year 1."""
    year = year - (month <= 2)
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    return np.asarray(era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468)


def time_us(hour: Int64s, minute: Int64s, second: Int64s, us: Int64s) -> Int64s:
    return np.asarray(((hour * 60 + minute) * 60 + second) * 1_000_000 + us)
