"""Cuts as readers without cdcflow see them in Spark: through the SQL in the warehouse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Table
from cdcflow.spark import published_cut, read_cut
from cdcflow.spark.cuts import CutsTable
from cdcflow.spark.job import MergeReport
from cdcflow.tables.job import views
from cdcflow.tables.paths import Warehouse

pytestmark = pytest.mark.spark

Merge = Callable[..., MergeReport]


@contextmanager
def somebodys_session(spark: Any, sql_name: str) -> Iterator[Any]:
    """A session of a reader that has the warehouse's catalog, if it has one, but not cdcflow."""
    other = spark.newSession()
    catalog = sql_name.split(".")[0]
    if catalog != "delta":
        for name, value in spark.sparkContext.getConf().getAll():
            other.conf.set(name, value) if name.startswith(f"spark.sql.catalog.{catalog}") else None
        for name, value in _settings(spark, catalog.strip("`")):
            other.conf.set(name, value)
        other.sql(f"USE {catalog}")
    yield other


def _settings(spark: Any, catalog: str) -> list[tuple[str, str]]:
    found = spark.sql("SET").where(f"key LIKE 'spark.sql.catalog.{catalog}%'").collect()
    return [(row.key, row.value) for row in found]


def rows_of(session: Any, sql: str, query: str) -> list[tuple[Any, ...]]:
    """The page's way: each statement of the file, then a query over the views."""
    for statement in sql.split(";\n"):
        if statement.strip():
            session.sql(statement)
    return [tuple(row) for row in session.sql(query).collect()]


@pytest.mark.long
def test_sql_in_the_warehouse_shows_one_point_in_time_of_all_tables(
    spark: Any,
    make_table: Callable[..., Table],
    hand_log: Any,
    warehouse: Path,
    merge: Merge,
    sql_of: Callable[[Table], str],
    format_name: str,
) -> None:
    """Later merges of one table do not show, a table that has not changed since is shown at its version of that cut,
    and positions and times resolve to the same cuts as in `read_cut`.
    """
    orders = make_table("orders", id="int64", item="string")
    odd = make_table("Odd `name", schema="shop", id="int64")
    hand_log.state(orders)
    hand_log.state(odd)
    hand_log.segment([(orders, "c", {"id": 1, "item": "pen"}), (odd, "c", {"id": 1})])
    merge(hand_log.root, warehouse)
    hand_log.segment([(orders, "u", {"id": 1, "item": "ink"})])
    merge(hand_log.root, warehouse)
    latest = warehouse.joinpath(*views.LATEST).read_text()
    hand_log.segment([(orders, "u", {"id": 1, "item": "later"}), (odd, "c", {"id": 2})])
    merge(hand_log.root, warehouse, ["public.orders"])

    both = "SELECT o.item, (SELECT count(*) FROM `shop.Odd ``name`) FROM `public.orders` o"
    with somebodys_session(spark, sql_of(orders)) as other:
        assert rows_of(other, latest, both) == [("ink", 1)]
        first = views.spark_sql(published_cut(spark, warehouse, 1), Warehouse(warehouse), format_name)
        assert rows_of(other, first, both) == [("pen", 1)]
    merge(hand_log.root, warehouse)

    listed = CutsTable(spark, format_name, warehouse).list_cuts()
    assert [(one.cut, one.tables) for one in listed] == [(1, 2), (2, 2), (3, 2)]
    for cut, item in zip(listed, ("pen", "ink", "later"), strict=True):
        then = datetime.fromtimestamp(cut.commit_clock / 1e6, UTC)
        for as_of in (cut.cut, cut.position, then):
            assert read_cut(spark, warehouse, as_of=as_of)["public.orders"].collect()[0].item == item
    with pytest.raises(ConfigurationError, match="the oldest cut that is kept is 1"):
        read_cut(spark, warehouse, as_of="1970-01-01")
