"""Numbers: TINYINT to BIGINT, FLOAT, DOUBLE, DECIMAL, BIT and YEAR.

In a row image integers and floats are little-endian; BIT has its most significant byte first, on both paths; YEAR is
one byte, counted from 1900. A SELECT returns text, except for BIT.

DECIMAL has up to 65 digits. A row image stores groups of nine digits in four bytes, the most significant first, before
and after the point; the remaining digits (the first ones before the point, the last ones after it) take as few bytes as
they need. The first bit is set for numbers of zero and above, and negative ones have all their bits inverted.

    decimal(14,4)   1234567890.1234   ──▶   81 │ 0d fb 38 d2 │ 04 d2
                                             1    234567890     1234

Compiled kernels (`compiled/values.pxi`), by a codec's form:

    signed, unsigned, float    COPY │ SIGNED_TEXT, UNSIGNED_TEXT, FLOAT_TEXT
    medium, year, decimal      MEDIUM, YEAR, DECIMAL │ MEDIUM_TEXT, YEAR_TEXT, DECIMAL_TEXT (up to 38 digits)
    bits                       BITS
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import Uint64s
from cdcflow.sources.engine.buffers import Cells
from cdcflow.sources.engine.numbers import decimals_of_groups
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.types import row_texts
from cdcflow.sources.mysql.types.columns import CatalogColumn, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.family import (
    TWO_DIGITS,
    Codec,
    TypeFamily,
    Where,
    as_is,
    unreadable,
    valid_text,
    whole_year,
)

_INTEGERS = {
    TypeCode.TINY: ("tinyint", 1, pa.int8(), pa.uint8()),
    TypeCode.SHORT: ("smallint", 2, pa.int16(), pa.uint16()),
    TypeCode.INT24: ("mediumint", 3, pa.int32(), pa.uint32()),
    TypeCode.LONG: ("int", 4, pa.int32(), pa.uint32()),
    TypeCode.LONGLONG: ("bigint", 8, pa.int64(), pa.uint64()),
}
_FLOATS = {TypeCode.FLOAT: ("float", 4, pa.float32()), TypeCode.DOUBLE: ("double", 8, pa.float64())}
_CODES: Mapping[str, TypeCode] = {
    **{name: code for code, (name, *_) in _INTEGERS.items()},
    **{name: code for code, (name, *_) in _FLOATS.items()},
}

INTEGER_BYTES = {code: size for code, (_, size, *_) in _INTEGERS.items()}
WHOLE = frozenset((*_INTEGERS, TypeCode.YEAR))
"""Integer types, which allow arithmetic."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")
_DIGITS = 9
_BYTES_OF = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_metadata(precision: int, scale: int) -> int:
    return precision | scale << 8


def bit_metadata(bits: int) -> int:
    return bits % 8 | bits // 8 << 8


# ── integers, floats, BIT and YEAR ──────────────────────────────────────────────────────────────────────────────


def integer(kind: str, arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """Decode integers of 1, 2, 4 and 8 bytes, and FLOAT and DOUBLE. `kind`: the numpy type of the stored bytes."""
    values = cells.buffer.values(kind, cells.start)
    return pa.array(values, arrow, mask=cells.mask)


def medium(arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """Decode integers of 3 bytes."""
    values = cells.buffer.values("<u4", cells.start).astype(np.int64) & 0xFFFFFF
    if pa.types.is_signed_integer(arrow):
        values = (values ^ 0x800000) - 0x800000
    return pa.array(values, pa.int64(), mask=cells.mask).cast(arrow)


def year(cells: Cells, where: Where) -> pa.Array:
    """Decode a YEAR: one byte, counted from 1900; 0 is the year 0 (hard case N05)."""
    values = cells.buffer.bytes[cells.start].astype(np.int16)
    return pa.array(np.where(values == 0, 0, values + 1900).astype(np.int16), mask=cells.mask)


def bits(width: int, cells: Cells, where: Where) -> pa.Array:
    """Decode a BIT(n): its bytes, the most significant first; the same in row images and in a SELECT."""
    if (cells.size[cells.present] != width).any():
        raise unreadable(where, f"{width} bytes of bits")
    return pa.array(cells.big_endian(width).view(np.uint64), pa.uint64(), mask=cells.mask)


def number_text(arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """Decode the server's text of a number. Arrow rounds to nearest, so the shortest text of a double yields its
    bits."""
    return parse_numbers(cells.binary(), arrow, where, f"a number that {arrow} holds")


def float_text(cells: Cells, where: Where) -> pa.Array:
    """Decode a FLOAT that the SELECT converted to a double, so that all its bits are in the text (hard case N21)."""
    return number_text(pa.float64(), cells, where).cast(pa.float32(), safe=False)


def parse_numbers(strings: pa.Array, arrow: pa.DataType, where: Where, expected: str) -> pa.Array:
    try:
        return pc.cast(strings.view(pa.string()), arrow)  # not validated as UTF-8: non-digits are refused anyway
    except pa.ArrowInvalid:
        raise unreadable(where, expected) from None


# ── DECIMAL ─────────────────────────────────────────────────────────────────────────────────────────────────────


def digit_groups(precision: int, scale: int) -> list[tuple[int, int]]:
    """Return the groups of digits that a row image has for a DECIMAL, in order: the bytes and the digits of each."""
    first, whole = (precision - scale) % _DIGITS, (precision - scale) // _DIGITS
    parts, last = scale // _DIGITS, scale % _DIGITS
    found = [(_BYTES_OF[first], first)] + [(4, _DIGITS)] * (whole + parts) + [(_BYTES_OF[last], last)]
    return [group for group in found if group[1]]


def decimal_width(precision: int, scale: int) -> int:
    """Return the number of bytes of a DECIMAL in a row image."""
    return sum(size for size, _ in digit_groups(precision, scale))


def decimal_arrow(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def decimal_image(arrow: pa.Decimal128Type | pa.Decimal256Type, cells: Cells, where: Where) -> pa.Array:
    parts = digit_groups(arrow.precision, arrow.scale)
    raw = cells.matrix(sum(size for size, _ in parts))
    negative = raw[:, 0] < 0x80
    raw[negative] ^= 0xFF
    raw[:, 0] ^= 0x80
    groups: list[tuple[Uint64s, int]] = []
    at = 0
    for size, digits in parts:
        group = np.zeros(len(cells), np.uint64)
        for byte in range(at, at + size):
            group = group << np.uint64(8) | raw[:, byte].astype(np.uint64)
        if (group[cells.present] >= 10**digits).any():
            raise unreadable(where, "a decimal")
        groups.append((group, 10**digits))
        at += size
    return decimals_of_groups(groups, negative, arrow, cells.valid)


def decimal_text(arrow: pa.Decimal128Type | pa.Decimal256Type, cells: Cells, where: Where) -> pa.Array:
    return parse_numbers(cells.binary(), arrow, where, f"a {arrow}")


# ── the family ──────────────────────────────────────────────────────────────────────────────────────────────────


def _from_catalog(column: CatalogColumn) -> ServerColumn:
    unsigned = " unsigned" in column.full_type
    if column.type == "decimal":
        metadata = decimal_metadata(column.precision or 0, column.scale or 0)
        return column.stored_as(TypeCode.DECIMAL, metadata, unsigned=unsigned)
    if column.type == "bit":
        return column.stored_as(TypeCode.BIT, bit_metadata(column.precision or 0))
    if column.type == "year":
        return column.stored_as(TypeCode.YEAR, extra=TWO_DIGITS * column.full_type.startswith(TWO_DIGITS))
    code = _CODES[column.type]
    return column.stored_as(code, _FLOATS[code][1] if code in _FLOATS else 0, unsigned=unsigned)


def _type_text(column: ServerColumn) -> str:
    code, size = TypeCode(column.type_code), column.metadata
    if code == TypeCode.YEAR:
        return "year"
    if code == TypeCode.BIT:
        return f"bit({(size >> 8) * 8 + (size & 0xFF)})"
    if code == TypeCode.DECIMAL:
        return f"decimal({size & 0xFF},{size >> 8})" + " unsigned" * column.unsigned
    return (_FLOATS[code][0] if code in _FLOATS else _INTEGERS[code][0]) + " unsigned" * column.unsigned


def _codec(column: ServerColumn, where: Where) -> Codec:
    match TypeCode(column.type_code):
        case TypeCode.FLOAT | TypeCode.DOUBLE as code:
            _, width, arrow = _FLOATS[code]
            result = float_text if width == 4 else partial(number_text, arrow)
            return Codec(where, arrow, width, 0, partial(integer, f"<f{width}", arrow), result, "float", width)
        case TypeCode.DECIMAL:
            arrow = decimal_arrow(column.metadata & 0xFF, column.metadata >> 8)
            width = decimal_width(arrow.precision, arrow.scale)
            image, text = partial(decimal_image, arrow), partial(decimal_text, arrow)
            return Codec(where, arrow, width, 0, image, text, "decimal", arrow.precision << 8 | arrow.scale)
        case TypeCode.BIT:
            width = (column.metadata >> 8) + (column.metadata & 0xFF > 0)
            decode = partial(bits, width)
            return Codec(where, pa.uint64(), width, 0, decode, decode, "bits", width)
        case TypeCode.YEAR:
            return Codec(where, pa.int16(), 1, 0, year, partial(number_text, pa.int16()), "year")
        case code:
            return _integer_codec(code, column.unsigned, where)


def _integer_codec(code: TypeCode, unsigned: bool, where: Where) -> Codec:
    _, width, *arrows = _INTEGERS[code]
    arrow = arrows[unsigned]
    result = partial(number_text, arrow)
    if width == 3:
        return Codec(where, arrow, width, 0, partial(medium, arrow), result, "medium", not unsigned)
    image = partial(integer, f"<{'u' if unsigned else 'i'}{width}", arrow)
    return Codec(where, arrow, width, 0, image, result, "unsigned" if unsigned else "signed", width)


def _select(column: ServerColumn) -> str:
    """Return the expression that prints all bits of a number.

    A FLOAT is printed with six digits, a double with all; subtracting zero makes it a double, and keeps the sign of
    zero (N21).
    """
    if column.extra == TWO_DIGITS:
        return whole_year(column)
    return f"{quote_name(column.name)} - 0e0" if column.type_code in _FLOATS else as_is(column)


def _comparable(column: ServerColumn) -> str:
    """Return the column in a form that compares exactly: a FLOAT minus zero is a double.

    If the column itself is compared, the server rounds the literal to six digits.
    """
    if column.extra == TWO_DIGITS:
        return whole_year(column)
    return f"({quote_name(column.name)} - 0e0)" if column.type_code == TypeCode.FLOAT else as_is(column)


def _cell_literal(column: ServerColumn, cell: bytes) -> str:
    if column.type_code == TypeCode.BIT:
        return str(int.from_bytes(cell, "big"))
    return valid_text(_NUMBER, cell, column) + ("e0" if column.type_code in _FLOATS and b"e" not in cell else "")


FAMILY = TypeFamily(
    codes={
        **dict.fromkeys((*_INTEGERS, TypeCode.YEAR), 0),
        **dict.fromkeys(_FLOATS, 1),
        **dict.fromkeys((TypeCode.BIT, TypeCode.DECIMAL), 2),
    },
    old={TypeCode.DECIMAL_OLD: "a decimal"},
    extras=frozenset((TWO_DIGITS,)),
    names=frozenset((*_CODES, "decimal", "bit", "year")),
    signed=frozenset((*_INTEGERS, *_FLOATS, TypeCode.YEAR, TypeCode.DECIMAL)),
    from_catalog=_from_catalog,
    type_text=_type_text,
    codec=_codec,
    row_text=row_texts.number,
    select=_select,
    comparable=_comparable,
    cell_literal=_cell_literal,
)
