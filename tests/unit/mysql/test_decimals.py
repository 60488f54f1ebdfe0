"""DECIMAL from row images and from text, exact to 65 digits, with both decoders."""

from __future__ import annotations

import random
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.support.mysql.values import WAYS, bitmap, column, image, joined, result_row, table

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.mysql.rows import RowKind
from cdcflow.sources.mysql.types.columns import TypeCode
from cdcflow.sources.mysql.types.numbers import decimal_metadata, digit_groups


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param]


def stored(number: int, precision: int, scale: int) -> bytes:
    """A number of units of the last digit as a row image has it."""
    digits, out, at = f"{abs(number):0{precision}d}", [], 0
    for size, count in digit_groups(precision, scale):
        out.append(int(digits[at : at + count]).to_bytes(size, "big"))
        at += count
    raw = bytearray(b"".join(out))
    raw[0] ^= 0x80
    return bytes(b ^ 0xFF for b in raw) if number < 0 else bytes(raw)


def printed(number: int, scale: int) -> bytes:
    digits = f"{abs(number):0{scale + 1}d}"
    point = f".{digits[-scale:]}" if scale else ""
    return f"{'-' if number < 0 else ''}{digits[: len(digits) - scale]}{point}".encode()


def test_image_is_as_documented() -> None:
    """The example of MySQL's `decimal.cc`: 1234567890.1234 as decimal(14,4)."""
    assert stored(12345678901234, 14, 4).hex() == "810dfb38d204d2"
    assert stored(-12345678901234, 14, 4).hex() == "7ef204c72dfb2d"


WIDE = Context(prec=80)
SIZES = [
    (1, 0),
    (1, 1),
    (5, 2),
    (9, 0),
    (9, 9),
    (10, 2),
    (18, 9),
    (19, 0),
    (20, 19),
    (38, 0),
    (38, 30),
    (39, 3),
    (65, 0),
    (65, 30),
]


@pytest.mark.parametrize(("precision", "scale"), SIZES)
def test_every_size_is_exact_on_both_paths(way: Any, precision: int, scale: int) -> None:
    """Money is counted, not approximated."""
    chance = random.Random(precision * 100 + scale)
    most = 10**precision - 1
    numbers = [0, 1, -1, most, -most, *(chance.randint(-most, most) for _ in range(50))]
    shape = table(column("id", TypeCode.TINY), column("n", TypeCode.DECIMAL, decimal_metadata(precision, scale)))
    images = [image(shape, [b"\1", stored(n, precision, scale)]) for n in numbers] + [image(shape, [b"\1", None])]
    data, extents = joined([b"".join(images)])
    found = way[0](shape, data, extents, RowKind.INSERT, b"\3", bitmap([True, True])).rows.column("n")
    assert found.type == (pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale))
    data, extents = joined([result_row([b"1", printed(n, scale)]) for n in numbers] + [result_row([b"1", None])])
    assert found.equals(way[1](shape, data, extents).column("n"))
    units = [None if v is None else int(Decimal(v).scaleb(scale, WIDE)) for v in found.to_pylist()]
    assert units == [*numbers, None]


def test_zeros_in_front_mean_nothing(way: Any) -> None:
    """ZEROFILL prints them."""
    shape = table(column("id", TypeCode.TINY), column("n", TypeCode.DECIMAL, decimal_metadata(7, 3), unsigned=True))
    data, extents = joined([result_row([b"1", b"0001.500"])])
    assert way[1](shape, data, extents).column("n").to_pylist() == [Decimal("1.500")]


@pytest.mark.parametrize("text", [b"1e5", b"", b"-", b"1.2.3", b"12345678.00", b"nan"])
def test_text_that_is_no_such_number_is_refused(way: Any, text: bytes) -> None:
    """A number that does not fit is not cut to fit."""
    shape = table(column("id", TypeCode.TINY), column("n", TypeCode.DECIMAL, decimal_metadata(7, 2)))
    data, extents = joined([result_row([b"1", text])])
    with pytest.raises(SourceUnavailable, match=r"shop\.orders\.n \(decimal"):
        way[1](shape, data, extents)


def test_bytes_that_are_no_digits_are_refused(way: Any) -> None:
    """Nine digits are at most 999,999,999."""
    shape = table(column("id", TypeCode.TINY), column("n", TypeCode.DECIMAL, decimal_metadata(9, 0)))
    data, extents = joined([image(shape, [b"\1", b"\xff\xff\xff\xff"])])
    with pytest.raises(SourceUnavailable, match=r"shop\.orders\.n"):
        way[0](shape, data, extents, RowKind.INSERT, b"\3", b"\3")
