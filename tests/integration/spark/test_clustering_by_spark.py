"""Maintenance by Spark that clusters: in which order it writes rows into files, and how it runs alongside a merge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.classic.dataframe import DataFrame
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.file_rows import places_of

from cdcflow import local
from cdcflow.spark import read_cut
from cdcflow.spark.engine import SparkEngine
from cdcflow.spark.private_delta import files as delta_files
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.maintenance import TableUpkeep, UpkeepPolicy, upkeep
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.merge.policy import Policies, TablePolicy

pytestmark = pytest.mark.spark

ODD: dict[str, Any] = {"odd name": "int64"}
ITEMS = make_table("items", key=("shop", "odd name"), shop="string", v="int32", **ODD)
MERGES = 9
TABLE = "public.items"

Rows = list[tuple[Any, ...]]


@pytest.fixture(params=["delta", "delta wide", "iceberg"])
def format_name(request: pytest.FixtureRequest, hand_log: HandLog, warehouse: Path) -> str:
    """The format of a table in as many files as there were merges, the last keys in the first of them."""
    table_format, _, readable = str(request.param).partition(" ")
    hand_log.state(ITEMS)
    policies = Policies(TablePolicy(readable="wide" if readable else "fast"))
    for number in range(MERGES):
        ids = range(100 - number, 0, -MERGES)
        shops = [(ITEMS, "c", {"shop": shop, "odd name": n, "v": number}) for n in ids for shop in "ba"]
        hand_log.segment(shops)
        local.merge(hand_log.root, warehouse, table_format=table_format, policies=policies)
    return table_format


def rows_at(spark: Any, warehouse: Path, cut: int) -> Rows:
    return sorted((row.shop, row["odd name"], row.v) for row in read_cut(spark, warehouse, cut)[TABLE].collect())


def clustered(spark: Any, warehouse: Path, format_name: str) -> TableUpkeep:
    engines = Engines(SparkEngine(spark, warehouse, format_name))
    (found,) = upkeep(engines, UpkeepPolicy(budget_s=600, cluster=True)).tables
    return found


@pytest.mark.long
@pytest.mark.spread(1)
def test_files_that_spark_makes_have_their_rows_in_the_order_of_the_key(
    spark: Any, hand_log: HandLog, warehouse: Path, format_name: str
) -> None:
    """By all columns of the key, whatever their names. The commit declares that no row changed: a reader that follows
    the table's changes reads none again, and the next merge reports no edit.
    """
    before = {cut: rows_at(spark, warehouse, cut) for cut in (1, MERGES)}
    assert clustered(spark, warehouse, format_name).done == (f"{MERGES} files made 1, in order",)
    (places,) = places_of(warehouse, format_name, TABLE, ["shop", "odd name"])
    assert places == sorted(places)
    assert {cut: rows_at(spark, warehouse, cut) for cut in before} == before
    if format_name == "delta":
        *_, newest = sorted((warehouse / "public" / "items" / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for line in newest.read_text().splitlines()]
        changes = [one["dataChange"] for action in actions for kind, one in action.items() if kind in ("add", "remove")]
        assert changes == [False] * (MERGES + 1)
    assert not clustered(spark, warehouse, format_name).done

    hand_log.segment([(ITEMS, "u", {"shop": "a", "odd name": 3, "v": 77})])
    (merged,) = local.merge(hand_log.root, warehouse).tables
    assert (merged.changes, merged.edits, merged.left_out) == (1, (), None)
    assert ("a", 3, 77) in rows_at(spark, warehouse, MERGES + 1)


@pytest.mark.parametrize("format_name", ["delta"], indirect=True)
@pytest.mark.long
def test_files_are_written_without_an_order_where_this_delta_is_unknown(
    spark: Any, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A line in the log reports it."""
    monkeypatch.setattr("cdcflow.spark.private_delta.classes.TESTED", "0.")
    before = rows_at(spark, warehouse, MERGES)
    assert clustered(spark, warehouse, format_name).done == (f"{MERGES} files made 1",)
    assert "files are made without an order" in "".join(capfd.readouterr())
    assert rows_at(spark, warehouse, MERGES) == before


@pytest.mark.parametrize("format_name", ["delta"], indirect=True)
@pytest.mark.long
def test_merge_that_commits_in_between_postpones_clustering(
    spark: Any, hand_log: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has changed rows of files that are just written again: its changes would be gone."""
    hand_log.segment([(ITEMS, "u", {"shop": "a", "odd name": n, "v": 77}) for n in range(1, 101)])
    right, merged = DataFrame.sortWithinPartitions, list[Any]()

    def beside(frame: DataFrame, *given: Any) -> Any:
        if not merged:
            merged.append(local.merge(hand_log.root, warehouse))
        return right(frame, *given)

    with monkeypatch.context() as patch:
        patch.setattr(DataFrame, "sortWithinPartitions", beside)
        found = clustered(spark, warehouse, format_name)
    assert merged
    assert "DELTA_CONCURRENT" in found.skipped, found
    assert not found.done
    now = [("a", n, 77) for n in range(1, 101)]
    assert rows_at(spark, warehouse, MERGES + 1)[:100] == now
    clustered(spark, warehouse, format_name)
    assert rows_at(spark, warehouse, MERGES + 1)[:100] == now
    places = places_of(warehouse, format_name, TABLE, ["shop", "odd name", "v"])
    assert sorted(row for rows in places for row in rows)[:100] == now


@pytest.mark.parametrize("format_name", ["delta"], indirect=True)
@pytest.mark.long
def test_file_that_is_mostly_dead_is_rewritten(
    spark: Any, hand_log: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its size; Delta's log records how many rows of a file are deleted."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)
    monkeypatch.setattr(delta_files, "SMALL_BYTES", 0)
    assert not clustered(spark, warehouse, format_name).done
    ids = range(100, 0, -MERGES)[:9]  # of 24 rows
    hand_log.segment([(ITEMS, "u", {"shop": "a", "odd name": n, "v": 77}) for n in ids])
    local.merge(hand_log.root, warehouse)
    before = rows_at(spark, warehouse, MERGES + 1)
    assert clustered(spark, warehouse, format_name).done == ("1 files made 1, in order",)
    assert rows_at(spark, warehouse, MERGES + 1) == before
    assert sorted(len(rows) for rows in places_of(warehouse, format_name, TABLE, ["shop", "odd name"]))[:2] == [
        len(ids),
        24 - len(ids),
    ]
