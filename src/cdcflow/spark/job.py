"""The merge by Spark (see `cdcflow.tables.job.job`).

spark-submit --jars … --conf … …/cdcflow/spark/job.py --log ./shop-log --warehouse ./warehouse     (docs/merge.md)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import CdcflowError
from cdcflow.log.files.layout import Layout
from cdcflow.model.position import Checkpoint
from cdcflow.spark.engine import SparkEngine
from cdcflow.tables.formats import FORMATS, format_for
from cdcflow.tables.job import job
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.job import OnEdit
from cdcflow.tables.job.reports import MergeReport, TableMergeReport, Watch, ignore_progress
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.paths import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MergeReport", "OnEdit", "TableMergeReport", "main", "merge"]


def merge(
    spark: SparkSession,
    log: Layout | Path | str,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    on_edit: OnEdit = "warn",
    table_format: str | None = None,
    newest: Checkpoint | None = None,
    origin: Mapping[str, object] | None = None,
    watch: Watch = ignore_progress,
    policies: Policies = DEFAULTS,
) -> MergeReport:
    """Bring every current-state table to the latest sealed cut of the log, then publish the cut.

    `table_format`: "delta" or "iceberg"; `None`: the format that the warehouse has, and Delta for a new one. Everything
    else, including errors, is as in `cdcflow.tables.job.job.merge`.
    """
    place = Warehouse.of(warehouse)
    engines = Engines(SparkEngine(spark, place, format_for(place, table_format)))
    return job.merge(
        engines,
        log,
        place,
        tables,
        on_edit=on_edit,
        newest=newest,
        origin=origin,
        watch=watch,
        policies=policies,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m cdcflow.spark.job`, also under spark-submit."""
    parser = argparse.ArgumentParser(
        prog="cdcflow.spark.job", description="Merge a change log into current-state tables."
    )
    parser.add_argument("--log", required=True, type=Path, help="the log's directory")
    parser.add_argument("--warehouse", required=True, help="where the tables are: a folder, or a URL (s3a://…)")
    parser.add_argument(
        "--format", choices=sorted(FORMATS), help="the tables' (default: that of the warehouse; delta for a new one)"
    )
    parser.add_argument("--table", action="append", help="only this table (may be given more than once)")
    parser.add_argument("--on-edit", choices=("warn", "stop"), default="warn")
    chosen = parser.parse_args(arguments)
    try:
        report = _run_merge(chosen)
    except CdcflowError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    return 1 if any(table.left_out is not None for table in report.tables) else 0


def _run_merge(chosen: argparse.Namespace) -> MergeReport:
    from pyspark.sql import SparkSession

    from cdcflow.spark.session import is_submitted, session

    warehouse = Warehouse.of(chosen.warehouse)
    # Under spark-submit the session's settings are the submitter's.
    if is_submitted():
        spark = SparkSession.builder.getOrCreate()
    else:
        spark = session(table_formats=[chosen.format or "delta"], s3=warehouse.bucket is not None)
    try:
        return merge(spark, chosen.log, warehouse, chosen.table, on_edit=chosen.on_edit, table_format=chosen.format)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
