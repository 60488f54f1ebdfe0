"""Maintenance by Spark: kept cuts stay readable, files become fewer, and the local engine continues from there."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.errors import HistoryLost
from cdcflow.spark import read_cut
from cdcflow.spark.cuts import CutsTable
from cdcflow.spark.engine import SparkEngine
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.maintenance import UpkeepPolicy, upkeep
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.engine import LocalCuts

pytestmark = pytest.mark.spark

CUTS, KEPT = 10, 4
DAY = 86_400.0


def merged_days_ago(days: int, hand_log: HandLog, warehouse: Path, table_format: str) -> None:
    """A merge that happened this many days ago for everything in the warehouse."""
    if table_format == "iceberg":  # nothing goes by the age of its files
        local.merge(hand_log.root, warehouse, table_format=table_format)
        return
    at = time.time() - days * DAY
    there = set(warehouse.rglob("*"))
    right = LocalCuts._row

    def row(cuts: LocalCuts, cut: Any) -> pa.Table:
        found = right(cuts, cut)
        published = pa.array([datetime.fromtimestamp(at, UTC)], found.schema.field("published").type)
        return found.set_column(found.schema.get_field_index("published"), "published", published)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdcflow.tables.local.delta._now_ms", lambda: int(at * 1000))
        patch.setattr(LocalCuts, "_row", row)
        local.merge(hand_log.root, warehouse, table_format=table_format)
    for path in set(warehouse.rglob("*")) - there:
        os.utime(path, (at, at))


def rows_at(spark: Any, warehouse: Path, cut: int) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(map(tuple, t.collect())) for name, t in read_cut(spark, warehouse, cut).items()}


@pytest.mark.long
@pytest.mark.parametrize("table_format", FORMATS)
def test_kept_cuts_read_the_same_after_spark_maintained_the_tables(
    spark: Any, hand_log: HandLog, warehouse: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VACUUM and expire_snapshots do not know about cuts; cdcflow's calls of them must. A merge continues as if nothing
    had happened, and reports no edit.
    """
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)
    orders, quiet = make_table("orders", id="int64", v="int32"), make_table("quiet", id="int64")
    hand_log.state(orders)
    hand_log.state(quiet)
    hand_log.segment([(quiet, "c", {"id": 1}), *((orders, "c", {"id": n, "v": 0}) for n in range(40))])
    merged_days_ago(3 * CUTS, hand_log, warehouse, table_format)
    for cut in range(2, CUTS + 1):
        hand_log.segment([(orders, "u", {"id": cut * 3 + n, "v": cut}) for n in range(3)])
        merged_days_ago(3 * (CUTS - cut + 1), hand_log, warehouse, table_format)
    kept = range(CUTS - KEPT + 1, CUTS + 1)
    before = {cut: rows_at(spark, warehouse, cut) for cut in kept}
    files = {path for path in warehouse.rglob("*") if path.suffix in (".parquet", ".bin")}

    engine = SparkEngine(spark, warehouse, table_format)
    now = time.time() + 60
    since = engine.cuts().list_cuts()[-KEPT].published / 1e6
    policy = UpkeepPolicy(keep_s=now - since, budget_s=600)
    both = []
    if table_format == "delta":
        report = upkeep(Engines(engine), policy, lambda: now)
        assert "VACUUM would delete these files" in report.tables[0].skipped, (
            report
        )  # its log remembers a week until now
        sql = engine.table(("public", "orders")).sql
        spark.sql(f"ALTER TABLE {sql} SET TBLPROPERTIES ('cdcflow.removals_known_since' = '0')")
        both.append(report)
    report = upkeep(Engines(engine), policy, lambda: now)
    both.append(report)
    assert not [table.skipped for table in report.tables if table.skipped], report
    assert any("files made 1" in what for one in both for what in one.tables[0].done), both
    assert {cut: rows_at(spark, warehouse, cut) for cut in kept} == before
    assert before[CUTS]["public.quiet"] == [(1, 1, None)]
    assert report.oldest == kept[0]
    assert [one.cut for one in CutsTable(spark, table_format, warehouse).list_cuts()] == list(kept)
    with pytest.raises(HistoryLost, match="has expired"):
        read_cut(spark, warehouse, kept[0] - 1)
    left = {path for path in warehouse.rglob("*") if path.suffix in (".parquet", ".bin")}
    assert {path.parent.name for path in files - left} & {"orders", "data"}

    hand_log.segment([(orders, "u", {"id": 0, "v": 77})])
    merged = local.merge(hand_log.root, warehouse)
    assert [(t.name, t.changes, t.edits) for t in merged.tables] == [("public.orders", 1, ()), ("public.quiet", 0, ())]
    assert rows_at(spark, warehouse, CUTS + 1)["public.orders"][0][:2] == (0, 77)
