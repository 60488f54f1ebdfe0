"""Torn commits, restored copies, and edits of a table by other programs: by each engine, as Spark reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.kill.torn_commits import TORN, delta_logs, tear_newest
from tests.support.log.hand_log import HandLog

from cdcflow import local
from cdcflow.errors import HistoryLost
from cdcflow.model.table import Table
from cdcflow.spark import job, read_cut

pytestmark = pytest.mark.spark
NAME = "public.orders"


@pytest.fixture
def orders(make_table: Callable[..., Table], hand_log: HandLog) -> Table:
    table = make_table("orders", id="int64", v="int32")
    hand_log.state(table)
    return table


def shown(spark: Any, warehouse: Path, cut: int | None = None) -> list[int] | str:
    try:
        return sorted(row.id for row in read_cut(spark, warehouse, cut)[NAME].collect())
    except HistoryLost:
        return "refused"


@pytest.mark.spread(1)
@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("of", ["table", "cuts", "both"])
def test_spark_merges_again_what_was_torn(
    spark: Any, orders: Table, hand_log: HandLog, warehouse: Path, torn: str, of: str
) -> None:
    """Delta takes a file of 0 bytes for a commit of nothing, and the range for merged."""
    for n in (1, 2):
        hand_log.segment([(orders, "c", {"id": n, "v": 0})])
        job.merge(spark, hand_log.root, warehouse, table_format="delta")
    for log in delta_logs(warehouse, of):
        tear_newest(log, torn)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # as a machine that starts
    job.merge(spark, hand_log.root, warehouse)
    assert shown(spark, warehouse) == [1, 2]
    hand_log.segment([(orders, "c", {"id": 3, "v": 0})])
    assert job.merge(spark, hand_log.root, warehouse).published
    assert shown(spark, warehouse) == [1, 2, 3]
    assert sorted(local.read_cut(warehouse)[NAME]["id"].to_pylist()) == [1, 2, 3]


# Iceberg's catalog knows one table only: rollbacks, below, test what is restored there.
@pytest.mark.long
@pytest.mark.parametrize("merged_by", ["delta by spark", "delta by local"], indirect=True)
def test_restored_copy_shows_no_other_cut_to_spark(
    spark: Any, merge: Callable[..., Any], orders: Table, hand_log: HandLog, warehouse: Path
) -> None:
    """The pins of both engines are the same: each reads what the other published."""
    folder, away = warehouse / "public" / "orders", warehouse.parent / "away"
    for n in range(1, 6):
        hand_log.segment([(orders, "c", {"id": n, "v": 0})])
        merge(hand_log.root, warehouse)
        if n == 2:
            shutil.copytree(folder, away)
    shutil.rmtree(folder)
    away.rename(folder)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for n in (6, 7, 8):
        hand_log.segment([(orders, "c", {"id": n, "v": 0})])
        assert merge(hand_log.root, warehouse).published
        found = {cut: shown(spark, warehouse, cut) for cut in range(1, n + 1)}
        whole = {1: [1], 2: [1, 2], **{cut: list(range(1, cut + 1)) for cut in range(6, n + 1)}}
        assert found == {**whole, **dict.fromkeys((3, 4, 5), "refused")}


@pytest.mark.spread(1)
@pytest.mark.parametrize("what", ["delete", "restore"])
def test_edits_are_in_the_next_cut_by_every_engine(
    spark: Any,
    merge: Callable[..., Any],
    format_name: str,
    orders: Table,
    hand_log: HandLog,
    warehouse: Path,
    sql_of: Callable[[Table], str],
    what: str,
) -> None:
    """The published cut was published again, with rows that another program had changed."""
    for n in (1, 2, 3):
        hand_log.segment([(orders, "c", {"id": n, "v": 0})])
        merge(hand_log.root, warehouse)
    spark.sql(_edit(spark, sql_of(orders), format_name, what))
    assert not merge(hand_log.root, warehouse).published
    expected = {1: [1], 2: [1, 2], 3: [1, 2, 3]}
    assert {cut: shown(spark, warehouse, cut) for cut in expected} == expected
    hand_log.segment([(orders, "c", {"id": 4, "v": 0})])
    assert merge(hand_log.root, warehouse).published
    assert {cut: shown(spark, warehouse, cut) for cut in expected} == expected


def _edit(spark: Any, sql: str, format_name: str, what: str) -> str:
    if what == "delete":
        return f"DELETE FROM {sql} WHERE id = 1"
    if format_name == "delta":
        version = spark.sql(f"DESCRIBE HISTORY {sql}").selectExpr("max(version)").collect()[0][0]
        return f"RESTORE TABLE {sql} TO VERSION AS OF {version - 1}"
    catalog, name = sql.split(".", 1)
    before = spark.sql(
        f"SELECT parent_id FROM {sql}.refs r JOIN {sql}.snapshots s USING (snapshot_id) WHERE name='main'"
    )
    return f"CALL {catalog}.system.rollback_to_snapshot('{name}', {before.collect()[0][0]})"
