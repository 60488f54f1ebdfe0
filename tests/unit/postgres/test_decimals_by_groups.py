"""Numbers in groups of four digits: every width, special values and NULLs between them, and invalid numbers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.postgres.message_bytes import NO_NUMBERS, numeric_bytes

from cdcflow.errors import CdcflowError, SourceUnavailable
from cdcflow.sources.engine.buffers import Cells, with_padding
from cdcflow.sources.postgres.types.decimals import decimal, decimal_text, money, numeric
from cdcflow.sources.postgres.types.values import Where

EXACT = Context(prec=2000)
WHERE = Where("public.t.v", "numeric", "stop")
JUNK = b"\xff\x7f\xc0\x00\xd0\x00\xf0\x00"


def cells(values: Sequence[bytes | None]) -> Cells:
    """Values one after another. Between two, and where one is NULL, are bytes of other columns."""
    pieces = [JUNK if value is None else value + JUNK for value in values]
    size = np.array([len(p) for p in pieces], np.int64)
    length = np.array([0 if v is None else len(v) for v in values], np.int64)
    valid = None if None not in values else np.array([v is not None for v in values])
    return Cells(with_padding(pieces), np.cumsum(size) - size, length, valid)


def numbers(whole: int, scale: int, count: int = 25) -> list[str]:
    """Numbers with at most this many digits before and after the point, including the greatest and the least."""
    chance = random.Random(whole * 100 + scale)
    units = [0, 10 ** (whole + scale) - 1]
    units += [10**n for n in range(whole + scale)]
    units += [chance.randrange(10 ** chance.randint(1, whole + scale)) for _ in range(count)]
    both = [sign * unit for unit in units for sign in (1, -1) if sign * unit or sign > 0]
    return [f"{Decimal(n).scaleb(-scale, context=EXACT):f}" for n in both]


@pytest.mark.parametrize("scale", [0, 1, 3, 4, 5, 8, 9, 20])
@pytest.mark.parametrize("whole", [1, 3, 4, 5, 8, 13, 30])
def test_a_number_is_printed_with_every_digit(whole: int, scale: int) -> None:
    """T02: with the trailing zeros that it was written with; special values as words."""
    texts: list[str | None] = [*numbers(whole, scale), None, *NO_NUMBERS, "0", "-1", "10000"]
    random.Random(1).shuffle(texts)
    raw = [None if t is None else numeric_bytes(t) for t in texts]
    found = numeric(cells(raw), WHERE)
    found.validate(full=True)
    assert found.to_pylist() == texts
    for text, one in zip(texts[:20], raw[:20], strict=True):
        assert numeric(cells([one]), WHERE).to_pylist() == [text]
    assert numeric(cells([]), WHERE).to_pylist() == []


ARROWS = [
    *((p, s) for p, s in ((1, 0), (1, 1), (3, 0), (4, 0), (5, 0), (4, 4), (5, 5), (5, 2), (9, 3), (12, 6))),
    *((18, 7), (18, 0), (18, 18), (19, 0), (19, 19), (21, 9), (38, 9), (39, 9), (76, 38), (76, 0), (76, 76)),
]


@pytest.mark.parametrize(("precision", "scale"), ARROWS)
def test_a_decimal_is_the_number_that_was_sent(precision: int, scale: int) -> None:
    """T02: as text and in groups, with and without NULLs between."""
    arrow = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    texts = numbers(precision - scale, scale)
    given: Any
    for given in (texts, [None, *texts, None], [None], []):
        raw = cells([None if t is None else numeric_bytes(t) for t in given])
        expected = [None if t is None else Decimal(t) for t in given]
        found = decimal(arrow, raw, WHERE)
        found.validate(full=True)
        assert (found.type, found.to_pylist()) == (arrow, expected)
        assert decimal_text(arrow, cells([t and t.encode() for t in given]), WHERE).to_pylist() == expected


@pytest.mark.parametrize(("precision", "scale"), ARROWS)
@pytest.mark.parametrize("special", ["null", "clamp", "stop"])
def test_special_values_among_numbers_follow_the_policy(precision: int, scale: int, special: Any) -> None:
    """The numbers next to them keep their values, and NULL stays NULL."""
    arrow = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    where = Where("public.t.v", "numeric", special)
    one = f"{Decimal(1).scaleb(-scale, context=EXACT):f}"
    most = Decimal(10**precision - 1).scaleb(-scale, context=EXACT)
    texts = [one, "NaN", None, "Infinity", f"-{one}", "-Infinity", one]
    for kept in ([0, 1, 4], [0, 3], [2, 5], [1], [3, 2, 5], range(7)):
        given = [texts[i] for i in kept]
        ways: list[Callable[[], pa.Array]] = [
            partial(decimal, arrow, cells([numeric_bytes(t) if t else None for t in given]), where),
            partial(decimal_text, arrow, cells([t.encode() if t else None for t in given]), where),
        ]
        for way in ways:
            if special == "stop":
                with pytest.raises(CdcflowError, match=r"column public\.t\.v"):
                    way()
                continue
            ends = {"NaN": most, "Infinity": most, "-Infinity": most.copy_negate()}
            specials = ends if special == "clamp" else dict.fromkeys(ends)
            assert way().to_pylist() == [specials[t] if t in ends else t and Decimal(t) for t in given]


def of(groups: list[int], *, weight: int = 0, sign: int = 0, scale: int = 0, count: int | None = None) -> bytes:
    number = len(groups) if count is None else count
    return struct.pack(f">HhHh{len(groups)}H", number, weight, sign, scale, *groups)


@pytest.mark.parametrize(
    "value",
    [
        of([10_000]),
        of([1, 10_000], weight=1),
        of([0xFFFF]),
        of([1], sign=1),
        of([1], sign=0x8000),
        of([1], sign=0xE000),
        of([1], sign=0xC001),
    ],
)
def test_groups_and_signs_that_no_number_has_are_refused(value: bytes) -> None:
    """O10: no part of such a value is used; the error concerns no neighbouring value."""
    for given in ([value], [of([1]), value, None]):
        with pytest.raises(CdcflowError, match=r"public\.t\.v"):
            numeric(cells(given), WHERE)
        with pytest.raises(CdcflowError, match=r"public\.t\.v"):
            decimal(pa.decimal128(12, 0), cells(given), WHERE)


@pytest.mark.parametrize("value", [of([0]), of([0, 1], weight=1), of([1], scale=-1)])
def test_a_text_cannot_begin_with_a_group_of_zeros(value: bytes) -> None:
    """Its length is computed from the first group; the server sends no leading zeros there."""
    with pytest.raises(CdcflowError, match=r"a numeric"):
        numeric(cells([of([1]), value]), WHERE)


@pytest.mark.parametrize("value", [of([1], count=2), of([1], count=0), of([], count=1), of([1])[:-1], of([1]) + b"\0"])
def test_number_with_a_wrong_stated_length_renews_the_connection(value: bytes) -> None:
    """O10: the stated length is wrong."""
    for given in ([value], [of([1]), value, None]):
        with pytest.raises(SourceUnavailable, match="wrong length"):
            numeric(cells(given), WHERE)
        with pytest.raises(SourceUnavailable, match="wrong length"):
            decimal(pa.decimal128(12, 0), cells(given), WHERE)


@pytest.mark.parametrize(
    ("precision", "scale", "value", "fits"),
    [
        (3, 0, of([999]), True),
        (3, 0, of([1000]), False),
        (4, 0, of([9999]), True),
        (4, 0, of([1, 0], weight=1), False),
        (5, 0, of([9, 9999], weight=1), True),
        (5, 0, of([10, 0], weight=1), False),
        (5, 2, of([999, 9900]), True),
        (5, 2, of([999, 9910]), False),
        (5, 2, of([9900], weight=-1), True),
        (5, 2, of([1], weight=-1), False),
        (5, 2, of([1], weight=-2), False),
        (4, 4, of([9999], weight=-1), True),
        (4, 4, of([1], weight=0), False),
        (4, 4, of([1, 1], weight=-1), False),
        (5, 5, of([9999, 9000], weight=-1), True),
        (5, 5, of([9999, 9100], weight=-1), False),
        (5, 2, of([], weight=90), True),
        (20, 2, of([99, 9999, 9999, 9999, 9999, 9900], weight=4), True),
        (20, 2, of([100, 0, 0, 0, 0], weight=4), False),
    ],
)
def test_a_number_that_its_type_cannot_have_is_refused(precision: int, scale: int, value: bytes, fits: bool) -> None:
    """T02: it is never cut or rounded."""
    arrow = pa.decimal128(precision, scale)
    if fits:
        assert decimal(arrow, cells([value]), WHERE).null_count == 0
        return
    with pytest.raises(CdcflowError, match=r"decimal128"):
        decimal(arrow, cells([value, None]), WHERE)


def test_money_is_a_number_of_hundredths() -> None:
    """To both of its ends."""
    ends = [0, 1, -1, 2**63 - 1, -(2**63)]
    found = money(cells([*(struct.pack(">q", n) for n in ends), None]), WHERE)
    assert found.to_pylist() == [*(Decimal(n).scaleb(-2, context=EXACT) for n in ends), None]


@pytest.mark.parametrize("size", [0, 4, 7, 9])
def test_money_has_eight_bytes(size: int) -> None:
    """O10: bytes of the next column do not belong to it."""
    for given in ([bytes(size)], [bytes(8), None, bytes(size)]):
        with pytest.raises(CdcflowError, match=r"public\.t\.v"):
            money(cells(given), WHERE)
