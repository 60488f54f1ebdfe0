"""Current-state tables and the cuts over them: the Spark job. The only room that names pyspark, Delta or Iceberg.

    merge(spark, log_path, warehouse)       fold what is new in a change log into tables (`job`)
    read_cut(spark, warehouse)              all tables as of one cut (`cuts`)
    published_cut(spark, warehouse)         what is in that cut, and what is not
    session()                               a local Spark session with the right settings (`session`)

Importing this package does not import pyspark; what needs it says so when it is called.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdcflow.spark.job import MergeReport
    from cdcflow.warehouse.cut import Cut
    from cdcflow.warehouse.paths import Warehouse

__all__ = ["merge", "published_cut", "read_cut", "session"]


def merge(
    spark: SparkSession, log_path: Path | str, warehouse: Warehouse | Path | str, *, table_format: str | None = None
) -> MergeReport:
    """Fold what is new in the log into the warehouse's tables (see `cdcflow.spark.job.merge`). `table_format`: "delta"
    or "iceberg"; None: what the warehouse has, and Delta in a new one."""
    from cdcflow.spark import job

    return job.merge(spark, log_path, warehouse, table_format=table_format)


def read_cut(
    spark: SparkSession,
    warehouse: Warehouse | Path | str,
    cut: int | None = None,
    *,
    incomplete: bool = False,
    tables: Collection[str] | None = None,
) -> dict[str, DataFrame]:
    """All tables, or some, as they were at one cut (see `cdcflow.spark.cuts.read_cut`)."""
    from cdcflow.spark import cuts

    return cuts.read_cut(spark, warehouse, cut, incomplete=incomplete, tables=tables)


def published_cut(spark: SparkSession, warehouse: Warehouse | Path | str, cut: int | None = None) -> Cut:
    """A published cut: its tables with their states, and which were left out (see `cdcflow.spark.cuts`)."""
    from cdcflow.spark import cuts

    return cuts.published_cut(spark, warehouse, cut)
