"""The demo's proof: two engines write every value the same way, and a single changed value shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.servers.postgres import Database

from cdcflow.demo import proof

COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    "id": ("bigint", pa.int64()),
    "small": ("smallint", pa.int16()),
    "flag": ("boolean", pa.bool_()),
    "price": ("numeric(12,2)", pa.decimal128(12, 2)),
    "tiny": ("numeric(38,12)", pa.decimal128(38, 12)),
    "double": ("double precision", pa.float64()),
    "single": ("real", pa.float32()),
    "words": ("text", pa.string()),
    "code": ("char(6)", pa.string()),
    "moment": ("timestamptz", pa.timestamp("us", "UTC")),
    "day": ("date", pa.date32()),
    "raw": ("bytea", pa.binary()),
}

INF, NAN = float("inf"), float("nan")
MOMENT = datetime(2013, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)
ROWS: list[tuple[Any, ...]] = [
    (
        1,
        1,
        True,
        Decimal("1.50"),
        Decimal("0.000000000001"),
        0.1,
        0.5,
        "plain",
        "ab    ",
        MOMENT,
        date(2013, 1, 1),
        b"\x00\xff",
    ),
    (
        2,
        -1,
        False,
        Decimal("-0.05"),
        Decimal("-1.500000000000"),
        1 / 3,
        -0.25,
        "Ünï🛫\n\t",
        "      ",
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        date(1900, 2, 28),
        b"",
    ),
    (3, 0, None, None, None, None, None, None, None, None, None, None),
    (
        4,
        7,
        True,
        Decimal("0.00"),
        Decimal("0.000000000000"),
        -0.0,
        0.0,
        "",
        "x     ",
        datetime(1, 1, 1, tzinfo=UTC),
        date(9999, 12, 31),
        b"a",
    ),
    (
        5,
        7,
        True,
        Decimal("9999999999.99"),
        Decimal("0"),
        NAN,
        NAN,
        "-",
        "-     ",
        datetime(9999, 12, 31, tzinfo=UTC),
        date(1, 1, 1),
        b"-",
    ),
    (6, 7, True, Decimal("10"), Decimal("1E+10"), INF, -INF, "+1:a", "NULL  ", MOMENT, date(1970, 1, 1), b"+"),
    (7, 7, True, Decimal("1"), Decimal("1"), 123456789012345.67, 1e30, "2", "é     ", MOMENT, date(1970, 1, 2), b"2"),
    (8, 7, True, Decimal("1"), Decimal("1"), 10.357019999999999, 3.4e-5, "3", "ab cd ", MOMENT, date(1970, 1, 3), b"3"),
    (9, 7, True, Decimal("1"), Decimal("1"), -176.646, 8.25, "3", "abcdef", MOMENT, date(1970, 1, 3), b"3"),
]
CHANGED: dict[str, Any] = {
    "id": 10,
    "small": 2,
    "flag": False,
    "price": Decimal("1.51"),
    "tiny": Decimal("0.000000000002"),
    "double": 0.10000000000000002,
    "single": 0.50000006,
    "words": "plain ",
    "code": "abc   ",
    "moment": MOMENT.replace(microsecond=123457),
    "day": date(2013, 1, 2),
    "raw": b"\x00\xfe",
}

pytestmark = [
    pytest.mark.spread(1),
    pytest.mark.postgres,
    pytest.mark.spark,
    # pyspark leaves the socket of each `collect` to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture
def frame_of(spark: SparkSession, tmp_path: Path) -> Callable[[Sequence[tuple[Any, ...]]], DataFrame]:
    """Rows as a Spark table, through a Parquet file as in the product."""

    def frame(rows: Sequence[tuple[Any, ...]]) -> DataFrame:
        file = str(tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet")
        arrays = [pa.array([row[n] for row in rows], kinds[1]) for n, kinds in enumerate(COLUMNS.values())]
        pq.write_table(pa.table(dict(zip(COLUMNS, arrays, strict=True))), file)
        return spark.read.parquet(file)

    return frame


FrameOf = Callable[[Sequence[tuple[Any, ...]]], DataFrame]


def kinds_in(connection: psycopg.Connection[tuple[Any, ...]]) -> list[tuple[str, str]]:
    columns = ", ".join(f"{name} {kinds[0]}" for name, kinds in COLUMNS.items())
    connection.execute(f"CREATE TABLE every ({columns})".encode())
    return proof.columns_of(connection, "every")


def test_equal_rows_have_equal_digests_in_both_engines(database: Database, frame_of: FrameOf) -> None:
    """A proof that cries wolf over a float's last digit or a time zone would soon be ignored."""
    with database.connect() as connection:
        found = kinds_in(connection)
        statement = f"INSERT INTO every VALUES ({', '.join(['%s'] * len(COLUMNS))})"
        connection.cursor().executemany(statement.encode(), ROWS)
        source = proof.source_digest(connection, "every", found)
    assert proof.target_digest(frame_of(ROWS[::-1]), found) == source
    assert source.rows == len(ROWS)


def test_smallest_change_of_each_type_shows(database: Database, frame_of: FrameOf) -> None:
    """A proof that cannot fail proves nothing; and NULL is neither empty, nor zero, nor `unchanged` (T37)."""
    variants = [ROWS[0]]
    for place, name in enumerate(COLUMNS):
        variants += [(*ROWS[0][:place], value, *ROWS[0][place + 1 :]) for value in (CHANGED[name], None)]
    with database.connect() as connection:
        found = kinds_in(connection)
    hashes = [row["h"] for row in proof.target_hashes(frame_of(variants), found).collect()]
    assert len(set(hashes)) == len(variants)


def test_duplicated_row_changes_the_digest(database: Database, frame_of: FrameOf) -> None:
    """A doubled row and a lost one must not cancel each other out, as they would under XOR."""
    with database.connect() as connection:
        found = kinds_in(connection)
    once = proof.target_digest(frame_of(ROWS), found)
    twice = proof.target_digest(frame_of([*ROWS[:-2], ROWS[0], ROWS[0]]), found)
    assert once.rows == twice.rows
    assert once.hash != twice.hash
