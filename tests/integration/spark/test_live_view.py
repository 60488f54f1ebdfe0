"""The live view by Spark: random histories of tables against the fold in plain Python, and what its plans read.

As in `test_random_histories.py`, each history has its own seed: `CDCFLOW_HISTORY_SEED=<seed> CDCFLOW_HISTORIES=1` runs
one alone. The local engine merges: the resulting tables are the same, and it is quicker.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge import histories as merge_histories
from tests.support.merge.histories import assert_as_folded, make_table, make_world, write_round
from tests.support.tables import live_histories
from tests.support.tables.histories import MODES
from tests.support.tables.live_histories import Here

from cdcflow import local
from cdcflow.model.table import Table
from cdcflow.spark import merge, read_cut, read_live
from cdcflow.spark.formats import table_format as format_of
from cdcflow.tables import segments
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.job.live import Live
from cdcflow.tables.merge.policy import Mode
from cdcflow.tables.paths import table_path

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("CDCFLOW_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
ALONE = int(os.environ.get("CDCFLOW_HISTORIES", "0"))
FEW, MANY = 2, 100


class BySpark(Here):
    """Merged here, read by Spark."""

    def __init__(self, spark: Any, table_format: str) -> None:
        super().__init__(table_format)
        self._spark = spark

    def read_live(self, log: Path, warehouse: Path) -> Live[Any]:
        return read_live(self._spark, log, warehouse, incomplete=True, policies=self.policies)

    def rows(self, shown: Any) -> Iterable[Mapping[str, Any]]:
        return shown.to_pylist() if hasattr(shown, "to_pylist") else [row.asDict() for row in shown.collect()]


@pytest.fixture(params=FORMATS)
def table_format(request: pytest.FixtureRequest) -> str:
    """Each table format in turn."""
    return str(request.param)


@pytest.fixture
def no_view_left(spark: Any) -> Iterator[None]:
    """Temporary views are dropped."""
    before = {table.name for table in spark.catalog.listTables()}
    yield
    assert {table.name for table in spark.catalog.listTables()} == before


@pytest.mark.spread(1)
@pytest.mark.usefixtures("no_view_left")
def test_live_view_of_histories_is_the_fold(spark: Any, table_format: str, tmp_path: Path) -> None:
    """A few of the histories that the local engine runs dozens of."""
    live_histories.run(BySpark(spark, table_format), SEED, ALONE or FEW, tmp_path, 2)


@pytest.mark.long
@pytest.mark.usefixtures("no_view_left")
@pytest.mark.parametrize("mode", ["soft_delete", "append", "history"])
def test_live_view_in_each_mode_is_the_fold(spark: Any, mode: Mode, table_format: str, tmp_path: Path) -> None:
    """Deleted rows, changes and versions, as the next merge would leave them."""
    live_histories.run(BySpark(spark, table_format), SEED, ALONE or FEW, tmp_path, 2, [mode])


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_live_view_of_many_histories_is_the_fold(spark: Any, part: int, tmp_path: Path) -> None:
    """The same, many of them."""
    parties = BySpark(spark, FORMATS[part % len(FORMATS)])
    live_histories.run(parties, SEED + 1000 * part, MANY // 10, tmp_path, 4, MODES)


@pytest.mark.usefixtures("no_view_left")
@pytest.mark.long
def test_live_view_follows_shapes_moved_keys_truncates_and_copies(
    spark: Any, table_format: str, hand_log: HandLog, warehouse: Path
) -> None:
    """Many rows of three tables: partial rows and key changes, no key, columns that come and go, and truncates.

    Hard cases G01, G04, G10, G21, P10, P18.
    """
    world = make_world(SEED, 40)

    def check(told: str) -> None:
        live = read_live(spark, hand_log.root, warehouse, incomplete=True)
        assert (live.cut, live.left_out) == (hand_log.cut, {})

        def rows(table: Table) -> list[dict[str, Any]]:
            return [row.asDict() for row in live[str(table.id)].collect()]

        assert_as_folded(world, rows, f"seed {SEED}, {told}")

    write_round(world, hand_log, 0)
    check("no cut is published")
    local.merge(hand_log.root, warehouse, table_format=table_format)
    write_round(world, hand_log, 1)
    write_round(world, hand_log, 2)
    check("two rounds after the cut")


ORDERS = merge_histories.make_table("orders", id="int64", doc="string", note="string")


@pytest.mark.long
@pytest.mark.spread(1)
def test_keys_in_a_filter_keep_files_of_the_table_unread(
    spark: Any, table_format: str, hand_log: HandLog, warehouse: Path
) -> None:
    """The cost of reading one key does not grow with the table: its filter reaches files of table and log alike."""
    hand_log.state(ORDERS)
    for first in range(0, 4000, 1000):
        hand_log.segment([(ORDERS, "c", {"id": n, "doc": "d", "note": "n"}) for n in range(first, first + 1000)])
        local.merge(hand_log.root, warehouse, table_format=table_format)
    hand_log.segment([(ORDERS, "u", {"id": 3, "note": "new", "_unchanged": ["doc"]})])
    shown = read_live(spark, hand_log.root, warehouse)["public.orders"]
    assert shown.where("id = 3").collect()[0].asDict()["note"] == "new"
    assert shown.where("id = 3").collect()[0].asDict()["doc"] == "d"
    sides = shown.where("id = 2500")
    assert sides.count() == 1
    assert rows_read(spark, sides) <= 1001  # one of four files, and nothing of the log
    assert rows_read(spark, shown) >= 4000


def rows_read(spark: Any, frame: Any) -> int:
    """The number of rows that the scans of a plan emitted. Runs without the adaptive planner, which changes plans
    during execution.
    """
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        again = frame.select("*")
        again.collect()
        return sum(scanned(spark, again._jdf.queryExecution().executedPlan()))
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)


def scanned(spark: Any, plan: Any) -> Iterator[int]:
    """Of each scan in a plan the rows that it has handed on; of what is used twice once."""
    java: Callable[[Any], Any] = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava
    if "Scan" in plan.nodeName():
        yield int(java(plan.metrics())["numOutputRows"].value())
    for child in java(plan.children()):
        yield from scanned(spark, child)


@pytest.mark.spread(1)
def test_rows_of_a_live_view_stay_what_they_were_at_the_call(
    spark: Any, table_format: str, hand_log: HandLog, warehouse: Path
) -> None:
    """A query may run for hours while merges continue; a view that was opened shows its cut to the end."""
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", {"id": n, "doc": "d", "note": "old"}) for n in range(3)])
    local.merge(hand_log.root, warehouse, table_format=table_format)
    hand_log.segment([(ORDERS, "u", {"id": 1, "doc": "d", "note": "new"}), (ORDERS, "d", {"id": 2})])
    shown = read_live(spark, hand_log.root, warehouse)
    hand_log.segment([(ORDERS, "t", {})])
    local.merge(hand_log.root, warehouse, table_format=table_format)
    found = {row["id"]: row["note"] for row in shown["public.orders"].collect()}
    assert (found, shown.cut) == ({0: "old", 1: "new"}, 2)


@pytest.mark.long
def test_log_that_is_compacted_under_the_reader_is_read_again_by_spark(
    spark: Any, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark lists files when it plans a query, and its own error reports a missing file."""
    for number in range(3):
        hand_log.segment([(ORDERS, "c", {"id": number, "doc": "d", "note": "n"})])
    right, listed = segments.sealed_range, list[int]()

    def sealed(*given: Any, **more: Any) -> Any:
        found = right(*given, **more)
        listed.append(len(found.segments))
        if len(listed) == 1:
            hand_log.compact(2)
        return found

    monkeypatch.setattr("cdcflow.tables.job.live.sealed_range", sealed)
    assert read_live(spark, hand_log.root, warehouse, incomplete=True)["public.orders"].count() == 3
    assert listed == [3, 2]


@pytest.mark.long
def test_older_cut_of_an_iceberg_table_is_read_by_names_that_it_had(spark: Any, tmp_path: Path) -> None:
    """Iceberg plans an older snapshot by the latest names where the table has rows that were marked as deleted."""
    log, warehouse = HandLog(tmp_path / "log"), tmp_path / "warehouse"
    before, after = make_table("orders", id="int64", a="int64"), make_table("orders", id="int64", b="int64")
    log.segment([(before, "c", {"id": n, "a": n}) for n in range(10)])
    merge(spark, log.root, warehouse, table_format="iceberg")
    log.segment([(before, "u", {"id": 3, "a": 30})])
    merge(spark, log.root, warehouse, table_format="iceberg")
    log.segment([(after, "u", {"id": 4, "b": 40})])
    merge(spark, log.root, warehouse, table_format="iceberg")
    shown = read_cut(spark, warehouse, 2, incomplete=True)["public.orders"]
    assert {(row.id, row.a) for row in shown.where("a IS NOT NULL AND a > 7").collect()} == {(3, 30), (8, 8), (9, 9)}


def test_iceberg_version_is_found_after_a_rollback(spark: Any, tmp_path: Path) -> None:
    """A published cut shows a snapshot that is no longer an ancestor of the table's current one."""
    log, warehouse = HandLog(tmp_path / "log"), tmp_path / "warehouse"
    for number in range(3):
        log.segment([(ORDERS, "c", {"id": number, "doc": "d", "note": "n"})])
        merge(spark, log.root, warehouse, table_format="iceberg")
    table = format_of("iceberg").table(spark, warehouse, table_path(ORDERS.id))
    newest = table.snapshot()
    assert newest is not None
    (first,) = spark.sql(f"SELECT snapshot_id FROM {table.sql}.history ORDER BY made_current_at LIMIT 1").collect()
    catalog = table.sql.split(".")[0]
    spark.sql(f"CALL {catalog}.system.rollback_to_snapshot('public.orders', {first.snapshot_id})")
    rolled = table.snapshot()
    assert rolled is not None
    assert (newest.version, rolled.version) == (3, 1)
    assert [table.rows_at(version).count() for version in (3, 2, 1)] == [3, 2, 1]
    assert (table.why_lost(3), bool(table.why_lost(4))) == (None, True)
