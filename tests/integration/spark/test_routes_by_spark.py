"""Many tables in one, merged by Spark, and by the engines in turns."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.support.tables.routed_histories import differences, differences_from_separate

from cdcflow import local
from cdcflow import spark as by_spark
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.merge.policy import Mode

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("format_name", "seed", "segments"),
    [
        ("delta", 6, 2),
        *(pytest.param(name, n, 5, marks=pytest.mark.long) for name in ("iceberg", "delta") for n in range(7, 12)),
    ],
)
def test_spark_gives_one_table_exactly_the_rows_of_its_sources(
    spark: Any, tmp_path: Path, format_name: str, seed: int, segments: int
) -> None:
    """As without Spark: its MERGE, and its own ways around one, must leave the rows of other sources alone. Every other
    merge is without Spark, which continues where Spark was."""
    turns = itertools.count()

    def merge(log: Path, warehouse: Path, **more: Any) -> MergeReport:
        if next(turns) % 3 == 2:
            return local.merge(log, warehouse, table_format=format_name, **more)
        return by_spark.merge(spark, log, warehouse, table_format=format_name, **more)

    def rows(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        return {name: [row.asDict() for row in frame.collect()] for name, frame in found.items()}

    def rows_of_cut(warehouse: Path) -> dict[str, list[dict[str, Any]]]:
        return rows(by_spark.read_cut(spark, warehouse))

    def rows_now(log: Path, warehouse: Path) -> dict[str, list[dict[str, Any]]]:
        return rows(by_spark.read_live(spark, log, warehouse))

    assert differences(tmp_path, seed, merge, rows_of_cut, rows_now, segments) == []


@pytest.mark.long
@pytest.mark.parametrize("format_name", ["delta", "iceberg"])
@pytest.mark.parametrize("mode", ["soft_delete", "append", "history"])
def test_spark_keeps_the_rows_of_each_source_apart_in_every_mode(
    spark: Any, tmp_path: Path, format_name: str, mode: Mode
) -> None:
    """Rows that other sources marked or ended must not be, and the engines take turns."""
    turns = itertools.count()

    def merge(log: Path, warehouse: Path, **more: Any) -> MergeReport:
        if next(turns) % 5 == 4:
            return local.merge(log, warehouse, table_format=format_name, **more)
        return by_spark.merge(spark, log, warehouse, table_format=format_name, **more)

    assert differences_from_separate(tmp_path, 6, merge, mode, segments=3) == []
