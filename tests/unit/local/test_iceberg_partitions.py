"""Values of partitions, computed for whole columns, against PyIceberg's own transforms of single values."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from cdcflow.tables.local import iceberg_partitions

CHANCE = random.Random(5)
FEW = 200
INTS = [0, 1, -1, 34, 2**31 - 1, 100 - 2**31, *(CHANCE.randrange(100 - 2**31, 2**31) for _ in range(FEW))]
LONGS = [*INTS, 2**63 - 1, 100 - 2**63]
WORDS = ("".join(CHANCE.choices("aß€😀", k=CHANCE.randrange(9))) for _ in range(FEW))
TEXTS = ["", "a", "iceberg", "ß'", "x" * 40, *WORDS]
BINARY = [b"", *(CHANCE.randbytes(CHANCE.randrange(20)) for _ in range(FEW))]
EDGES = [Decimal(n).scaleb(-2) for n in (0, 1, -1, 127, 128, -128, -129, 1420, 32767, 32768, -32769)]
SUMS = [*EDGES, *(Decimal(CHANCE.randrange(-(10**18), 10**18)).scaleb(-2) for _ in range(FEW))]
FIRST = date(1970, 1, 1)
SOME_DAYS = (FIRST + timedelta(CHANCE.randrange(-(10**5), 10**5)) for _ in range(FEW))
DAYS = [FIRST, date(1969, 12, 31), date.min, date.max, *SOME_DAYS]
MOMENTS = [datetime(1970, 1, 1) + timedelta(microseconds=CHANCE.randrange(-(10**16), 10**16)) for _ in range(FEW)]
ZONED = [moment.replace(tzinfo=UTC) for moment in MOMENTS]
TIMES: list[Transform[Any, Any]] = [YearTransform(), MonthTransform(), DayTransform()]
COLUMNS: list[tuple[IcebergType, pa.DataType, list[Any], list[Transform[Any, Any]]]] = [
    (IntegerType(), pa.int32(), INTS, [BucketTransform(16), TruncateTransform(10)]),
    (LongType(), pa.int64(), LONGS, [BucketTransform(7), TruncateTransform(3)]),
    (StringType(), pa.string(), TEXTS, [BucketTransform(16), TruncateTransform(2), IdentityTransform()]),
    (BinaryType(), pa.binary(), BINARY, [BucketTransform(16), TruncateTransform(3)]),
    (DecimalType(20, 2), pa.decimal128(20, 2), SUMS, [BucketTransform(16)]),
    (DateType(), pa.date32(), DAYS, [*TIMES, BucketTransform(16)]),
    (TimestampType(), pa.timestamp("us"), MOMENTS, [*TIMES, HourTransform(), BucketTransform(16)]),
    (TimestamptzType(), pa.timestamp("us", "UTC"), ZONED, [*TIMES, HourTransform(), BucketTransform(16)]),
]


@pytest.mark.parametrize(
    ("iceberg_type", "arrow", "values", "transform"),
    [(type_, arrow, values, t) for type_, arrow, values, transforms in COLUMNS for t in transforms],
    ids=lambda one: str(one) if isinstance(one, Transform | IcebergType) else "",
)
def test_values_of_a_column_are_those_of_its_rows(
    iceberg_type: IcebergType, arrow: pa.DataType, values: list[Any], transform: Transform[Any, Any]
) -> None:
    """Another reader computes them again to skip files: with another value it would not find rows that exist."""
    of_one = transform.transform(iceberg_type)
    given = [None, *values, None]
    schema = Schema(NestedField(1, "c", iceberg_type))
    # In two chunks; the second one begins within its buffers.
    whole = pa.array(given, arrow)
    rows = pa.table({"c": pa.chunked_array([whole[:3], whole[3:]])})
    found = iceberg_partitions.value_of(rows, PartitionField(1, 1000, transform, "p"), schema)
    assert found.to_pylist() == [None if value is None else of_one(value) for value in given]


def test_rows_of_each_partition_keep_their_order() -> None:
    """The rows of a file are sorted before they are divided."""
    chance = random.Random(1)
    pairs = [(chance.choice([None, "a", "b"]), chance.choice([None, 1, 2])) for _ in range(100)]
    rows = pa.table({"t": [t for t, _ in pairs], "n": pa.array([n for _, n in pairs], pa.int64()), "at": range(100)})
    schema = Schema(
        NestedField(1, "t", StringType()), NestedField(2, "n", LongType()), NestedField(3, "at", LongType())
    )
    fields = [PartitionField(1, 1000, IdentityTransform(), "t"), PartitionField(2, 1001, IdentityTransform(), "n")]
    found = {
        (part.partition[0], part.partition[1]): part.rows.to_pylist()
        for part in iceberg_partitions.split(rows, PartitionSpec(*fields), schema)
    }
    expected: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        expected.setdefault((row["t"], row["n"]), []).append(row)
    assert found == expected
