"""Iceberg tables read without Spark, and what the catalog does when merges are not alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.servers.readers import ClickHouse, DuckDB, Question, Refused

from cdcflow import local
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Table
from cdcflow.spark import job, published_cut, read_cut
from cdcflow.spark.engine import SparkEngine
from cdcflow.spark.formats import table_format
from cdcflow.tables.formats.iceberg import CATALOG
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.job import merge
from cdcflow.tables.paths import table_path

pytestmark = pytest.mark.spark


def catalog_of(warehouse: Path) -> SqlCatalog:
    """As in docs/merge.md: the catalog's name is in its own table."""
    uri = warehouse / CATALOG
    with closing(sqlite3.connect(uri)) as database:
        ((name,),) = database.execute("SELECT DISTINCT catalog_name FROM iceberg_tables").fetchall()
    return SqlCatalog(name, uri=f"sqlite:///{uri}")


def test_pyiceberg_reads_the_latest_rows_and_those_of_a_cut(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path
) -> None:
    """A table in an open format is worth what others read in it: rows that were changed appear once, a cut is a tag. A
    table of another format is not merged into.
    """
    orders = make_table("orders", id="int64", item="string", qty="int16")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "item": f"item {n}", "qty": n}) for n in range(1, 4)])
    job.merge(spark, hand_log.root, warehouse, table_format="iceberg")
    renamed = make_table("orders", id="int64", what="string", qty="int16", numbers={"id": 1, "what": 2, "qty": 3})
    hand_log.segment([(renamed, "u", {"id": 1, "what": "pen", "qty": None}), (renamed, "d", {"id": 2})])
    job.merge(spark, hand_log.root, warehouse)

    table = catalog_of(warehouse).load_table("public.orders")
    rows = table.scan(selected_fields=("id", "what", "qty")).to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "what": "pen", "qty": None}, {"id": 3, "what": "item 3", "qty": 3}]
    first = table.scan(snapshot_id=table.refs()["cdcflow_cut_1"].snapshot_id).to_arrow().sort_by("id").to_pylist()
    assert [row["id"] for row in first] == [1, 2, 3]
    assert published_cut(spark, warehouse).cut == 2
    assert sorted(r["what"] for r in read_cut(spark, warehouse)["public.orders"].collect()) == ["item 3", "pen"]
    with pytest.raises(ConfigurationError, match=r"iceberg tables, and merge\.format says delta"):
        job.merge(spark, hand_log.root, warehouse, table_format="delta")


@pytest.mark.long
def test_sweep_alone_is_a_commit_of_cdcflow(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path
) -> None:
    """A commit that only deletes whole files would not carry cdcflow's summary, and would be reported as an edit by
    another program.
    """
    orders = make_table("orders", id="int64", item="string")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": 1, "item": "gone"})])
    job.merge(spark, hand_log.root, warehouse, table_format="iceberg")
    hand_log.state(orders, "done", 2, since=hand_log.next_offset)
    hand_log.segment([])
    (swept,) = job.merge(spark, hand_log.root, warehouse).tables
    assert swept.version == 2
    assert read_cut(spark, warehouse)["public.orders"].count() == 0
    table = table_format("iceberg").table(spark, warehouse, table_path(orders.id))
    assert table.edits_since(1) == []
    found = table.snapshot()
    assert found is not None
    assert found.transactions["cdcflow/log-a/public.orders/sweep"] == 2


@pytest.mark.long
def test_table_upgraded_to_version_3_is_merged_further(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path
) -> None:
    """Version 3 marks changed rows in deletion vectors, table by table, as docs/merge.md describes, and merges continue
    from that version. The engine that writes version 2 only delegates such a table to Spark.
    """
    orders = make_table("orders", id="int64", item="string")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "item": f"item {n}"}) for n in range(1, 5)])
    job.merge(spark, hand_log.root, warehouse, table_format="iceberg")
    sql = table_format("iceberg").table(spark, warehouse, table_path(orders.id)).sql
    spark.sql(f"ALTER TABLE {sql} SET TBLPROPERTIES ('format-version' = '3')")
    hand_log.segment([(orders, "u", {"id": 1, "item": "pen"}), (orders, "d", {"id": 2})])
    engines = Engines(local.local_engine(warehouse, "iceberg"), lambda: SparkEngine(spark, warehouse, "iceberg"))
    (merged,) = merge(engines, hand_log.root, warehouse).tables
    assert merged.engine == "spark"
    grown = make_table("orders", id="int64", item="string", qty="int32")
    hand_log.segment([(grown, "c", {"id": 9, "item": "cup", "qty": 1}), (grown, "d", {"id": 3})])
    (merged,) = job.merge(spark, hand_log.root, warehouse).tables
    assert merged.edits == ()
    rows = {row.id: (row.item, row.qty) for row in read_cut(spark, warehouse)["public.orders"].collect()}
    assert rows == {1: ("pen", None), 4: ("item 4", None), 9: ("cup", 1)}
    kinds = spark.sql(f"SELECT file_format FROM {sql}.delete_files").collect()
    assert {row.file_format for row in kinds} == {"PUFFIN"}
    assert [row.id for row in read_cut(spark, warehouse, 1)["public.orders"].orderBy("id").collect()] == [1, 2, 3, 4]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg")
def test_version_3_is_read_by_other_programs_or_refused(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path
) -> None:
    """Its marks are deletion vectors, which docs/readers.md lists by reader. A deleted row is never shown."""
    orders = make_table("orders", id="int64", item="string")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "item": f"item {n}"}) for n in range(1, 5)])
    job.merge(spark, hand_log.root, warehouse, table_format="iceberg")
    sql = table_format("iceberg").table(spark, warehouse, table_path(orders.id)).sql
    spark.sql(f"ALTER TABLE {sql} SET TBLPROPERTIES ('format-version' = '3')")
    hand_log.segment([(orders, "u", {"id": 1, "item": "pen"}), (orders, "d", {"id": 2})])
    job.merge(spark, hand_log.root, warehouse)
    assert {row.file_format for row in spark.sql(f"SELECT file_format FROM {sql}.delete_files").collect()} == {"PUFFIN"}

    table = catalog_of(warehouse).load_table("public.orders")
    place = table.metadata_location.removeprefix("file:")
    (duckdb,) = DuckDB().read([Question("iceberg", place)])
    answers = {"duckdb": duckdb, "pyiceberg": table.scan().to_arrow()}
    answers["polars"] = polars.scan_iceberg(table).collect().to_arrow()
    for reader, answer in answers.items():
        assert isinstance(answer, pa.Table), (reader, answer)
        rows = {row["id"]: row["item"] for row in answer.to_pylist()}
        assert rows == {1: "pen", 3: "item 3", 4: "item 4"}, reader
    (clickhouse,) = ClickHouse().read([Question("iceberg", table.location().removeprefix("file:"))])
    assert isinstance(clickhouse, Refused)
