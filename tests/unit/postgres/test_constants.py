"""Which constants of added columns all readers of a log read alike."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcflow.sources.postgres.types.constants import is_readable
from cdcflow.sources.postgres.types.temporal import INTERVAL, TIMESTAMP, TIMESTAMPTZ


@pytest.mark.parametrize(
    ("text", "arrow", "expected"),
    [
        ("infinity", pa.string(), True),
        ("NaN", pa.float64(), True),
        ("t", pa.bool_(), True),
        ("7", pa.int32(), True),
        ("2020-02-29", pa.date32(), True),
        ("0044-03-15 BC", pa.date32(), False),
        ("10000-01-01", pa.date32(), False),
        ("infinity", pa.date32(), False),
        ("2020-02-29 23:59:59.5", TIMESTAMP, True),
        ("2020-02-29 23:59:59.5 BC", TIMESTAMP, False),
        ("-infinity", TIMESTAMP, False),
        ("2020-02-29 23:59:59+00", TIMESTAMPTZ, True),
        ("2020-02-29 23:59:59+00 BC", TIMESTAMPTZ, False),
        ("1 day", INTERVAL, False),
        ("-0.01", pa.decimal128(5, 2), True),
        ("999.99", pa.decimal128(5, 2), True),
        ("1000", pa.decimal128(5, 2), False),
        ("1.500", pa.decimal128(5, 2), True),
        ("1.505", pa.decimal128(5, 2), False),
        ("0.00001", pa.decimal128(5, 5), True),
        ("NaN", pa.decimal128(5, 2), False),
        ("\\x00ff", pa.binary(), True),
        ("{1,NULL,-3}", pa.list_(pa.int32()), True),
        ("{{1,2},{3,4}}", pa.list_(pa.int32()), False),
        ("[0:1]={1,2}", pa.list_(pa.int32()), False),
        ("{2020-02-29,infinity}", pa.list_(pa.date32()), False),
        ('{"1 day"}', pa.list_(INTERVAL), False),
    ],
)
def test_constant_that_readers_could_read_differently_is_not_kept(
    text: str, arrow: pa.DataType, *, expected: bool
) -> None:
    """Spark reads the date of a year before 1 as one after it, and rounds a decimal."""
    assert is_readable(text, arrow) is expected
