"""Dates, timestamps and times from row images and from text: both ways the same, and with both decoders."""

from __future__ import annotations

import datetime as dt
import struct
from typing import Any

import pyarrow as pa
import pytest
from tests.support.mysql.values import WAYS, bitmap, column, image, joined, result_row, table

from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable
from cdcflow.sources.mysql.rows import RowKind
from cdcflow.sources.mysql.types.columns import Policy, TypeCode


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param]


def both(
    way: Any, code: TypeCode, digits: int, cells: list[tuple[bytes, bytes] | None], policy: Policy | None = None
) -> pa.Array:
    """The column that these values become, each as a row image has it and as text; the two must be equal."""
    shape = table(column("id", TypeCode.TINY), column("moment", code, digits), policy=policy)
    images = [image(shape, [b"\1", None if cell is None else cell[0]]) for cell in cells]
    data, extents = joined([b"".join(images)])
    found = way[0](shape, data, extents, RowKind.INSERT, b"\3", bitmap([True, True])).rows.column("moment")
    data, extents = joined([result_row([b"1", None if cell is None else cell[1]]) for cell in cells])
    selected = way[1](shape, data, extents).column("moment")
    assert found.equals(selected)
    found.validate(full=True)
    return found


def date(year: int, month: int, day: int) -> bytes:
    return (year << 9 | month << 5 | day).to_bytes(3, "little")


def datetime(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> bytes:
    packed = (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
    return (packed + (1 << 39)).to_bytes(5, "big")


def time(digits: int, hour: int, minute: int, second: int, fraction: int, *, negative: bool) -> bytes:
    width = (digits + 1) // 2
    packed = (hour << 12 | minute << 6 | second) << 8 * width | fraction
    return ((0x800000 << 8 * width) + (-packed if negative else packed)).to_bytes(3 + width, "big")


def test_dates_from_the_first_to_the_last(way: Any) -> None:
    """The servers' range is 1000 to 9999, and they take earlier years, too."""
    days = [(1, 1, 1), (1000, 1, 1), (1900, 2, 28), (1969, 12, 31), (1970, 1, 1), (2000, 2, 29), (9999, 12, 31)]
    cells: list[tuple[bytes, bytes] | None] = [(date(*d), b"%04d-%02d-%02d" % d) for d in days]
    assert both(way, TypeCode.DATE, 0, [*cells, None]).to_pylist() == [*(dt.date(*d) for d in days), None]


@pytest.mark.parametrize("day", [(0, 0, 0), (2000, 0, 0), (2000, 1, 0), (0, 1, 1), (1900, 2, 29), (2001, 4, 31)])
def test_date_in_no_calendar_stops_the_capture_with_an_error_that_names_the_column(
    way: Any, day: tuple[int, int, int]
) -> None:
    """N02: a zero date is not NULL, and cannot be a date."""
    cells: list[tuple[bytes, bytes] | None] = [(date(*day), b"%04d-%02d-%02d" % day)]
    with pytest.raises(ConfigurationError, match=r"shop\.orders\.moment \(date\)(.|\n)*moment: text"):
        both(way, TypeCode.DATE, 0, cells)
    found = both(way, TypeCode.DATE, 0, [*cells, (date(2000, 1, 1), b"2000-01-01")], Policy(zero_dates="null"))
    assert found.to_pylist() == [None, dt.date(2000, 1, 1)]
    by_name = Policy(columns={"shop.orders.moment": "text"})
    assert both(way, TypeCode.DATE, 0, [*cells, None], by_name).to_pylist() == [
        f"{day[0]:04}-{day[1]:02}-{day[2]:02}",
        None,
    ]


@pytest.mark.parametrize(
    ("digits", "fraction", "text"),
    [
        (0, b"", b""),
        (1, b"\x5a", b".9"),
        (2, b"\x63", b".99"),
        (3, b"\x27\x06", b".999"),
        (4, b"\x27\x0f", b".9999"),
        (5, b"\x0f\x42\x36", b".99999"),
        (6, b"\x0f\x42\x3f", b".999999"),
    ],
)
def test_timestamps_have_their_fraction(way: Any, digits: int, fraction: bytes, text: bytes) -> None:
    """N06: each number of digits is stored in another way."""
    us = int(text[1:].ljust(6, b"0") or 0)
    cells: list[tuple[bytes, bytes] | None] = [
        (datetime(9999, 12, 31, 23, 59, 59) + fraction, b"9999-12-31 23:59:59" + text),
        (datetime(1, 1, 1) + bytes(len(fraction)), b"0001-01-01 00:00:00" + (b"." + b"0" * digits if digits else b"")),
        None,
    ]
    expected = [dt.datetime(9999, 12, 31, 23, 59, 59, us), dt.datetime(1, 1, 1), None]
    assert both(way, TypeCode.DATETIME, digits, cells).to_pylist() == expected
    cells = [
        (struct.pack(">I", 2**31 - 1) + fraction, b"2038-01-19 03:14:07" + text),
        (struct.pack(">I", 2**32 - 1) + fraction, b"2106-02-07 06:28:15" + text),
        (struct.pack(">I", 1) + fraction, b"1970-01-01 00:00:01" + text),
    ]
    found = both(way, TypeCode.TIMESTAMP, digits, cells)
    assert found.type == pa.timestamp("us", tz="UTC")
    assert [v % 1_000_000 for v in found.cast(pa.int64()).to_pylist()] == [us] * 3
    assert found.cast(pa.int64()).to_pylist()[1] == (2**32 - 1) * 1_000_000 + us


@pytest.mark.parametrize("digits", [0, 3, 6])
@pytest.mark.parametrize("code", [TypeCode.DATETIME, TypeCode.TIMESTAMP])
def test_zero_timestamp_is_handled_by_policy(way: Any, code: TypeCode, digits: int) -> None:
    """N02: in a TIMESTAMP all zero means no date at all, not 1970."""
    tail = "." + "0" * digits if digits else ""
    zero = bytes((digits + 1) // 2)
    text = f"0000-00-00 00:00:00{tail}"
    raw = (datetime(0, 0, 0) if code == TypeCode.DATETIME else bytes(4)) + zero
    good = (datetime(2001, 9, 9, 1, 46, 40) if code == TypeCode.DATETIME else struct.pack(">I", 10**9)) + zero
    cells: list[tuple[bytes, bytes] | None] = [(raw, text.encode()), (good, f"2001-09-09 01:46:40{tail}".encode())]
    with pytest.raises(ConfigurationError, match="zero_dates"):
        both(way, code, digits, cells)
    assert both(way, code, digits, cells, Policy(zero_dates="null")).is_null().to_pylist() == [True, False]
    assert both(way, code, digits, cells, Policy(zero_dates="text")).to_pylist() == [
        text,
        f"2001-09-09 01:46:40{tail}",
    ]


def test_timestamps_as_text_are_the_calendars_in_every_year_they_have(way: Any) -> None:
    """N02: with zero_dates: text the day is computed here, and the server's text is kept unchanged."""
    turns = [(1, 1), (2, 28), (3, 1), (3, 4), (12, 31)]
    days = [dt.datetime(y, m, d, 23, 59, 58, tzinfo=dt.UTC) for y in range(1970, 2106) for m, d in turns]
    days += [dt.datetime(y, 2, 29, tzinfo=dt.UTC) for y in range(1972, 2106, 4) if y != 2100]
    cells: list[tuple[bytes, bytes] | None] = [
        (struct.pack(">I", int(day.timestamp())), day.strftime("%Y-%m-%d %H:%M:%S").encode()) for day in days
    ]
    found = both(way, TypeCode.TIMESTAMP, 0, cells, Policy(zero_dates="text"))
    assert found.to_pylist() == [cell[1].decode() for cell in cells if cell]


def test_times_reach_beyond_a_day_to_both_sides(way: Any) -> None:
    """N04: a negative time with a fraction has both parts negative."""
    cells: list[tuple[bytes, bytes] | None] = [
        (time(2, 0, 0, 0, 10, negative=True), b"-00:00:00.10"),
        (time(2, 838, 59, 58, 99, negative=True), b"-838:59:58.99"),
        (time(2, 838, 59, 59, 0, negative=False), b"838:59:59.00"),
        (time(2, 100, 0, 0, 1, negative=False), b"100:00:00.01"),
        None,
    ]
    found = both(way, TypeCode.TIME, 2, cells)
    assert found.type == pa.duration("us")
    expected = [-100_000, -((838 * 60 + 59) * 60 + 58) * 10**6 - 990_000, ((838 * 60 + 59) * 60 + 59) * 10**6]
    assert found.cast(pa.int64()).to_pylist() == [*expected, 360_000_010_000, None]


@pytest.mark.parametrize("digits", range(7))
def test_time_has_its_fraction(way: Any, digits: int) -> None:
    """N04, N06: an odd number of digits is stored as the next even one."""
    fraction = 7 * 10 ** (digits - 1) if digits else 0
    stored = fraction * (10 if digits % 2 else 1)
    tail = b".%0*d" % (digits, fraction) if digits else b""
    cells: list[tuple[bytes, bytes] | None] = [
        (time(digits, 1, 2, 3, stored, negative=sign == b"-"), sign + b"01:02:03" + tail) for sign in (b"", b"-")
    ]
    us = 3_723_000_000 + (700_000 if digits else 0)
    assert both(way, TypeCode.TIME, digits, cells).cast(pa.int64()).to_pylist() == [us, -us]


def test_year_zero_is_the_year_zero(way: Any) -> None:
    """N05: YEAR counts from 1900, except its zero."""
    cells: list[tuple[bytes, bytes] | None] = [(b"\0", b"0000"), (b"\1", b"1901"), (b"\xff", b"2155"), None]
    assert both(way, TypeCode.YEAR, 0, cells).to_pylist() == [0, 1901, 2155, None]


@pytest.mark.parametrize(
    ("code", "digits", "text"),
    [
        (TypeCode.DATE, 0, b"2000-1-01"),
        (TypeCode.DATE, 0, b"2000/01/01"),
        (TypeCode.DATE, 0, b"20o0-01-01"),
        (TypeCode.DATETIME, 0, b"2000-01-01T00:00:00"),
        (TypeCode.DATETIME, 0, b"2000-01-01 24:00:00"),
        (TypeCode.DATETIME, 3, b"2000-01-01 00:00:00"),
        (TypeCode.TIMESTAMP, 2, b"2000-01-01 00:00:00.1"),
        (TypeCode.TIME, 0, b"1:00:00"),
        (TypeCode.TIME, 0, b"00:61:00"),
        (TypeCode.TIME, 0, b"1000:00:00"),
        (TypeCode.TIME, 1, b"00:00:00,1"),
        (TypeCode.YEAR, 0, b"soon"),
    ],
)
def test_text_that_is_no_value_is_refused(way: Any, code: TypeCode, digits: int, text: bytes) -> None:
    """Better no value than a guessed one."""
    shape = table(column("id", TypeCode.TINY), column("moment", code, digits))
    data, extents = joined([result_row([b"1", text])])
    with pytest.raises(CdcflowError, match=r"shop\.orders\.moment"):
        way[1](shape, data, extents)


def test_time_that_no_server_writes_is_refused(way: Any) -> None:
    """A malformed time must not become a different one."""
    shape = table(column("id", TypeCode.TINY), column("moment", TypeCode.TIME, 0))
    data, extents = joined([image(shape, [b"\1", time(0, 1, 60, 0, 0, negative=False)])])
    with pytest.raises(SourceUnavailable, match="moment"):
        way[0](shape, data, extents, RowKind.INSERT, b"\3", b"\3")
