"""DECIMAL to 65 digits: from row images and from the server's text, as exact Arrow decimals.

A row image has nine digits in four bytes, the greatest first, before and after the point; the digits that are left
over (the first ones before the point, the last ones after it) take as few bytes as they need. The first bit is set
for numbers from zero on, and negative ones have all their bits turned round.

    decimal(14,4)   1234567890.1234   ──▶   81 │ 0d fb 38 d2 │ 04 d2
                                             1    234567890     1234
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.model.change import Uint64s
from cdcflow.sources.buffers import Cells, bitmap
from cdcflow.sources.mysql.numbers import parsed
from cdcflow.sources.mysql.values import Where, unreadable

_DIGITS = 9
_BYTES_OF = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_LOW = np.uint64(0xFFFFFFFF)


def groups(precision: int, scale: int) -> list[tuple[int, int]]:
    """The groups of a row image: bytes and digits of each, in order."""
    first, whole = (precision - scale) % _DIGITS, (precision - scale) // _DIGITS
    parts, last = scale // _DIGITS, scale % _DIGITS
    found = [(_BYTES_OF[first], first)] + [(4, _DIGITS)] * (whole + parts) + [(_BYTES_OF[last], last)]
    return [group for group in found if group[1]]


def width_of(precision: int, scale: int) -> int:
    """How many bytes a value takes in a row image."""
    return sum(size for size, _ in groups(precision, scale))


def arrow_of(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def from_image(arrow: pa.Decimal128Type | pa.Decimal256Type, cells: Cells, where: Where) -> pa.Array:
    parts = groups(arrow.precision, arrow.scale)
    raw = cells.matrix(sum(size for size, _ in parts))
    negative = raw[:, 0] < 0x80
    raw[negative] ^= 0xFF
    raw[:, 0] ^= 0x80
    limbs = np.zeros((arrow.bit_width // 32, len(cells)), np.uint64)
    at = 0
    for size, digits in parts:
        group = np.zeros(len(cells), np.uint64)
        for place in range(at, at + size):
            group = group << np.uint64(8) | raw[:, place].astype(np.uint64)
        if (group[cells.present] >= 10**digits).any():
            raise unreadable(where, "a decimal")
        _times_and(limbs, 10**digits, group)
        at += size
    _negate(limbs, negative)
    data = np.ascontiguousarray(limbs.T.astype("<u4"))
    return pa.Array.from_buffers(arrow, len(cells), [bitmap(cells.valid), pa.py_buffer(data)])


def _times_and(limbs: npt.NDArray[np.uint64], factor: int, carry: Uint64s) -> None:
    """limbs * factor + carry; the limbs have 32 bits each, the lowest first."""
    for limb in limbs:
        grown = limb * np.uint64(factor) + carry
        limb[:] = grown & _LOW
        carry = grown >> np.uint64(32)


def _negate(limbs: npt.NDArray[np.uint64], rows: npt.NDArray[np.bool_]) -> None:
    carry = rows.astype(np.uint64)
    for limb in limbs:
        grown = np.where(rows, limb ^ _LOW, limb) + carry
        limb[:] = grown & _LOW
        carry = grown >> np.uint64(32)


def from_text(arrow: pa.Decimal128Type | pa.Decimal256Type, cells: Cells, where: Where) -> pa.Array:
    return parsed(cells.binary(), arrow, where, f"a {arrow}")
