"""The server's binary format to Arrow, a column at a time. The text family needs no decoder of its own.

What each type's bytes mean is written in the server's `*send` functions (src/backend/utils/adt). A value of another
length than its type has is malformed; nothing is read beyond the value.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.model.change import Int64s
from cdcflow.sources.buffers import (
    Bools,
    Buffer,
    Bytes,
    Cells,
    binary_array,
    bitmap,
    fixed_text,
    gathered,
    new_bytes,
    pieces,
    protocol_error,
)
from cdcflow.sources.postgres.values import (
    INT32_MAX,
    INT64_MAX,
    INTERVAL_ENDS,
    MONEY,
    TIMESTAMP,
    TIMESTAMPTZ,
    Decoder,
    Unholdable,
    Where,
    decimal_ends,
    held,
    integer_ends,
    integers,
    interval,
    unreadable,
    utf8,
)
from cdcflow.sources.postgres.wire import EPOCH_DAYS, EPOCH_US

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_ZERO = ord("0")
_LENGTH = struct.Struct(">i")
_WALKED_ALONE = 32  # arrays; with fewer, a step of numpy for each element costs more than the elements one by one
_SPECIAL_WORDS = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}
_SIGNS = {0x4000: "negative", 0xC000: "NaN", 0xD000: "infinity", 0xF000: "-infinity"}


def boolean(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 1, where)
    return pa.array(cells.byte(0) != 0, mask=cells.mask)


def int2(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 2, where)
    return pa.array(cells.buffer.int16(cells.start).astype(np.int16), mask=cells.mask)


def int4(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 4, where)
    return pa.array(cells.buffer.int32(cells.start).astype(np.int32), mask=cells.mask)


def int8(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 8, where)
    return pa.array(cells.buffer.int64(cells.start), mask=cells.mask)


def oid(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 4, where)
    return pa.array(cells.buffer.uint32(cells.start), mask=cells.mask)


def float4(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 4, where)
    return _floats(cells.buffer.int32(cells.start).astype(np.int32).view(np.float32), cells)


def float8(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 8, where)
    return _floats(cells.buffer.int64(cells.start).view(np.float64), cells)


def money(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 8, where)
    return _decimal128(cells.buffer.int64(cells.start), MONEY, cells.valid)


def bytea(cells: Cells, where: Where) -> pa.Array:
    return cells.binary()


def jsonb(cells: Cells, where: Where) -> pa.Array:
    """A version byte, then the text."""
    if not ((cells.byte(0) == 1) | ~cells.present).all():
        raise unreadable(where, "jsonb of version 1")
    return utf8(cells.trimmed(1).binary(), where)


def date(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 4, where)
    days = cells.buffer.int32(cells.start)
    up, down = days == INT32_MAX, days == -INT32_MAX - 1
    values = np.where(up | down, 0, days + EPOCH_DAYS).astype(np.int32)
    if not (cells.present & (up | down)).any():
        return integers(values, cells, pa.date32())
    return _held(values, cells, up, down, np.zeros(len(up), np.bool_), pa.date32(), 32, where)


def timestamp(zoned: bool, cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 8, where)
    arrow = TIMESTAMPTZ if zoned else TIMESTAMP
    micros = cells.buffer.int64(cells.start)
    high = micros > INT64_MAX - EPOCH_US
    down = micros == -INT64_MAX - 1
    values = np.where(high, 0, micros) + EPOCH_US
    if not (cells.present & (high | down)).any():
        return integers(values, cells, arrow)
    up = micros == INT64_MAX
    return _held(values, cells, up, down, high & ~up, arrow, 64, where)


def interval_parts(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 16, where)
    micros = cells.buffer.int64(cells.start)
    days, months = cells.buffer.int32(cells.start + 8), cells.buffer.int32(cells.start + 12)
    present = cells.present
    up = present & (micros == INT64_MAX) & (days == INT32_MAX) & (months == INT32_MAX)
    down = present & (micros == -INT64_MAX - 1) & (days == -INT32_MAX - 1) & (months == -INT32_MAX - 1)
    found = [Unholdable(up, "infinity", INTERVAL_ENDS[0]), Unholdable(down, "-infinity", INTERVAL_ENDS[1])]
    plain = cells.without(up | down) if (up | down).any() else cells
    return held(interval(months, days, micros, plain), found, where)


def uuid(cells: Cells, where: Where) -> pa.Array:
    _sized(cells, 16, where)
    digits = _HEX[np.repeat(cells.matrix(16), 2, axis=1) >> np.tile(np.array([4, 0], np.uint8), 16) & 15]
    out = np.full((len(cells), 36), ord("-"), np.uint8)
    for a, b, shift in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
        out[:, a + shift : b + shift] = digits[:, a:b]
    return fixed_text(out, cells.valid)


def bits(cells: Cells, where: Where) -> pa.Array:
    """A count of bits, then the bits from the left."""
    present = cells.present
    count = np.where(present, cells.buffer.int32(cells.start), 0)
    if not ((cells.size - 4 == (count + 7) // 8) & (count >= 0) | ~present).all():
        raise protocol_error(f"a value of {where} has a wrong length")
    packed, offsets = gathered(cells.buffer.bytes, cells.start + 4, (count + 7) // 8)
    data, ends = gathered(np.unpackbits(packed) + np.uint8(_ZERO), offsets[:-1] * 8, count)
    return binary_array(data, ends, cells.valid).cast(pa.string())


def time(zoned: bool, cells: Cells, where: Where) -> pa.Array:
    """Times as the server prints them: 24:00:00 exists, and an offset may have seconds (hard case T06)."""
    _sized(cells, 12 if zoned else 8, where)
    micros = np.where(cells.present, cells.buffer.int64(cells.start), 0)
    seconds, fraction = micros // 1_000_000, micros % 1_000_000
    out = np.empty((len(cells), 24), np.uint8)
    kept = np.zeros((len(cells), 24), np.bool_)
    _clock(out, 0, seconds)
    kept[:, :8] = True
    out[:, 8] = ord(".")
    out[:, 9:15] = _digits(fraction, 6)
    # Trailing zeros of the fraction are not printed: a digit stays while it or one after it is not 0.
    kept[:, 9:15] = np.maximum.accumulate((out[:, 9:15] != _ZERO)[:, ::-1], axis=1)[:, ::-1]
    kept[:, 8] = kept[:, 9]
    if zoned:
        west = np.where(cells.present, cells.buffer.int32(cells.start + 8), 0)
        out[:, 15] = np.where(west > 0, ord("-"), ord("+"))
        _clock(out, 16, np.abs(west))
        kept[:, 15:18] = True
        kept[:, 18:21] = (west % 3600 != 0)[:, None]
        kept[:, 21:24] = (west % 60 != 0)[:, None]
    kept &= cells.present[:, None]
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    return binary_array(out[kept], offsets, cells.valid).cast(pa.string())


def decimal(arrow: pa.Decimal128Type | pa.Decimal256Type, cells: Cells, where: Where) -> pa.Array:
    """A numeric with a fixed scale: groups of four digits around the point, gathered group by group.

    ndigits (without a sign: the largest have 36,864 groups), weight (of the first group, in groups before the point),
    sign, dscale, then the groups, all 16 bits.
    """
    buffer, present = cells.buffer, cells.present
    groups, weight = buffer.int16(cells.start) & 0xFFFF, buffer.int16(cells.start + 2)
    sign = buffer.int16(cells.start + 4) & 0xFFFF
    if not ((cells.size == 8 + 2 * groups) | ~present).all():
        raise protocol_error(f"a value of {where} has a wrong length")
    known = (sign == 0) | np.isin(sign, list(_SIGNS))
    high, low = -(-(arrow.precision - arrow.scale) // 4), -(-arrow.scale // 4)
    special = sign >= 0xC000
    fits = (groups == 0) | special | ((weight < high) & (groups - 1 - weight <= low))
    if not (known & fits | ~present).all():
        raise unreadable(where, f"a numeric that {arrow} holds")
    groups = np.where(present & ~special, groups, 0)

    def group(power: int) -> Int64s:
        """The digits that count 10000 ** power."""
        at = weight - power
        there = (at >= 0) & (at < groups)
        return np.where(there, buffer.int16(np.where(there, cells.start + 8 + 2 * at, 0)), 0)

    steps = [(group(power), 10_000) for power in range(high - 1, -low - 1, -1)]
    sound = [(digits >= 0) & (digits <= 9999) for digits, _ in steps]
    if high and (arrow.precision - arrow.scale) % 4:
        sound.append(steps[0][0] < 10 ** ((arrow.precision - arrow.scale) % 4))
    if arrow.scale % 4:
        cut = 10 ** (4 - arrow.scale % 4)
        sound.append(steps[-1][0] % cut == 0)
        steps[-1] = (steps[-1][0] // cut, 10_000 // cut)
    if not all(each.all() for each in sound):
        raise unreadable(where, f"a numeric that {arrow} holds")
    negative = sign == 0x4000
    valid = cells.valid if not (present & special).any() else present & ~special
    plain = _accumulated(steps, negative, arrow, valid, len(cells))
    if valid is cells.valid:
        return plain
    greatest, least = decimal_ends(arrow)
    found = [
        Unholdable(present & (sign == 0xC000), "NaN", greatest),
        Unholdable(present & (sign == 0xD000), "infinity", greatest),
        Unholdable(present & (sign == 0xF000), "-infinity", least),
    ]
    return held(plain, found, where)


def numeric(cells: Cells, where: Where) -> pa.Array:
    """A numeric without precision as the server prints it: every digit, and as many after the point as it says.

    Where each byte of the text comes from is worked out for a piece of the values at a time.
    """
    buffer, present = cells.buffer, cells.present
    groups, weight = buffer.int16(cells.start) & 0xFFFF, buffer.int16(cells.start + 2)
    sign, scale = buffer.int16(cells.start + 4) & 0xFFFF, buffer.int16(cells.start + 6)
    if not ((cells.size == 8 + 2 * groups) | ~present).all():
        raise protocol_error(f"a value of {where} has a wrong length")
    first = np.where(present & (groups > 0), buffer.int16(cells.start + 8), 1)
    known = (sign == 0) | np.isin(sign, list(_SIGNS))
    if not (known & (scale >= 0) & (first > 0) | ~present).all():
        raise unreadable(where, "a numeric")
    special = present & (sign >= 0xC000)
    plain = present & ~special
    zero = groups == 0
    negative = plain & (sign == 0x4000)
    # Digits before the point: four a group, less the zeros that begin the first one; at least one.
    whole = 4 * (weight + 1) - (first < 1000) - (first < 100) - (first < 10)
    whole = np.where(zero | (weight < 0), 1, whole)
    size = np.where(plain, negative + whole + np.where(scale > 0, 1 + scale, 0), 0)
    for code, word in _SPECIAL_WORDS.items():
        size[special & (sign == code)] = len(word)
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(size, out=offsets[1:])
    out = new_bytes(int(offsets[-1]))
    for a, b in pieces(offsets):
        row = np.repeat(np.arange(a, b), size[a:b])
        place = np.arange(offsets[a], offsets[b]) - offsets[row] - negative[row]
        power = whole[row] - 1 - place
        power += power < 0  # the point stands where the power would be -1
        at = weight[row] - (power >> 2)
        there = (at >= 0) & (at < np.where(plain, groups, 0)[row])
        group = np.where(there, buffer.int16(np.where(there, cells.start[row] + 8 + 2 * at, 0)), 0)
        if ((group < 0) | (group > 9999)).any():
            raise unreadable(where, "a numeric")
        digits = (group // 10 ** (power & 3) % 10 + _ZERO).astype(np.uint8)
        digits[place < 0] = ord("-")
        digits[place == whole[row]] = ord(".")
        out[offsets[a] : offsets[b]] = digits
    for code, word in _SPECIAL_WORDS.items():
        rows = np.flatnonzero(special & (sign == code))
        out[offsets[rows][:, None] + np.arange(len(word))] = np.frombuffer(word, np.uint8)
    return binary_array(out, offsets, cells.valid).cast(pa.string())


def array(element: Decoder, arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """One-dimensional arrays as lists: dimensions, whether there are NULLs, the type, then each dimension's length
    and lower bound, then the elements, each with its length (-1: NULL).

    An array of more dimensions, or one that does not begin at 1, is a value that a list cannot hold.
    """
    buffer, present = cells.buffer, cells.present
    dimensions = np.where(present, buffer.int32(cells.start), 0)
    if not ((dimensions >= 0) & (dimensions <= 6) & (cells.size >= 12 + 8 * dimensions) | ~present).all():
        raise protocol_error(f"a value of {where} has a wrong length")
    full = present & (dimensions > 0)
    lower = np.where(full, buffer.int32(np.where(full, cells.start + 16, 0)), 1)
    shaped = present & ((dimensions > 1) | (lower != 1))
    held_here = full & ~shaped
    count = np.where(held_here, buffer.int32(np.where(held_here, cells.start + 12, 0)), 0)
    if ((count < 0) | (4 * count > np.maximum(cells.size - 20, 0))).any():
        raise protocol_error(f"a value of {where} has a wrong length")
    start, size = _elements(buffer, cells, count, where)
    if not (cells.size == 12)[present & (dimensions == 0)].all():
        raise protocol_error(f"a value of {where} has a wrong length")
    null = size < 0
    items = element(Cells(buffer, start, np.where(null, 0, size), ~null if null.any() else None), where)
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(count, out=offsets[1:])
    valid = present & ~shaped
    lists = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), items, type=arrow, mask=None if valid.all() else pa.array(~valid)
    )
    found = [Unholdable(shaped, "an array of several dimensions or with a lower bound other than 1", None)]
    return held(lists, found, where)


def _elements(buffer: Buffer, cells: Cells, count: Int64s, where: Where) -> tuple[Int64s, Int64s]:
    """Where the elements of all arrays lie, one array after another; a size of -1 is NULL.

    The first elements of all arrays are found at once, then the second ones, and so on. Where only few arrays have
    more, those are walked through one by one.
    """
    begin = np.cumsum(count) - count
    start, size = np.zeros(int(count.sum()), np.int64), np.zeros(int(count.sum()), np.int64)
    at, end = cells.start + 20, cells.start + cells.size
    wrong = protocol_error(f"a value of {where} has a wrong length")
    rows, number = np.flatnonzero(count > 0), 0
    while len(rows) > _WALKED_ALONE:
        length = buffer.int32(at[rows])
        place = begin[rows] + number
        start[place], size[place] = at[rows] + 4, length
        at[rows] += 4 + np.maximum(length, 0)
        if (length < -1).any() or (at[rows] > end[rows]).any():
            raise wrong
        number += 1
        # What is left of each must hold at least the lengths of its other elements.
        if (at[rows] + 4 * (count[rows] - number) > end[rows]).any():
            raise wrong
        rows = rows[count[rows] > number]
    for row in rows.tolist():
        next_at, stop, first = int(at[row]), int(end[row]), int(begin[row])
        for nth in range(number, int(count[row])):
            if next_at + 4 > stop:
                raise wrong
            (found,) = _LENGTH.unpack_from(buffer.raw, next_at)
            if found < -1 or next_at + 4 + max(found, 0) > stop:
                raise wrong
            start[first + nth], size[first + nth] = next_at + 4, found
            next_at += 4 + max(found, 0)
        at[row] = next_at
    if (at != end)[count > 0].any():
        raise wrong
    return start, size


def _accumulated(
    steps: list[tuple[Int64s, int]],
    negative: Bools,
    arrow: pa.Decimal128Type | pa.Decimal256Type,
    valid: Bools | None,
    count: int,
) -> pa.Array:
    """Horner over groups of digits, in one 64-bit number where that is enough, else in limbs of 32 bits."""
    if arrow.precision <= 18:
        total = np.zeros(count, np.int64)
        for digits, factor in steps:
            total = total * factor + digits
        return _decimal128(np.where(negative, -total, total), arrow, valid)
    limbs = np.zeros((arrow.bit_width // 32, count), np.uint64)
    low = np.uint64(0xFFFFFFFF)
    for digits, factor in steps:
        carry = digits.astype(np.uint64)
        for limb in limbs:
            limb *= np.uint64(factor)
            limb += carry
            carry = limb >> np.uint64(32)
            limb &= low
    carry = negative.astype(np.uint64)
    for limb in limbs:  # two's complement of the negative ones
        limb[:] = np.where(negative, limb ^ low, limb) + carry
        carry = limb >> np.uint64(32)
        limb &= low
    data = np.ascontiguousarray(limbs.T.astype("<u4"))
    return pa.Array.from_buffers(arrow, count, [bitmap(valid), pa.py_buffer(data)])


def _decimal128(values: Int64s, arrow: pa.Decimal128Type, valid: Bools | None) -> pa.Array:
    wide = np.empty((len(values), 2), np.int64)
    wide[:, 0] = values
    wide[:, 1] = values >> 63
    return pa.Array.from_buffers(arrow, len(values), [bitmap(valid), pa.py_buffer(wide)])


def _held(
    values: Int64s | npt.NDArray[np.int32],
    cells: Cells,
    up: Bools,
    down: Bools,
    beyond: Bools,
    arrow: pa.DataType,
    bits: int,
    where: Where,
) -> pa.Array:
    greatest, least = integer_ends(arrow, bits)
    present = cells.present
    found = [
        Unholdable(present & up, "infinity", greatest),
        Unholdable(present & down, "-infinity", least),
        Unholdable(present & beyond, "a timestamp after the year 294246", greatest),
    ]
    return held(integers(values, cells.without(up | down | beyond), arrow), found, where)


def _floats(values: npt.NDArray[np.float32] | npt.NDArray[np.float64], cells: Cells) -> pa.Array:
    """Every NaN becomes the same one, as it does on the way through text."""
    if np.isnan(values).any():
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    return pa.array(values, mask=cells.mask, from_pandas=False)


def _sized(cells: Cells, width: int, where: Where) -> None:
    wrong = cells.size != width
    if (wrong if cells.valid is None else wrong & cells.valid).any():
        raise protocol_error(f"a value of {where} has a wrong length")


def _clock(out: Bytes, at: int, seconds: Int64s) -> None:
    """HH:MM:SS from column `at` on."""
    for place, part in ((at, seconds // 3600), (at + 3, seconds // 60 % 60), (at + 6, seconds % 60)):
        out[:, place : place + 2] = _digits(part, 2)
    out[:, [at + 2, at + 5]] = ord(":")


def _digits(values: Int64s, width: int) -> Bytes:
    powers = 10 ** np.arange(width - 1, -1, -1)
    return (values[:, None] // powers % 10 + _ZERO).astype(np.uint8)
