"""What Spark publishes in a folder outlives a power cut; what it had not published is merged again."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.kill.power_cuts import PowerCuts
from tests.support.log.hand_log import HandLog

from cdcflow import local
from cdcflow.errors import CdcflowError
from cdcflow.model.table import Table
from cdcflow.spark import job, read_cut
from cdcflow.spark.engine import SparkEngine
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.formats.iceberg import CATALOG
from cdcflow.tables.local.engine import LocalEngine

pytestmark = pytest.mark.spark
NAME = "public.orders"


def rows(spark: Any, warehouse: Path, cut: int | None = None) -> dict[int, int]:
    return {row.id: row.v for row in read_cut(spark, warehouse, cut)[NAME].collect()}


def restarted(spark: Any) -> None:
    """A machine that starts has nothing in memory."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    spark.catalog.clearCache()


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.spread(1)
def test_a_cut_that_spark_published_is_durable(
    spark: Any, make_table: Callable[..., Table], hand_log: HandLog, warehouse: Path, format_name: str
) -> None:
    """Spark syncs nothing; the disk loses all that was not synced, directly after each merge."""
    warehouse.mkdir()
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    steps = [[("c", n, 0) for n in range(4)], [("u", 1, 1), ("d", 2, 0), ("c", 9, 9)]]
    for number, step in enumerate(steps):
        hand_log.segment([(orders, op, {"id": n, "v": v}) for op, n, v in step])
        disk = PowerCuts(warehouse, every=10_000)
        with disk.watching():
            assert job.merge(spark, hand_log.root, warehouse, table_format=format_name).published
        disk.moments[-1].put_into(warehouse)
        restarted(spark)
        assert rows(spark, warehouse) == ({0: 0, 1: 0, 2: 0, 3: 0}, {0: 0, 1: 1, 3: 0, 9: 9})[number]


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.spread(1)
def test_spark_continues_with_the_remains_of_a_power_cut(
    spark: Any, make_table: Callable[..., Table], hand_log: HandLog, warehouse: Path, format_name: str
) -> None:
    """A commit survived, and files that it names did not: nothing is lost silently. Where the table cannot be merged
    again it is skipped, and the test follows the remedy. The local engine continues as well as Spark.
    """
    warehouse.mkdir()
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "v": 0}) for n in range(4)])
    job.merge(spark, hand_log.root, warehouse, table_format=format_name)
    hand_log.segment([(orders, "u", {"id": 1, "v": 1}), (orders, "d", {"id": 2}), (orders, "c", {"id": 9, "v": 9})])
    disk = PowerCuts(warehouse)
    with disk.watching():
        job.merge(spark, hand_log.root, warehouse)
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    for number in (0, *chance.sample(range(len(disk.moments)), 3)):
        disk.moments[number].put_into(warehouse, chance)
        restarted(spark)
        told = f"seed {seed}, crash {number}"
        why = ""
        continues: Any = chance.choice((partial(job.merge, spark), local.merge))
        try:
            report = continues(hand_log.root, warehouse)
            why = "".join(t.left_out or "" for t in report.tables)
        except CdcflowError as error:  # no table is left, or none can be identified
            why = str(error)
        assert not why or "move the table's folder away" in why or "_cdcflow_cuts away" in why, f"{told}: {why}"
        if not why:
            assert rows(spark, warehouse) == {0: 0, 1: 1, 3: 0, 9: 9}, told


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.spread(1)
def test_torn_checksums_stop_no_reader(
    spark: Any, make_table: Callable[..., Table], hand_log: HandLog, warehouse: Path, format_name: str, engine: str
) -> None:
    """Spark keeps checksums next to each file, and refuses a whole file whose checksums end early."""
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "v": 0}) for n in range(4)])
    job.merge(spark, hand_log.root, warehouse, table_format=format_name)
    before = {*warehouse.rglob(".*.crc")}
    hand_log.segment([(orders, "u", {"id": 1, "v": 1})])
    job.merge(spark, hand_log.root, warehouse)
    for file in {*(warehouse / "public").rglob(".*.crc")} - before:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    restarted(spark)
    if engine == "local":
        with closing(LocalEngine(warehouse, format_name)) as opened:
            opened.table(("public", "orders")).drop_torn(1)
    else:
        SparkEngine(spark, warehouse, format_name).table(("public", "orders")).drop_torn(1)
    assert rows(spark, warehouse) == {0: 0, 1: 1, 2: 0, 3: 0}


@pytest.mark.spread(1)
def test_local_engine_rolls_back_a_snapshot_whose_files_are_torn(
    spark: Any, make_table: Callable[..., Table], hand_log: HandLog, warehouse: Path
) -> None:
    """Spark syncs files after its commit to an Iceberg table. A power cut may leave the commit without them."""
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "v": 0}) for n in range(4)])
    job.merge(spark, hand_log.root, warehouse, table_format="iceberg")
    before = {*warehouse.rglob("*.*")}
    hand_log.segment([(orders, "u", {"id": 1, "v": 1})])
    job.merge(spark, hand_log.root, warehouse)
    catalog, committed = warehouse / CATALOG, (warehouse / CATALOG).read_bytes()
    written = {*(warehouse / "public").rglob("*.parquet"), *(warehouse / "public").rglob("*.avro")} - before
    assert len(written) >= 4  # data, deletes, a manifest, a list of manifests
    for file in sorted(written):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with closing(LocalEngine(warehouse, "iceberg")) as opened:
            table: Any = opened.table(("public", "orders"))
            table.drop_torn(1)
            table.snapshot()
            assert table.rows()["v"].to_pylist() == [0, 0, 0, 0], file.name
        file.write_bytes(whole)
        catalog.write_bytes(committed)
    restarted(spark)
    assert rows(spark, warehouse) == {0: 0, 1: 1, 2: 0, 3: 0}
