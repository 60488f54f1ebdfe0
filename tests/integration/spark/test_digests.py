"""Digests, sums and buckets by Spark are those of DuckDB; and a copy that Spark reads is compared as any other."""

from __future__ import annotations

import datetime as dt
import importlib
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.postgres import Database
from tests.support.polling import wait_until
from tests.support.values.digests import by_bucket
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.model import digest
from cdcflow.model.digest import BUCKETS_MAX, Buckets
from cdcflow.spark import comparison
from cdcflow.tables.local.session import DuckSession

pytestmark = pytest.mark.spark

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [-128, 127, 0]),
    "smallint": (pa.int16(), [-32768, 32767]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1, 0]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1, -1]),
    "decimal(38,10)": (pa.decimal128(38, 10), [Decimal("1e-10"), Decimal(0), Decimal("-9e27"), Decimal("0.1")]),
    "decimal(20,0)": (pa.decimal128(20, 0), [Decimal(2**64 - 1), Decimal(0)]),
    "decimal(9,9)": (pa.decimal128(9, 9), [Decimal("0.000000001"), Decimal("-0.999999999"), Decimal(0)]),
    "decimal(38,37)": (pa.decimal128(38, 37), [Decimal("1e-37"), Decimal("-9"), Decimal(0)]),
    "string": (pa.string(), ["", "|", "6:héllo|", "🐘", "it's \"so\\", "\0\n", "x" * 5000]),
    "binary": (pa.binary(), [b"", b"\0\xff", b"|" * 300]),
    "date": (pa.date32(), [0, -1, -719_162, -719_163, -2_440_588, 2_932_896, 2_932_897, 106_751_991]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [0, -1, 1_577_923_200_000_000, -2_208_988_800_000_001, -62_135_596_800_000_000, 253_402_300_800_000_000],
    ),
    "timestamp_ntz": (
        pa.timestamp("us"),
        [0, -1, 1_711_850_400_000_000, -2_208_988_800_000_001, -62_135_596_800_000_000, 253_402_300_800_000_000],
    ),
}
"""Every portable type of a copy, with the values at its edges; days and microseconds since 1970."""


def table() -> pa.Table:
    """A column of each type: each value once in a row where all others are NULL."""
    rows = sum(len(values) for _, values in VALUES.values()) + 1
    columns: dict[str, pa.Array] = {"id": pa.array(range(rows), pa.int64())}
    at = 0
    for name, (arrow, values) in VALUES.items():
        cells = [None] * at + values + [None] * (rows - at - len(values))
        at += len(values)
        is_moment = pa.types.is_temporal(arrow)
        plain = pa.int32() if pa.types.is_date(arrow) else pa.int64()
        columns[name] = pa.array(cells, plain).view(arrow) if is_moment else pa.array(cells, arrow)
    return pa.table(columns)


@pytest.fixture
def duck() -> Iterator[DuckSession]:
    made = DuckSession()
    yield made
    made.close()


def test_spark_sums_every_portable_type_as_duckdb_does(spark: Any, duck: DuckSession) -> None:
    """A text that differs would make every table with the type differ, or be read as a whole."""
    rows = table()
    assert all(digest.is_portable(name) for name in VALUES)
    # Spark turns timestamps without a zone into timestamps with one.
    listed = ["id", *(f"CAST(`{name}` AS {name}) AS `{name}`" for name in VALUES)]
    spark.createDataFrame(rows).selectExpr(*listed).createOrReplaceTempView("digested")
    assert dict(spark.table("digested").dtypes)["timestamp_ntz"] == "timestamp_ntz"
    wrong = []
    try:
        for names in [[name] for name in VALUES] + [list(VALUES)]:
            columns = (("id", "bigint"), *((name, name) for name in names))
            for key in (("id",), (*names, "id")):
                for hash_ in ("md5", "sha256"):
                    buckets = Buckets(columns, key, BUCKETS_MAX, hash_)
                    found = by_bucket(spark.sql(digest.sums("digested", buckets)).toArrow())
                    if found != by_bucket(duck.over(rows, digest.sums("{}", buckets))):
                        wrong.append((names, key, hash_))
    finally:
        spark.catalog.dropTempView("digested")
    assert not wrong


def test_spark_finds_the_bucket_of_every_whole_number(spark: Any, duck: DuckSession) -> None:
    chance = random.Random(4)
    keys = [chance.randrange(-(2**63), 2**63) for _ in range(500)] + [n << 22 for n in range(500)]
    rows = pa.table({"k": pa.array(keys, pa.int64())})
    spark.createDataFrame(rows).createOrReplaceTempView("numbers")
    buckets = Buckets((("k", "bigint"),), ("k",), 1024)
    question = f"SELECT k, {digest.bucket(buckets)} AS b FROM "
    try:
        found = {row.k: row.b for row in spark.sql(question + "numbers").collect()}
    finally:
        spark.catalog.dropTempView("numbers")
    assert found == {row["k"]: row["b"] for row in duck.over(rows, question + "{}").to_pylist()}
    assert len({found[n << 22] for n in range(500)}) > 100, "numbers whose low bits are all the same"
    assert {b for b in found.values() if not 0 <= b < 1024} == set()


@pytest.fixture
def spark_shop(
    database: Database, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ComparedShop]:
    """A shop whose tables Spark reads, by the session of the tests."""
    monkeypatch.setattr(importlib.import_module("cdcflow.spark.session"), "session_for", lambda config: spark)
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        shop.file.write_text(shop.file.read_text().replace("engine: local", "engine: spark"))
        yield shop


@pytest.mark.postgres
@pytest.mark.long
def test_a_copy_in_spark_is_compared(spark_shop: ComparedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """By digests, by rows where a type has no text, and without a key; what differs is named as everywhere."""
    asked: list[str] = []
    arrow = comparison.SparkCopy._arrow

    def counted(*given: Any) -> Any:
        asked.append("")
        return arrow(*given)

    monkeypatch.setattr(comparison.SparkCopy, "_arrow", counted)
    shop = spark_shop
    columns = "name text, price numeric(12,10), at timestamptz, due timestamp"
    values = "i, 'name ' || i, i * 0.0000000001, now(), now()::timestamp FROM generate_series(1, 2000) i"
    shop.execute(
        f"CREATE TABLE plain (id int PRIMARY KEY, {columns})",
        f"INSERT INTO plain SELECT {values}",
        f"CREATE TABLE floats (id int PRIMARY KEY, {columns}, f float8, a int[])",
        "INSERT INTO floats SELECT i, 'n', 1, now(), now(), i / 3.0, '{1,NULL}' FROM generate_series(1, 200) i",
        f"CREATE TABLE keyless (id int, {columns})",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "INSERT INTO keyless SELECT i, 'n', 1, now(), now() FROM generate_series(1, 100) i",
    )
    shop.start("plain", "floats", "keyless")
    shop.merge_until("plain", lambda rows: rows.num_rows == 2000)
    found = shop.verify(code=0)
    assert asked, "Spark was asked"
    assert {name: (t["verdict"], t["by"], t["rows"]) for name, t in found.items()} == {
        "plain/tables": ("equal", "digests", 2000),
        "floats/tables": ("equal", "rows", 200),
        "keyless/tables": ("equal", "rows", 100),
    }

    def wrong(rows: pa.Table) -> pa.Table:
        listed = rows.to_pylist()
        listed[7]["at"] += dt.timedelta(microseconds=1)
        return pa.Table.from_pylist(listed, schema=rows.schema)

    names = ("plain", "floats", "keyless")
    for name in names:
        shop.edit(name, wrong)
        shop.execute(f"INSERT INTO {name} (id) VALUES (9999)")
    for name in names:
        shop.merge_until(name, lambda rows: 9999 in rows.column("id").to_pylist())
    found = shop.verify(code=1)
    for name in ("plain", "floats"):
        (one,) = found[f"{name}/tables"]["differences"]
        assert (one["what"], one["columns"]) == ("different", ["at"]), name
    assert found["keyless/tables"]["different"] == 2  # one is missing, and one is extra


@pytest.mark.spread(1)
def test_local_engine_delegates_unsupported_tables_to_spark(
    database: Database, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `auto` each table is read by the engine that can; a decimal of 39 digits is text for both."""
    monkeypatch.setattr(importlib.import_module("cdcflow.spark.session"), "session_for", lambda config: spark)
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        shop.file.write_text(shop.file.read_text().replace("engine: local", "engine: auto"))
        shop.execute(
            "CREATE TABLE wide (id int PRIMARY KEY, v numeric(50,30))",
            "INSERT INTO wide SELECT i, i * 1e-30 FROM generate_series(-100, 100) i",
        )
        shop.start("wide")
        place = tmp_path / "warehouse" / "public" / "wide"
        wait_until(lambda: shop.said("merge") and place.exists(), "the rows in a segment")
        found = shop.verify(code=0)["wide/tables"]
        assert (found["verdict"], found["by"], found["rows"]) == ("equal", "digests", 201)
