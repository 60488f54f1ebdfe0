"""Thousands of timestamps against Python's own calendar, and every text and every part that is out of range."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.engine.buffers import Cells, with_padding
from cdcflow.sources.mysql.types import temporal
from cdcflow.sources.mysql.types.family import Decoder, Where

WHERE = Where("shop.t.c", "datetime")
AS_TEXT = Where("shop.t.c", "datetime", zero_dates="text")
JUNK = b"\xff" * 8
EPOCH = dt.datetime(1970, 1, 1)
DIGITS = range(7)


def cells(values: Sequence[bytes | None], between: bytes = JUNK) -> Cells:
    """Values one after another. Between two, and where one is NULL, are bytes that belong to another column."""
    pieces = [between if value is None else value + between for value in values]
    size = np.array([len(p) for p in pieces], np.int64)
    length = np.array([0 if v is None else len(v) for v in values], np.int64)
    valid = None if None not in values else np.array([v is not None for v in values])
    return Cells(with_padding(pieces), np.cumsum(size) - size, length, valid)


def fraction(us: int, digits: int) -> bytes:
    width = (digits + 1) // 2
    return (us // int(10 ** (6 - 2 * width))).to_bytes(width, "big")


def cut(us: int, digits: int) -> int:
    unit = int(10 ** (6 - digits))
    return us // unit * unit


def written(us: int, digits: int) -> str:
    return f".{us // 10 ** (6 - digits):0{digits}}" if digits else ""


def packed_date(year: int, month: int, day: int) -> bytes:
    return (year << 9 | month << 5 | day).to_bytes(3, "little")


def packed(*parts: int, us: int = 0, digits: int = 0) -> bytes:
    year, month, day, hour, minute, second = parts
    value = 1 << 39 | (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
    return value.to_bytes(5, "big") + fraction(us, digits)


def packed_time(us: int, digits: int) -> bytes:
    seconds, rest = divmod(abs(us), 1_000_000)
    width = (digits + 1) // 2
    value = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    value = value << 8 * width | int.from_bytes(fraction(rest, digits), "big")
    return ((0x800000 << 8 * width) + (-value if us < 0 else value)).to_bytes(3 + width, "big")


def time_as_text(us: int, digits: int) -> str:
    seconds, rest = divmod(abs(us), 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{written(rest, digits)}"
    return "-" * (us < 0) + clock


def moments(digits: int, first: dt.datetime, last: dt.datetime, count: int = 400) -> list[dt.datetime]:
    chance = random.Random(digits)
    span = int((last - first).total_seconds())
    found = [first + dt.timedelta(seconds=chance.randrange(span), microseconds=chance.randrange(10**6))
             for _ in range(count)]  # fmt: skip
    found += [dt.datetime(y, m, d, 23, 59, 59, 999_999) for y in (1972, 2000, 2001, 2100)
              for m, d in ((1, 1), (2, 28), (3, 1), (12, 31))]  # fmt: skip
    return [m.replace(microsecond=cut(m.microsecond, digits)) for m in (*found, dt.datetime(2000, 2, 29))]


def same(column: pa.Array, expected: list[int | None]) -> None:
    column.validate(full=True)
    assert column.view(pa.int64()).to_pylist() == expected


def text_of(moment: dt.datetime, digits: int) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0") + written(moment.microsecond, digits)


@pytest.mark.parametrize("digits", DIGITS)
def test_timestamps_of_every_year_equal_python_s(digits: int) -> None:
    """N06: from the image, from the server's text, and as text; NULL in between."""
    given = [*moments(digits, dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31)), None]
    expected = [None if m is None else (m - EPOCH) // dt.timedelta(microseconds=1) for m in given]
    images = cells([None if m is None else packed(*m.timetuple()[:6], us=m.microsecond, digits=digits) for m in given])
    texts = [None if m is None else text_of(m, digits) for m in given]
    raw = cells([None if t is None else t.encode() for t in texts])
    same(temporal.datetime(digits, images, WHERE), expected)
    same(temporal.datetime_text(digits, raw, WHERE), expected)
    same(temporal.timestamp_text(digits, raw, WHERE), expected)
    assert temporal.datetime_as_text(digits, images, AS_TEXT).to_pylist() == texts


@pytest.mark.parametrize("digits", DIGITS)
def test_timestamps_of_every_year_are_python_s(digits: int) -> None:
    """N06: the seconds of four bytes, to their end in 2106."""
    given = [*moments(digits, EPOCH + dt.timedelta(seconds=1), dt.datetime(2106, 2, 7)), None]
    given.append(EPOCH + dt.timedelta(seconds=2**32 - 1))
    expected = [None if m is None else (m - EPOCH) // dt.timedelta(microseconds=1) for m in given]
    images = cells(
        [
            None if us is None else (us // 1_000_000).to_bytes(4, "big") + fraction(us % 1_000_000, digits)
            for us in expected
        ]
    )
    same(temporal.timestamp(digits, images, WHERE), expected)
    texts = temporal.timestamp_as_text(digits, images, AS_TEXT).to_pylist()
    assert texts == [None if m is None else text_of(m, digits) for m in given]


def test_days_of_every_year_are_python_s() -> None:
    """Starting at year 1, as the servers accept them."""
    given = [dt.date(1, 1, 1) + dt.timedelta(days=n) for n in range(0, 3_652_058, 1117)]
    given += [dt.date(y, 2, 29) for y in (4, 400, 1600, 2000, 2024)] + [dt.date(9999, 12, 31)]
    images = cells([*(packed_date(d.year, d.month, d.day) for d in given), None])
    texts = [f"{d.year:04}-{d.month:02}-{d.day:02}" for d in given]
    raw = cells([*(t.encode() for t in texts), None])
    for found in (temporal.date(images, WHERE), temporal.date_text(raw, WHERE)):
        found.validate(full=True)
        assert found.to_pylist() == [*given, None]
    assert temporal.date_as_text(images, AS_TEXT).to_pylist() == [*texts, None]


@pytest.mark.parametrize("digits", DIGITS)
def test_times_of_both_signs_are_python_s(digits: int) -> None:
    """N04: to 838 hours on both sides of zero."""
    chance = random.Random(digits)
    most = ((838 * 60 + 59) * 60 + 59) * 1_000_000
    given = [0, most, -most, 1_000_000, -1_000_000, 60_000_000, 3_600_000_000, 360_000_000_000, -360_000_000_000]
    given += [chance.randrange(-most, most) for _ in range(400)]
    given = [cut(abs(us), digits) * (-1 if us < 0 else 1) for us in given]
    same(temporal.time(digits, cells([*(packed_time(us, digits) for us in given), None]), WHERE), [*given, None])
    texts = [time_as_text(us, digits).encode() for us in given]
    same(temporal.time_text(digits, cells([*texts, None]), WHERE), [*given, None])
    same(temporal.time_text(digits, cells(texts, between=b""), WHERE), list(given))


FORMS: list[tuple[Decoder, str]] = [
    (temporal.date_text, "2024-02-29"),
    (partial(temporal.datetime_text, 0), "2024-02-29 23:58:57"),
    (partial(temporal.datetime_text, 2), "2024-02-29 23:58:57.12"),
    (partial(temporal.timestamp_text, 6), "2024-02-29 23:58:57.123456"),
    (partial(temporal.time_text, 0), "23:58:57"),
    (partial(temporal.time_text, 0), "823:58:57"),
    (partial(temporal.time_text, 3), "-823:58:57.123"),
]


@pytest.mark.parametrize(("decode", "text"), FORMS)
def test_a_text_with_another_character_in_it_is_refused(decode: Decoder, text: str) -> None:
    """O10: at each place, including the two characters next to the digits; and a text that is longer or shorter."""
    assert not decode(cells([text.encode()]), WHERE).null_count
    wrong = [text[:at] + letter + text[at + 1 :] for at in range(len(text)) for letter in "/;x "]
    wrong = [t for t in wrong if t != text] + [text[:-1], text + "0", "", text[0]]
    for one in wrong:
        for given in ([one.encode()], [text.encode(), None, one.encode()]):
            with pytest.raises(SourceUnavailable, match=r"column shop\.t\.c"):
                decode(cells(given), WHERE)


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        *((partial(f, 0), f"2024-01-01 {c}") for f in (temporal.datetime_text, temporal.timestamp_text)
          for c in ("24:00:00", "00:60:00", "00:00:60")),
        *((partial(temporal.time_text, 0), c) for c in ("00:60:00", "00:00:60")),
    ],
)  # fmt: skip
def test_a_clock_has_no_sixtieth_minute(decode: Decoder, text: str) -> None:
    """O10: it would be the next hour's first, a value that was never written."""
    with pytest.raises(SourceUnavailable, match=r"column shop\.t\.c"):
        decode(cells([text.encode()]), WHERE)


@pytest.mark.parametrize("clock", [(24, 0, 0), (0, 60, 0), (0, 0, 60)])
def test_nor_has_a_clock_in_a_row_image(clock: tuple[int, int, int]) -> None:
    """O10: its bits have room for more."""
    with pytest.raises(SourceUnavailable, match="is not a moment"):
        temporal.datetime(0, cells([packed(2024, 1, 1, 0, 0, 0), packed(2024, 1, 1, *clock)]), WHERE)
    hour, minute, second = clock
    raw = (0x800000 + (hour << 12 | minute << 6 | second)).to_bytes(3, "big")
    if hour:
        same(temporal.time(0, cells([raw]), WHERE), [24 * 3_600_000_000])
        return
    with pytest.raises(SourceUnavailable, match="is not a time"):
        temporal.time(0, cells([raw]), WHERE)


@pytest.mark.parametrize("digits", [1, 2, 3, 4, 5, 6])
def test_a_fraction_is_less_than_a_second(digits: int) -> None:
    """O10: its bytes have room for more."""
    width = (digits + 1) // 2
    whole = (10 ** (2 * width)).to_bytes(width + 1, "big")[-width:]
    for decode, raw, what in (
        (temporal.datetime, packed(2024, 1, 1, 0, 0, 0) + whole, "a moment"),
        (temporal.time, b"\x80\0\0" + whole, "a time"),
    ):
        with pytest.raises(SourceUnavailable, match=f"is not {what}"):
            decode(digits, cells([raw]), WHERE)
