"""Rows of large Iceberg tables, which Spark changes on a branch: what makes it correct, and where it runs a MERGE."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.merge.orders import AFTER_PARTIAL, PARTIAL, MergedOrders

from cdcflow.model.table import Table
from cdcflow.spark import job
from cdcflow.spark.engine import SparkEngine
from cdcflow.spark.formats import iceberg_branch
from cdcflow.spark.formats.iceberg import IcebergTable
from cdcflow.tables.formats import iceberg
from cdcflow.tables.paths import table_path
from cdcflow.tables.port import Kept

pytestmark = pytest.mark.spark


class Orders(MergedOrders):
    """In Iceberg."""

    format = "iceberg"

    @property
    def there(self) -> Any:
        """The table, as the engine has it."""
        return SparkEngine(self.spark, self.warehouse, "iceberg").table(table_path(self.table.id))

    def java(self) -> Any:
        return self.there._table()

    def frame(self) -> Any:
        return self.spark.table(self.there.sql)

    def operations(self, count: int) -> list[str]:
        """The operations of its latest snapshots, latest first."""
        table, found = self.java(), list[str]()
        snapshot = table.currentSnapshot()
        while snapshot is not None and len(found) < count:
            found.append(str(snapshot.operation()))
            snapshot = None if snapshot.parentId() is None else table.snapshot(snapshot.parentId())
        return found

    def branches(self) -> list[str]:
        return [str(name) for name in dict(self.java().refs()) if str(name).startswith("cdcflow_fold_")]


@pytest.fixture
def orders(
    spark: Any,
    make_table: Callable[..., Table],
    hand_log: Any,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Orders:
    made = Orders(spark, hand_log, warehouse, make_table)
    monkeypatch.setattr(iceberg_branch, "ROWS_MIN", 1)
    return made


ON_A_BRANCH = ["append", "delete"]
"""The latest two snapshots after a fold on a branch; a MERGE creates one, an overwrite."""


def test_deletes_and_inserts_are_two_commits_that_appear_together(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole rows: nothing of the table is read but its keys, which stay where they are."""
    plans: list[str] = []
    right = IcebergTable._say

    def say(table: Any, statement: str, *given: Any) -> str:
        if "cdcflow_fold_" in statement:
            plans.append(str(table._spark.sql(f"EXPLAIN {statement}").collect()[0][0]))
        return right(table, statement, *given)

    monkeypatch.setattr(IcebergTable, "_say", say)
    first = orders.java().currentSnapshot().snapshotId()
    orders.change(
        ("u", {"id": 5, "a": -5, "doc": "five"}),
        ("d", {"id": 7}),
        ("c", {"id": 500, "a": 1, "doc": "c"}),
        ("d", {"id": 900}),
    )
    assert orders.operations(2) == ON_A_BRANCH
    gone, come = plans
    (read,) = re.findall(r"BatchScan .*?orders\S*\[(.*?)\]", gone)
    assert sorted(name.split("#")[0] for name in read.split(", ")) == ["_file", "_partition", "_pos", "_spec_id", "id"]
    assert "BroadcastHashJoin" in gone
    assert "BatchScan" not in come
    assert orders.rows(5, 7, 500, 900) == [(-5, "five"), None, (1, "c"), None]
    assert orders.frame().count() == 200
    assert orders.branches() == []
    # The table's latest versions, one after another: the version of the first commit alone was never among them.
    shown = [int(row.snapshot_id) for row in orders.spark.table(f"{orders.there.sql}.history").collect()]
    assert shown == [first, orders.java().currentSnapshot().snapshotId()]


def test_values_that_changes_leave_unchanged_are_copied_from_the_old_rows(orders: Orders) -> None:
    """P01, G05."""
    orders.change(*PARTIAL)
    assert orders.operations(2) == ON_A_BRANCH
    assert orders.rows(*AFTER_PARTIAL) == [*AFTER_PARTIAL.values()]
    assert orders.frame().count() == 200


@pytest.mark.spread(1)
@pytest.mark.parametrize("rows", [{"doc": "old"}, {"_unchanged": ["doc"]}], ids=["whole rows", "partial rows"])
def test_row_that_is_newer_than_its_change_is_not_touched(orders: Orders, rows: dict[str, Any]) -> None:
    """G08: only an edit by hand makes such a row; a MERGE, which runs in that case, compares row by row."""
    orders.spark.sql(f"UPDATE {orders.there.sql} SET a = 77, _offset = 100000 WHERE id = 3")
    orders.change(("u", {"id": 3, "a": 1, **rows}), ("u", {"id": 4, "a": 44, "doc": "four"}))
    assert orders.operations(1) == ["overwrite"]
    assert (orders.row(3), orders.row(4)) == ((77, "doc 3"), (44, "four"))
    assert orders.branches() == []


def test_few_rows_are_merged(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more commits cost more than they save where bounds leave few rows to scan, even if only a part of a file."""
    monkeypatch.setattr(iceberg_branch, "ROWS_MIN", 50)
    orders.spark.sql(f"DELETE FROM {orders.there.sql} WHERE id >= 100")
    orders.log.segment([(orders.table, "c", {"id": n, "a": n, "doc": "n"}) for n in range(1000, 1100)])
    orders.merge()
    orders.change(("u", {"id": 1001, "a": 0, "doc": "x"}), ("u", {"id": 1002, "a": 0, "doc": "x"}))
    assert orders.operations(1) == ["overwrite"]
    orders.change(("u", {"id": 1, "a": 0, "doc": "x"}), ("u", {"id": 1003, "a": 0, "doc": "x"}))
    assert orders.operations(2) == ON_A_BRANCH
    assert orders.frame().count() == 200


def test_a_key_of_any_name_has_bounds(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds in files are found by the column's name, whatever dots and quotes it contains."""
    monkeypatch.setattr(iceberg_branch, "ROWS_MIN", 2)
    name = "Or.der `no`"
    table = make_table("orders", key=(name,), **{name: "int64", "a": "int32"})
    hand_log.state(table)
    there: Any = SparkEngine(spark, warehouse, "iceberg").table(table_path(table.id))
    for rows in ([("c", 1, 1), ("c", 2, 2)], [("c", 1001, 3)], [("u", 1001, 4)], [("u", 1, 5), ("d", 2, None)]):
        hand_log.segment([(table, op, {name: number, "a": a}) for op, number, a in rows])
        job.merge(spark, hand_log.root, warehouse, table_format="iceberg")
        newest = str(there._table().currentSnapshot().operation())
    assert newest == "append", "the last range's keys are in more files than those of the one before"
    assert sorted(tuple(row) for row in spark.table(there.sql).select("a").collect()) == [(4,), (5,)]


@pytest.mark.parametrize("died", ["before the first", "after the first", "after the second"])
@pytest.mark.spread(1)
def test_a_fold_that_dies_on_its_branch_has_changed_nothing(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, died: str
) -> None:
    """An error removes the leftover branch; after a kill it remains until maintenance finds that it is a day old."""
    take, finish = iceberg_branch.Branch.take, iceberg_branch.Branch.become_main
    taken: list[int] = []

    def dies(branch: Any, commit: Any = None) -> Any:
        taken.append(1)
        if len(taken) == 1 + ["before the first", "after the first", "after the second"].index(died):
            raise KeyboardInterrupt
        return finish(branch) if commit is None else take(branch, commit)

    before = orders.java().currentSnapshot().snapshotId()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iceberg_branch.Branch, "take", dies)
        patch.setattr(iceberg_branch.Branch, "become_main", dies)
        patch.setattr(iceberg_branch, "_end", lambda table, name: None)  # as after a kill
        with pytest.raises(KeyboardInterrupt):
            orders.change(("u", {"id": 1, "a": -1, "doc": "one"}), ("d", {"id": 2}))
    assert orders.java().currentSnapshot().snapshotId() == before
    assert (orders.row(1), orders.row(2)) == ((1, "doc 1"), (2, "doc 2"))
    (left,) = orders.branches()
    orders.merge()
    assert (orders.row(1), orders.row(2)) == ((-1, "one"), None)
    assert orders.frame().count() == 199
    kept = Kept(since=0.0, oldest=1, versions={})
    orders.there.let_go(kept)
    assert orders.branches() == [left], "another merge may still be using it"
    monkeypatch.setattr(iceberg, "BRANCH_S", -60.0)
    orders.there.let_go(kept)
    assert orders.branches() == []
    assert orders.frame().count() == 199


@pytest.mark.parametrize("when", ["before the branch", "before the look", "after the look", "before the commit"])
@pytest.mark.spread(1)
def test_concurrent_commit_of_another_program_is_not_undone(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The branch began with an older version: the table must not be set to it. The merge is repeated."""
    reached: list[str] = []

    def reach(point: str) -> None:
        if point == when and when not in reached:
            orders.spark.sql(f"UPDATE {orders.there.sql} SET a = 1234 WHERE id = 100")
        reached.append(point)

    def around(owner: Any, name: str, before: str = "", after: str = "") -> None:
        right = getattr(owner, name)

        def called(*given: Any) -> Any:
            reach(before)
            found = right(*given)
            if "before the look" in reached:
                reach(after)
            return found

        monkeypatch.setattr(owner, name, called)

    around(iceberg_branch, "extent", before="before the branch")
    around(iceberg_branch.Branch, "become_main", before="before the look")
    around(iceberg_branch.Branch, "_head", after="after the look")
    around(iceberg_branch, "_commit", before="before the commit")
    orders.change(("u", {"id": 1, "a": -1, "doc": "one"}), ("d", {"id": 2}))
    assert reached.count("before the branch") == 2
    assert orders.rows(1, 2, 100) == [(-1, "one"), None, (1234, "doc 100")]
    assert orders.frame().count() == 199
    assert orders.branches() == []
