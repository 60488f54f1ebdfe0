"""A log and a warehouse in an object store: Spark reads and writes both in place."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.servers.objects import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, assert_as_folded, make_table, make_world, write_round
from tests.support.objects.logs import put_away

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.reader import list_segments
from cdcflow.model.stores import StoreAddress
from cdcflow.model.table import Table
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.spark import job, read_cut
from cdcflow.spark.cuts import published_cut
from cdcflow.spark.runtime import stores
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.paths import LEASE, Warehouse

SEED = int(os.environ.get("CDCFLOW_SPARK_SEED", "0")) or 20261123


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, server: ObjectServer, tmp_path: Path) -> Warehouse:
    """A warehouse in a bucket, of each format; Iceberg's catalog is elsewhere."""
    address = server.objects("lake").address("lake")
    catalog = {"type": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "jdbc.schema-version": "V1", "clients": "1"}
    place = f"s3a://lake/{tmp_path.name}/{request.param}"
    return Warehouse(place, address, catalog if request.param == "iceberg" else None)


def log_in(server: ObjectServer, hand_log: HandLog, name: str) -> Layout:
    """The currently sealed part of a log, under a separate prefix of a bucket, as seen from a machine that has nothing
    else.
    """
    objects = server.objects("logs", name)
    put_away(hand_log.root, Bucket(objects))
    elsewhere = hand_log.root.parent / "elsewhere"
    return Layout(elsewhere, BucketStore(Bucket(objects), elsewhere, 1 << 20))


@pytest.mark.spread(1)
def test_tables_in_a_store_are_the_fold_of_a_log_in_a_store(
    spark: Any, hand_log: HandLog, server: ObjectServer, lake: Warehouse, tmp_path: Path
) -> None:
    """No data of either passes this machine's disk, each cut stays readable, and the keys are not visible."""
    world = make_world(SEED, 40)
    odd = make_table("orders", schema="_shop", id="int64")  # files that begin so Spark takes for hidden
    seen = 0
    for round_ in range(2):
        write_round(world, hand_log, round_)
        hand_log.segment([(odd, "c", {"id": round_})])
        layout = log_in(server, hand_log, tmp_path.name)
        report = job.merge(spark, layout, lake)
        assert report.published
        assert [table for table in report.tables if table.left_out is not None] == []
        tables = read_cut(spark, lake, incomplete=True)
        assert_as_folded(world, rows_in(tables), f"seed {SEED}, round {round_}")
        assert tables["_shop.orders"].count() == round_ + 1
        if round_ == 0:
            seen = tables["public.keyed"].count()
    first = read_cut(spark, lake, _first_cut(spark, lake), incomplete=True)["public.keyed"]
    assert first.count() == seen
    assert list((tmp_path / "elsewhere").rglob("*.parquet")) == []
    assert not (tmp_path / "s3a:").exists()
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert SECRET_KEY not in listed


READ_AT_MOST = 1.25
"""The most of a range that is read, including its files' footers and what is read twice."""


@pytest.mark.long
@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", ["first load", "whole rows", "unchanged columns", "key changes"])
@pytest.mark.parametrize("format_name", ["delta", "iceberg"])
def test_a_log_is_read_once(
    spark: Any, hand_log: HandLog, server: ObjectServer, tmp_path: Path, kind: str, format_name: str
) -> None:
    """Reads from a store cost money: a merge reads a range's files once, whatever it needs of them."""
    table = make_table("docs", id="int64", doc="string", a="int32")
    hand_log.state(table)
    chance = random.Random(SEED)

    def doc() -> str:
        return chance.randbytes(300).hex()

    hand_log.segment([(table, "r", {"id": n, "doc": doc(), "a": n}) for n in range(3000)])
    warehouse = tmp_path / "warehouse"
    if kind != "first load":
        job.merge(spark, log_in(server, hand_log, tmp_path.name), warehouse, table_format=format_name)
        steps: list[Step] = [(table, "u", {"id": n, "doc": doc(), "a": -n}) for n in range(1500)]
        if kind == "unchanged columns":
            steps += [(table, "u", {"id": n, "a": 0, "_unchanged": ["doc"]}) for n in range(1500, 1700)]
        if kind == "key changes":
            for n in range(100, 150):
                moved = {"id": n + 9000, "a": 0, "_unchanged": ["doc"], "_before": {"id": n}}
                steps += [(table, "d", {"id": n}), (table, "c", moved)]
        hand_log.segment(steps)
    newest = list_segments(Layout(hand_log.root))[-1]
    size = sum(file.bytes for file in newest.files if file.table is not None)
    layout, before = log_in(server, hand_log, tmp_path.name), _read_from_stores(spark)
    assert job.merge(spark, layout, warehouse, table_format=format_name).published
    read = _read_from_stores(spark) - before
    assert 0.5 * size < read < READ_AT_MOST * size, f"{read} of {size}"


def _read_from_stores(spark: Any) -> int:
    found = spark._jvm.org.apache.hadoop.fs.GlobalStorageStatistics.INSTANCE.get("s3a")
    return 0 if found is None else int(found.getLong("bytesRead"))  # None: nothing was read there yet


def rows_in(tables: dict[str, Any]) -> Callable[[Table], list[Any]]:
    return lambda table: list(tables[str(table.id)].collect())


def _first_cut(spark: Any, lake: Warehouse) -> int:
    newest = published_cut(spark, lake).cut
    for cut in range(1, newest + 1):
        with suppress(ConfigurationError):
            return published_cut(spark, lake, cut).cut
    raise AssertionError("no cut")


@pytest.mark.spread(1)
def test_one_merge_at_a_time_in_a_store_and_a_dead_one_is_forgotten(
    spark: Any, hand_log: HandLog, server: ObjectServer, lake: Warehouse
) -> None:
    """G13 between machines: the second gets an error; a killed merge's lock blocks others for a minute, by the store's
    clock.
    """
    orders = make_table("orders", id="int64")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": 1})])
    stores.reach(spark, lake.store or StoreAddress(""))
    with stores.lease(spark, lake), pytest.raises(SinkUnavailable, match="another merge works there"):
        job.merge(spark, hand_log.root, lake)
    left = server.directory / "buckets" / lake.location_of((LEASE,)).removeprefix("s3a://")
    assert not left.exists()
    left.parent.mkdir(parents=True, exist_ok=True)
    Bucket(server.objects("lake", lake.location_of(()).removeprefix("s3a://lake/"))).put(
        LEASE, b"a merge that was killed"
    )
    with pytest.raises(SinkUnavailable, match=r"expires after 60 s"):
        job.merge(spark, hand_log.root, lake)
    os.utime(left, (1, 1))
    assert job.merge(spark, hand_log.root, lake).published


def test_store_that_overwrites_existing_objects_is_refused(spark: Any, hand_log: HandLog, tmp_path: Path) -> None:
    """Two drivers would overwrite one another's commits there without noticing."""
    orders = make_table("orders", id="int64")
    hand_log.segment([(orders, "c", {"id": 1})])
    careless = ObjectServer()
    careless.conditional_writes = False
    with careless as server:
        place = Warehouse("s3a://careless/lake", server.objects("careless").address("careless"))
        with pytest.raises(ConfigurationError, match="no conditional writes"):
            job.merge(spark, hand_log.root, place)
        assert not list((server.directory / "buckets" / "careless").rglob("_delta_log"))
        left = [p.name for p in (server.directory / "buckets" / "careless").rglob("*") if p.is_file()]
        assert left == [], "files of the check remain"


def test_a_session_that_would_lose_commits_or_cannot_reach_a_store_is_refused() -> None:
    """Delta's own store for s3a trusts one driver's view of what exists; the remedy is the one that works."""
    spark = MagicMock()
    spark.sparkContext.getConf.return_value.get.return_value = ""
    with pytest.raises(ConfigurationError, match=r"could undo the commits of the other\n.*ConditionalLogStore.*S3"):
        stores.check_commits(spark, Warehouse("s3a://b/w"))
    spark.sparkContext._jsc.hadoopConfiguration.return_value.getClassByName.side_effect = RuntimeError("no such class")
    spark.sparkContext._jsc.hadoopConfiguration.return_value.get.return_value = None
    with pytest.raises(ConfigurationError, match=r"it has no S3A\n.*cdcflow.spark.jars --s3"):
        stores.reach(spark, StoreAddress("b", access_key=ACCESS_KEY, secret_key=SECRET_KEY))


def test_a_bucket_of_the_same_name_in_another_store_is_refused(spark: Any) -> None:
    """Hadoop caches its clients by a bucket's name: this Spark would keep reading from the first store."""
    stores.reach(spark, StoreAddress("twins", "http://127.0.0.1:1", access_key=ACCESS_KEY, secret_key=SECRET_KEY))
    elsewhere = StoreAddress("twins", "http://127.0.0.1:2", access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    with pytest.raises(ConfigurationError, match=r"twins at \S+:1 .*at \S+:2 .*too\n.*a new Spark"):
        stores.reach(spark, elsewhere)
    stores.reach(spark.newSession(), StoreAddress("other-twins", elsewhere.endpoint, access_key=ACCESS_KEY))


def test_unavailable_store_is_named_and_nothing_is_lost(
    spark: Any, hand_log: HandLog, make_table: Callable[..., Any]
) -> None:
    orders = make_table("orders", id="int64")
    hand_log.segment([(orders, "c", {"id": 1})])
    with ObjectServer() as server:
        place = Warehouse("s3a://gone/lake", server.objects("gone").address("gone"))
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.s3a.bucket.gone.attempts.maximum", "1")
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.s3a.bucket.gone.retry.limit", "1")
    with pytest.raises(SinkUnavailable, match=r"s3a://gone/lake(?s:.*)merge again") as told:
        job.merge(spark, hand_log.root, place)
    assert SECRET_KEY not in str(told.value)
