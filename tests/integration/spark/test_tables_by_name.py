"""Delta tables in a Hive metastore: readers that use only SQL find them by their names; commits use the path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.catalogs import HiveMetastore
from tests.servers.objects import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.spark.other_process import OtherSpark

from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable
from cdcflow.spark import job, read_cut
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.paths import Metastore, Warehouse

pytestmark = pytest.mark.spark

ORDERS = make_table("orders", schema="shop", id="int64", item="string")
ODD = make_table("Order items/é", schema="My shop", id="int64")
ODD_NAME = "my__20shop.order__20items__2f__c3__a9"


@pytest.fixture(scope="module")
def metastore(server: ObjectServer) -> Iterator[HiveMetastore]:
    keys = {"access.key": ACCESS_KEY, "secret.key": SECRET_KEY}
    place = {"endpoint": server.endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
    with HiveMetastore({f"fs.s3a.{name}": value for name, value in {**keys, **place}.items()}) as started:
        yield started


@pytest.fixture(scope="module")
def other(metastore: HiveMetastore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherSpark]:
    """A Spark as `cdcflow merge` begins it for these settings."""
    file = tmp_path_factory.mktemp("settings") / "cdcflow.yaml"
    file.write_text(f"""
source: {{kind: postgres, url: "postgresql://cdc@localhost/shop"}}
log: {{path: ./log}}
merge:
  warehouse: s3a://lake/named
  catalog: {{type: hive, uri: "{metastore.uri}"}}
  spark:
    spark.sql.shuffle.partitions: "2"
    spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
    spark.hadoop.hive.metastore.connect.retries: "1"
""")
    with OtherSpark(file) as started:
        yield started


@pytest.fixture
def lake(tmp_path: Path, metastore: HiveMetastore, other: OtherSpark) -> Iterator[Warehouse]:
    """A separate warehouse for the test, and an empty metastore."""
    yield Warehouse(tmp_path / "my lake", metastore=Metastore(metastore.uri))
    for (database,) in other.sql("SHOW DATABASES"):
        if database != "default":
            other.sql(f"DROP DATABASE {database} CASCADE")


def left_out(report: MergeReport) -> dict[str, str]:
    return {table.name: table.left_out for table in report.tables if table.left_out is not None}


def test_tables_are_read_under_their_names_in_their_current_state(
    other: OtherSpark, spark: Any, hand_log: HandLog, lake: Warehouse
) -> None:
    """Names are those of the source, as far as a metastore supports them. A name shows the table's latest version and
    columns; naming commits nothing; and readers with the paths need no metastore.
    """
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", {"id": n, "item": f"item {n}"}) for n in (1, 2)] + [(ODD, "c", {"id": 7})])
    assert other.merge(hand_log.root, lake).published
    assert sorted(other.sql("SELECT id, item FROM shop.orders")) == [(1, "item 1"), (2, "item 2")]
    assert other.sql(f"SELECT id FROM {ODD_NAME}") == [(7,)]
    assert other.sql("SELECT cut FROM _cdcflow._cdcflow_cuts") == [(1,)]
    grown = make_table("orders", schema="shop", id="int64", item="string", qty="int32")
    hand_log.segment([(grown, "u", {"id": 1, "item": "pen", "qty": 3}), (grown, "d", {"id": 2})])
    report = other.merge(hand_log.root, lake)
    assert other.sql("SELECT id, item, qty FROM SHOP.Orders") == [(1, "pen", 3)]
    history = other.sql("DESCRIBE HISTORY shop.orders")
    assert len(history) == 1 + next(t.version for t in report.tables if t.name == "shop.orders")
    assert all("cdcflow" in str(row) for row in history), "a commit that is not of a merge"
    assert [row.item for row in read_cut(spark, lake)["shop.orders"].collect()] == ["pen"]
    assert read_cut(spark, Warehouse(lake.root), 1)["shop.orders"].count() == 2


@pytest.mark.long
def test_missing_entry_is_created_by_the_next_merge(other: OtherSpark, hand_log: HandLog, lake: Warehouse) -> None:
    """A run may die between table and entry, an operator may drop one, and a warehouse may be older than its
    metastore.
    """
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"}), (ODD, "c", {"id": 7})])
    assert other.merge(hand_log.root, Warehouse(lake.root)).published
    assert [row[0] for row in other.sql("SHOW DATABASES")] == ["default"]
    assert not other.merge(hand_log.root, lake).published
    names = ("shop.orders", ODD_NAME, "_cdcflow._cdcflow_cuts")
    assert [len(other.sql(f"SELECT * FROM {name}")) for name in names] == [1, 1, 1]
    other.sql(f"DROP TABLE {ODD_NAME}")
    # A metastore removes the folder of a database that is dropped: so that folder must contain no tables.
    other.sql("DROP DATABASE shop CASCADE")
    other.sql("DROP DATABASE _cdcflow CASCADE")
    assert not other.merge(hand_log.root, lake).published, "nothing is new"
    assert [len(other.sql(f"SELECT * FROM {name}")) for name in names] == [1, 1, 1]


@pytest.mark.long
def test_name_exists_as_soon_as_the_table_does(other: OtherSpark, hand_log: HandLog, lake: Warehouse) -> None:
    """A first merge that dies over its rows has made the table: what shows it, and what removes it, is its name."""
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"})])
    (file,) = Path(hand_log.root).rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(bytes(len(whole)))
    with pytest.raises(
        CdcflowError, match=r"shop\.orders cannot be merged: .*\.parquet, a file of the log, is damaged"
    ):
        other.merge(hand_log.root, lake)
    assert other.sql("SELECT * FROM shop.orders") == []
    file.write_bytes(whole)
    assert other.merge(hand_log.root, lake).published
    assert other.sql("SELECT id, item FROM shop.orders") == [(1, "pen")]


@pytest.mark.long
def test_name_of_another_table_is_not_changed(
    other: OtherSpark, hand_log: HandLog, lake: Warehouse, metastore: HiveMetastore, tmp_path: Path
) -> None:
    """A reader of that name keeps reading the table that had it first; cdcflow's table is excluded from the cuts until
    one of the remedies is done, and the other tables are merged.
    """
    other.sql("CREATE DATABASE shop")
    other.sql(f"CREATE TABLE shop.orders USING delta LOCATION '{tmp_path}/elsewhere' AS SELECT 'theirs' AS x")
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"}), (ODD, "c", {"id": 7})])
    (why,) = left_out(other.merge(hand_log.root, lake)).values()
    assert "shop.orders is another table's" in why
    assert f"{tmp_path}/elsewhere" in why
    assert "set merge.catalog.prefix" in why
    assert other.sql("SELECT * FROM shop.orders") == [("theirs",)]
    assert not (tmp_path / "my lake" / "shop").exists()
    assert other.sql(f"SELECT id FROM {ODD_NAME}") == [(7,)]

    prefixed = Warehouse(lake.root, metastore=Metastore(metastore.uri, prefix="lake_"))
    assert left_out(other.merge(hand_log.root, prefixed)) == {}
    assert other.sql("SELECT id, item FROM lake_shop.orders") == [(1, "pen")]
    assert other.sql("SELECT x FROM shop.orders") == [("theirs",)]
    other.sql("DROP TABLE shop.orders")
    other.sql(f"CREATE VIEW shop.orders AS SELECT * FROM {ODD_NAME}")
    assert "no place (a view)" in left_out(other.merge(hand_log.root, lake))["shop.orders"]
    other.sql("DROP VIEW shop.orders")
    assert left_out(other.merge(hand_log.root, lake)) == {}
    assert other.sql("SELECT id, item FROM shop.orders") == [(1, "pen")]


@pytest.mark.long
def test_cuts_of_two_warehouses_have_separate_names(
    other: OtherSpark, hand_log: HandLog, lake: Warehouse, tmp_path: Path
) -> None:
    """The second warehouse of a metastore is refused, with the prefix as remedy, before it has done anything."""
    hand_log.segment([(ODD, "c", {"id": 7})])
    assert other.merge(hand_log.root, lake).published
    second = HandLog(tmp_path / "second", "log-b")
    second.segment([(ORDERS, "c", {"id": 1, "item": "pen"})])
    with pytest.raises(ConfigurationError, match=r"_cdcflow_cuts is another table's(?s:.*)set merge\.catalog\.prefix"):
        other.merge(second.root, Warehouse(tmp_path / "2", metastore=lake.metastore))
    assert not list((tmp_path / "2").rglob("_delta_log"))


@pytest.mark.long
def test_of_two_names_that_differ_in_case_the_second_is_skipped(
    other: OtherSpark, hand_log: HandLog, lake: Warehouse
) -> None:
    """To a metastore they are one; neither shows the rows of the other."""
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"})])
    assert other.merge(hand_log.root, lake).published
    capital = make_table("Orders", schema="shop", id="int64", item="string")
    hand_log.segment([(capital, "c", {"id": 2, "item": "cup"}), (ORDERS, "c", {"id": 3, "item": "pad"})])
    why = left_out(other.merge(hand_log.root, lake))
    assert why.keys() == {"shop.Orders"}
    assert "leave one of the two tables out of source.tables" in why["shop.Orders"]
    assert sorted(other.sql("SELECT id FROM shop.orders")) == [(1,), (3,)]


@pytest.mark.long
def test_tables_in_a_store_have_names_too(
    other: OtherSpark, hand_log: HandLog, metastore: HiveMetastore, server: ObjectServer, lake: Warehouse
) -> None:
    """The metastore checks the location of a database and a table, so it must reach the store."""
    address = server.objects("lake").address("lake")
    place = Warehouse(f"s3a://lake/{metastore.port}", address, metastore=lake.metastore)
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"})])
    assert other.merge(hand_log.root, place).published
    assert other.sql("SELECT id, item FROM shop.orders") == [(1, "pen")]
    described = {row[0]: row[1] for row in other.sql("DESCRIBE EXTENDED shop.orders")}
    assert described["Location"] == f"{place.root}/shop/orders"
    assert not other.merge(hand_log.root, place).published


@pytest.mark.long
def test_session_that_uses_another_metastore_is_refused(
    other: OtherSpark, spark: Any, hand_log: HandLog, lake: Warehouse
) -> None:
    """The names would be in a metastore that no reader uses, or in the memory of one process."""
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"})])
    with pytest.raises(ConfigurationError, match=r"uses none\n.*spark.sql.catalogImplementation=hive, spark.hadoop"):
        job.merge(spark, hand_log.root, lake)
    elsewhere = Warehouse(lake.root, metastore=Metastore("thrift://127.0.0.1:1"))
    with pytest.raises(ConfigurationError, match=r"uses the one at thrift://127.0.0.1:\d\d+\n"):
        other.merge(hand_log.root, elsewhere)
    assert not Path(lake.root).exists()
    assert other.merge(hand_log.root, Warehouse(lake.root, metastore=Metastore())).published, "the session's own"


@pytest.mark.long
def test_unavailable_metastore_is_named_and_nothing_is_lost(
    other: OtherSpark, hand_log: HandLog, lake: Warehouse, metastore: HiveMetastore
) -> None:
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"})])
    metastore.stop()
    try:
        with pytest.raises(SinkUnavailable, match=r"the Hive metastore thrift://\S+: .+\n.*merge again"):
            other.merge(hand_log.root, lake)
    finally:
        metastore.start()
    assert other.merge(hand_log.root, lake).published
    assert other.sql("SELECT id, item FROM shop.orders") == [(1, "pen")]
