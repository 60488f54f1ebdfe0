"""Rows of Delta tables that Spark changes without a MERGE: what makes it correct, and where it runs a MERGE
after all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.merge.orders import AFTER_PARTIAL, PARTIAL, MergedOrders

from cdcflow.model.table import Table
from cdcflow.spark.private_delta import classes, transaction
from cdcflow.spark.runtime.sessions import FAST_DELTA
from cdcflow.tables.paths import table_path

pytestmark = pytest.mark.spark

JOBS_MAX = 14
"""Spark's jobs of a merge that changes one small table, its cut published. With a MERGE it takes about 30."""


class Orders(MergedOrders):
    """In Delta."""

    format = "delta"

    @property
    def path(self) -> Path:
        return self.warehouse.joinpath(*table_path(self.table.id))

    def frame(self) -> Any:
        return self.spark.read.format("delta").load(str(self.path))

    def sql(self, text: str) -> Any:
        return self.spark.sql(text.replace("orders", f"delta.`{self.path}`"))

    def newest(self) -> Any:
        """The latest commit, according to Delta's history."""
        return self.sql("DESCRIBE HISTORY orders").first()


@pytest.fixture
def orders(spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path) -> Orders:
    return Orders(spark, hand_log, warehouse, make_table)


def said_a_merge(commit: Any) -> bool:
    """Delta's command records what it did, and cdcflow's transactions do not."""
    return commit.operation == "MERGE" and bool(commit.operationMetrics)


def test_few_jobs_change_a_table(orders: Orders) -> None:
    """A small cycle consists of planning and jobs: what a MERGE needs thirty for is done in a third of them."""
    orders.change(("u", {"id": 1, "a": 7, "doc": "x"}))

    def jobs() -> int:
        # Spark drops old ones, so they are counted by the number of the latest one.
        return int(max(orders.spark.sparkContext.statusTracker().getJobIdsForGroup(None)))

    orders.log.segment([(orders.table, "u", {"id": n, "a": -n, "doc": "new"}) for n in range(50, 90)])
    before = jobs()
    orders.merge()
    assert 0 < jobs() - before <= JOBS_MAX
    assert not said_a_merge(orders.newest())
    assert orders.row(60) == (-60, "new")
    assert orders.frame().count() == 200


@pytest.mark.long
def test_values_that_changes_leave_unchanged_are_copied_from_the_old_rows(orders: Orders) -> None:
    """P01, G05: the table is scanned once, for those of its columns that the changes lack."""
    orders.change(*PARTIAL)
    assert not said_a_merge(orders.newest())
    assert orders.rows(*AFTER_PARTIAL) == [*AFTER_PARTIAL.values()]
    assert orders.frame().count() == 200


@pytest.mark.long
def test_row_that_is_newer_than_its_change_is_not_touched(orders: Orders) -> None:
    """G08: only an edit by hand makes such a row; a MERGE, which runs in that case, compares row by row."""
    orders.sql("UPDATE orders SET a = 77, _offset = 100000 WHERE id = 3")
    orders.change(("u", {"id": 3, "a": 1, "doc": "old"}), ("u", {"id": 4, "a": 44, "doc": "four"}))
    assert said_a_merge(orders.newest())
    assert orders.row(3) == (77, "doc 3")
    assert orders.row(4) == (44, "four")


@pytest.mark.long
def test_table_with_a_change_feed_keeps_it(orders: Orders) -> None:
    """The feed has readers: only Delta's own command writes what it shows."""
    orders.sql("ALTER TABLE orders SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    orders.change(("u", {"id": 8, "a": 80, "doc": "eight"}))
    commit = orders.newest()
    assert said_a_merge(commit)
    feed = orders.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", commit.version)
    shown = feed.load(str(orders.path)).collect()
    assert sorted(row._change_type for row in shown) == ["update_postimage", "update_preimage"]


@pytest.mark.long
def test_table_of_many_files_is_read_only_where_its_bounds_match(orders: Orders) -> None:
    """A version's checksum names few files only; of more, Delta picks those that may have the range's keys."""
    columns = orders.frame().columns
    orders.frame().repartitionByRange(60, "id").select(columns).write.format("delta").mode("overwrite").save(
        str(orders.path)
    )
    files = len(orders.frame().inputFiles())
    assert files > 50
    asked: list[int] = []
    right = transaction.DeltaTransaction._rows

    def rows(change: Any, found: Any, names: Any) -> Any:
        asked.append(found.length())
        return right(change, found, names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction.DeltaTransaction, "_rows", rows)
        orders.change(("u", {"id": 100, "a": -1, "doc": "hundred"}), ("u", {"id": 103, "a": -3, "doc": "more"}))
    assert 0 < sum(asked) < 5
    assert orders.row(100) == (-1, "hundred")
    assert orders.row(103) == (-3, "more")
    assert orders.frame().count() == 200


def switch_off(orders: Orders, patch: pytest.MonkeyPatch) -> Iterator[None]:
    orders.spark.conf.set(FAST_DELTA, "false")
    yield
    orders.spark.conf.unset(FAST_DELTA)


def change_version(orders: Orders, patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(classes, "TESTED", "3.0.")
    yield


@pytest.mark.long
@pytest.mark.parametrize("way", [switch_off, change_version])
def test_with_another_delta_or_with_the_switch_off_sql_statements_are_executed(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, way: Callable[..., Any]
) -> None:
    """cdcflow calls interfaces of Delta that are not public: it does so only with versions that it was tested with,
    and not if an operator does not want it."""
    with contextmanager(way)(orders, monkeypatch):
        orders.change(("u", {"id": 9, "a": 90, "doc": "nine"}), ("d", {"id": 10}))
    assert said_a_merge(orders.newest())
    assert (orders.row(9), orders.row(10)) == ((90, "nine"), None)
    assert orders.frame().count() == 199
    orders.change(("u", {"id": 9, "a": 91, "doc": "nine"}))
    assert said_a_merge(orders.newest()) == (way is change_version)


@pytest.mark.long
def test_rows_of_a_file_go_time_and_again(orders: Orders) -> None:
    """A vector that forgot earlier deletes would restore rows; a file whose rows are all deleted is removed as
    a whole.
    """
    for start in (0, 50, 100, 150):
        orders.change(*(("d", {"id": n}) for n in range(start, start + 49)))
    assert sorted(row.id for row in orders.frame().select("id").collect()) == [49, 99, 149, 199]
    orders.change(*(("d", {"id": n}) for n in (49, 99, 149, 199)))
    assert orders.frame().count() == 0
    assert orders.frame().inputFiles() == []
