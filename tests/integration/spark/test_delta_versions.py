"""Versions of a small Delta table, which are read file by file, alongside Delta's own lookup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdcflow.model.table import Table
from cdcflow.spark import job
from cdcflow.spark.formats.delta import DeltaTable
from cdcflow.spark.private_delta import versions
from cdcflow.tables.paths import table_path

pytestmark = pytest.mark.spark


@pytest.fixture
def table(spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path) -> DeltaTable:
    """With deletion vectors, an added column, and a renamed one."""
    first = make_table("orders", id="int64", a="int32", doc="string")
    later = make_table("orders", id="int64", a="int32", text="string", b="date32")
    hand_log.state(first)
    for rows in (
        [(first, "c", {"id": n, "a": n, "doc": f"doc {n}"}) for n in range(100)],
        [(first, "u", {"id": 3, "a": 30, "doc": "x"}), (first, "d", {"id": 4})],
        [(later, "u", {"id": 5, "a": 50, "text": "y", "b": None})],
        [(later, "d", {"id": 6})],
    ):
        hand_log.segment(rows)
        job.merge(spark, hand_log.root, warehouse, table_format="delta")
    return DeltaTable(spark, str(warehouse.joinpath(*table_path(first.id))))


@pytest.mark.long
def test_each_version_is_what_delta_shows_and_is_not_looked_for(
    spark: Any, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows under the same names and types, and nothing of Delta's own in the schema, which would go with the
    rows into whatever they are written to. Delta's look for files is a job of Spark's, once more for each plan."""

    def seen(version: int) -> tuple[str, list[Any], int]:
        frame = table.rows_at(version).where("a > 7")
        before = max(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
        rows = sorted(frame.collect(), key=lambda row: row["id"])
        jobs = int(max(spark.sparkContext.statusTracker().getJobIdsForGroup(None))) - int(before)
        return frame.schema.json(), rows, jobs

    newest = table.snapshot()
    assert newest is not None
    for version in range(1, newest.version + 1):
        with monkeypatch.context() as patched:
            patched.setattr(versions, "FEW_FILES", -1)
            *right, looked = seen(version)
        *found, jobs = seen(version)
        assert right[1], version
        assert found == right
        assert jobs in (1, looked)  # Delta does not list the files of a version that adds no rows
    assert jobs == 1 < looked
