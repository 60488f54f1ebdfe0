"""Decodes numeric and money: decimals if the scale is fixed, otherwise the server's text.

In the binary format a numeric has, in 16 bits each: ndigits, the number of groups (unsigned: up to 36,864); weight (the
first group counts 10000 ** weight); sign; dscale; then the groups of four digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import Cells, binary_array, new_bytes, pieces, protocol_error
from cdcflow.sources.engine.numbers import decimal128_of, decimal_ends, decimals_of_groups
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
    unreadable,
)

NUMERIC_OID = 1700
MONEY = pa.decimal128(19, 2)
_SETTING = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_PRECISION_MAX = 76
_ZERO = ord("0")

_SPECIAL_WORDS = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}
_SIGNS = {0x4000: "negative", 0xC000: "NaN", 0xD000: "infinity", 0xF000: "-infinity"}


def numeric_type(modifier: int, unconstrained: str) -> PostgresType:
    """Return the type for numeric(p,s): a decimal that holds every such value.

    A negative scale has zeros before the point instead, and a scale above the precision needs as many digits as the
    scale (hard case T02).
    """
    if modifier < 0:
        chosen = _SETTING.fullmatch(unconstrained)
        if chosen is None:
            return _NUMERIC_TEXT
        arrow = _arrow(int(chosen[1]), int(chosen[2]))
        return _NUMERIC_TEXT if arrow is None else PostgresType(arrow, _decimal_text(arrow), lossy=True)
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    arrow = _arrow(precision - min(scale, 0) if scale <= precision else scale, max(scale, 0))
    if arrow is None:
        return _NUMERIC_TEXT
    in_binary = ValueDecoder(partial(decimal, arrow), "binary.decimal")
    digest = row_texts.number if arrow.precision <= 38 else row_texts.with_length
    return PostgresType(arrow, _decimal_text(arrow), in_binary, lossy=True, digest=digest)


def _decimal_text(arrow: pa.Decimal128Type | pa.Decimal256Type) -> ValueDecoder:
    return ValueDecoder(partial(decimal_text, arrow), "text.decimal")


def is_decimal_setting(setting: str) -> bool:
    """Whether a setting has the form of a numeric's precision and scale: decimal(p,s)."""
    return _SETTING.fullmatch(setting) is not None


def _arrow(precision: int, scale: int) -> pa.DataType | None:
    if precision > _PRECISION_MAX:
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def decimal_text(arrow: pa.Decimal128Type | pa.Decimal256Type, cells: Cells, where: Where) -> pa.Array:
    """Decode the text of a numeric with a fixed scale. A value with more digits than that stops the capture, it is
    never rounded."""
    first, second = cells.byte(0), cells.byte(1)
    nan, up = first == ord("N"), first == ord("I")
    down = (first == ord("-")) & (second == ord("I"))
    special = nan | up | down
    odd = bool(special.any())
    try:
        plain = (cells.without(special) if odd else cells).binary().view(pa.string()).cast(arrow)
        too_long: list[Unholdable] = []
    except pa.ArrowInvalid:
        plain = pa.nulls(len(cells), arrow)
        too_long = [Unholdable(cells.present, f"a number that is not a {arrow}", None)]
    if not odd and not too_long:
        return plain
    greatest, least = decimal_ends(arrow)
    found = [
        *too_long,
        Unholdable(nan, "NaN", greatest),
        Unholdable(up, "infinity", greatest),
        Unholdable(down, "-infinity", least),
    ]
    if too_long:
        where = Where(where.column, where.type_text, "stop")
    return apply_policy(plain, found, where)


def decimal(arrow: pa.Decimal128Type | pa.Decimal256Type, cells: Cells, where: Where) -> pa.Array:
    """Decode the binary format of a numeric with a fixed scale: groups of four digits around the point, gathered group
    by group."""
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
        """Return the digits that count 10000 ** power."""
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
    plain = decimals_of_groups(steps, negative, arrow, valid)
    if valid is cells.valid:
        return plain
    greatest, least = decimal_ends(arrow)
    found = [
        Unholdable(present & (sign == 0xC000), "NaN", greatest),
        Unholdable(present & (sign == 0xD000), "infinity", greatest),
        Unholdable(present & (sign == 0xF000), "-infinity", least),
    ]
    return apply_policy(plain, found, where)


def numeric(cells: Cells, where: Where) -> pa.Array:
    """Return a numeric without precision as the server prints it: every digit, and `dscale` digits after the point.

    The source of each byte of the text is computed for one piece of the values at a time.
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
        digit = np.arange(offsets[a], offsets[b]) - offsets[row] - negative[row]
        power = whole[row] - 1 - digit
        power += power < 0  # the point is where the power would be -1
        at = weight[row] - (power >> 2)
        there = (at >= 0) & (at < np.where(plain, groups, 0)[row])
        group = np.where(there, buffer.int16(np.where(there, cells.start[row] + 8 + 2 * at, 0)), 0)
        if ((group < 0) | (group > 9999)).any():
            raise unreadable(where, "a numeric")
        digits = (group // 10 ** (power & 3) % 10 + _ZERO).astype(np.uint8)
        digits[digit < 0] = ord("-")
        digits[digit == whole[row]] = ord(".")
        out[offsets[a] : offsets[b]] = digits
    for code, word in _SPECIAL_WORDS.items():
        rows = np.flatnonzero(special & (sign == code))
        out[offsets[rows][:, None] + np.arange(len(word))] = np.frombuffer(word, np.uint8)
    return binary_array(out, offsets, cells.valid).cast(pa.string())


def money_text(cells: Cells, where: Where) -> pa.Array:
    plain = pc.replace_substring_regex(text(cells, where), r"[$,]", "")
    return cast(plain, MONEY, where, "money (lc_monetary must be C)")


def money(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 8, where)
    return decimal128_of(cells.buffer.int64(cells.start), MONEY, cells.valid)


_NUMERIC_TEXT = PostgresType(pa.string(), TEXT, ValueDecoder(numeric, "binary.numeric"), digest=row_texts.with_length)

TYPES: Mapping[int, PostgresType] = {
    790: PostgresType(MONEY, ValueDecoder(money_text), ValueDecoder(money, "binary.money"), digest=row_texts.money),
}
