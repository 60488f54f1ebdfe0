"""Values of published messages at their edges, against plain Python."""

from __future__ import annotations

import base64
import datetime as dt
import random
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.publish import values
from cdcflow.publish.base64_text import base64_text
from cdcflow.publish.varints import varints, zigzag

INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])


def test_unscaled_numbers_have_as_few_bytes_as_hold_them() -> None:
    """Java's BigInteger encodes a number so, and Connect's Decimal uses that: one byte too many is another message."""
    large = [n * sign for n in (2**63, 2**64, 10**37) for sign in (1, -1)]
    numbers = [0, 1, -1, 127, 128, -128, -129, 255, 256, *large]
    for kind in (pa.decimal128(38, 0), pa.decimal256(60, 0)):
        column = pa.array([None, *map(Decimal, numbers)], kind)
        found = values.unscaled_bytes(column).to_pylist()
        assert found == [None, *map(values.number_bytes, numbers)]
        assert values.unscaled_bytes(column.slice(3, 5)).to_pylist() == found[3:8]
    said = {0: b"\0", 127: b"\x7f", 128: b"\0\x80", -128: b"\x80", -129: b"\xff\x7f"}
    assert {number: values.number_bytes(number) for number in said} == said


def test_a_decimal_is_never_written_with_an_exponent() -> None:
    """Debezium's `string` mode writes plain digits, and consumers compare texts."""
    column = pa.array([Decimal("1E-10"), Decimal("-0.0000000001"), None, Decimal("12.5")], pa.decimal128(30, 10))
    assert values.plain_decimal(column).to_pylist() == ["0.0000000001", "-0.0000000001", None, "12.5000000000"]


def test_numbers_of_any_length_keep_every_digit() -> None:
    """Python itself refuses to parse a number of more than 4,300 digits; a source does not."""
    digits = "123456789" * 1000
    [found] = values.variable_scale(pa.array([f"-{digits}.5"])).to_pylist()
    assert found["scale"] == 1
    assert Decimal(int.from_bytes(found["value"], "big", signed=True)) == Decimal(f"-{digits}5")
    assert values.variable_scale(pa.array(["NaN", "Infinity", None])).to_pylist() == [None, None, None]


@pytest.mark.parametrize("longest", [0, 1, 2, 3, 4, 16, 24, 25, 100])
def test_base64_of_a_column_is_base64_of_each_value(longest: int) -> None:
    """All values of a length are encoded at once; one wrong place would mix rows up."""
    chance = random.Random(longest)
    cells = [None if chance.random() < 0.2 else chance.randbytes(chance.randint(0, longest)) for _ in range(300)]
    column = pa.array(cells, pa.binary())
    expected = [None if c is None else base64.b64encode(c) for c in cells]
    assert base64_text(column).to_pylist() == expected
    assert base64_text(column.slice(7, 100)).to_pylist() == expected[7:107]
    assert base64_text(column.slice(0, 0)).to_pylist() == []


def test_varints_of_a_column_are_those_of_each_number() -> None:
    """Avro and Protobuf both rely on them."""

    def plain(number: int) -> bytes:
        found = b""
        while number >= 0x80:
            found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
        return found + bytes([number])

    numbers = [0, 1, 127, 128, 16383, 16384, *(2**n - d for n in range(7, 64, 7) for d in (0, 1)), 2**63, 2**64 - 1]
    assert varints(np.array(numbers, np.uint64)).to_pylist() == [plain(n) for n in numbers]
    signed = np.array([0, -1, 1, -2, 2**63 - 1, -(2**63)])
    assert zigzag(signed).tolist() == [0, 1, 2, 3, 2**64 - 2, 2**64 - 1]


@pytest.mark.parametrize("digits", [0, 3, 6])
def test_timestamps_of_any_year_are_iso_texts(digits: int) -> None:
    """Years before 1 and after 9999 are formatted in another way, which must agree with the first where both can."""
    days = [(year, month) for year in (1, 4, 1600, 1899, 1970, 2000, 9999) for month in (1, 2, 12)]
    near = [dt.datetime(year, month, 28, 23, 59, 59, 999_999, dt.UTC) for year, month in days]
    us = [int((t - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)) for t in near]
    column = pa.array([*us, None], pa.int64()).view(pa.timestamp("us", "UTC"))
    length = 19 + digits + (digits > 0)
    expected = [t.isoformat(timespec="microseconds")[:length] + "Z" for t in near]
    assert values.utc_text(digits)(column).to_pylist() == [*expected, None]
    far = pa.array([*us, -62_167_219_200_000_001, 253_402_300_800_000_000], pa.int64()).view(pa.timestamp("us", "UTC"))
    fraction = "." + "9" * digits if digits else ""
    nothing = "." + "0" * digits if digits else ""
    beyond = [f"-0001-12-31T23:59:59{fraction}Z", f"+10000-01-01T00:00:00{nothing}Z"]
    assert values.utc_text(digits)(far).to_pylist() == [*expected, *beyond]


def test_an_interval_that_64_bits_do_not_hold_stops_with_the_setting() -> None:
    """A number that wrapped round would be silently wrong."""
    column = pa.array([{"months": 2_000_000_000, "days": 0, "microseconds": 0}], INTERVAL)
    with pytest.raises(ConfigurationError, match="interval_handling_mode"):
        values.micro_duration(column)
    assert values.iso_interval(column).to_pylist() == ["P166666666Y8M0DT0H0M0S"]


def test_an_unsigned_number_beyond_int64_stops_with_the_setting() -> None:
    """The same for MySQL's BIGINT UNSIGNED in Debezium's mode `long`."""
    column = pa.array([2**64 - 1, None], pa.uint64())
    with pytest.raises(ConfigurationError, match=r"shop\.t\.n.*\n?.*bigint_unsigned_handling_mode"):
        values.unsigned_long("shop.t.n")(column)
    assert values.unsigned_precise(column).to_pylist() == [b"\0" + b"\xff" * 8, None]


def test_value_that_is_not_a_time_of_day_stops_in_mode_connect() -> None:
    """MySQL's TIME is a duration too, which Connect's Time cannot represent."""
    with pytest.raises(ConfigurationError, match="time_precision_mode"):
        values.duration_millis("shop.t.at")(pa.array([-1], pa.duration("us")))
    assert values.duration_millis("x")(pa.array([None, 1_999], pa.duration("us"))).to_pylist() == [None, 1]


def test_geometry_is_published_as_wkb_and_srid() -> None:
    """Debezium's struct has the two separately; a log of an older version has only WKB."""
    point = struct.pack("<BIdd", 1, 1, 1.0, 2.0)
    located = struct.pack("<BIIdd", 1, 0x20000001, 4326, 1.0, 2.0)
    assert values.geometry(pa.array([located, None, point], pa.binary())).to_pylist() == [
        {"wkb": point, "srid": 4326},
        None,
        {"wkb": point, "srid": None},
    ]
