"""Merging and reading with Spark: the only package that uses pyspark, and Delta's and Iceberg's Java classes.

    merge(spark, log_path, warehouse)       merge the new changes of a log into tables (`job`)
    merge_logs(spark, logs, warehouse)      the same for several logs, with one cut for all of their tables
    merge_stream(spark, log, warehouse)     the same as a streaming query, over a log of any kind (`streaming`)
    read_cut(spark, warehouse)              all tables as of one cut (`cuts`)
    published_cut(spark, warehouse)         a published cut: its tables, and the excluded ones
    read_live(spark, log, warehouse)        all tables as of the latest sealed cut, without a merge (`live`)
    register(spark)                         the log as a data source: spark.read.format("cdcflow") (`log_source`)
    read_log(spark, log, table)             a table's changes as a plan over Spark's own Parquet reader (`log_source`)
    read_logs(spark, logs, table)           a table's changes in several logs, up to the time that all have reached
    session()                               a local Spark session with the right settings (`session`)

Executors of a cluster also read parts of chunks for a backfill (`executors`): `tasks` starts them, `readers` is the
capture's side, and `chunk_reader_process` is what each executor runs. These use Spark only for their tasks.

Importing this package does not import pyspark; a missing pyspark is reported on the first call that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.spark.session import session
from cdcflow.tables.merge.policy import DEFAULTS, Policies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cdcflow.log.files.layout import Layout
    from cdcflow.log.tier import Tier
    from cdcflow.spark.job import MergeReport
    from cdcflow.tables.cut import Cut
    from cdcflow.tables.job.live import Live
    from cdcflow.tables.job.moments import AsOf
    from cdcflow.tables.job.reports import SeveralReport
    from cdcflow.tables.paths import Warehouse

__all__ = [
    "merge",
    "merge_logs",
    "merge_stream",
    "published_cut",
    "read_cut",
    "read_live",
    "read_log",
    "read_logs",
    "register",
    "session",
]


def merge(
    spark: SparkSession,
    log_path: Path | str,
    warehouse: Warehouse | Path | str,
    *,
    table_format: str | None = None,
    policies: Policies = DEFAULTS,
) -> MergeReport:
    """Merge the new changes of the log into the warehouse's tables (see `cdcflow.spark.job.merge`). `table_format`:
    "delta" or "iceberg"; `None`: the format that the warehouse has, and Delta for a new one."""
    from cdcflow.spark import job

    return job.merge(spark, log_path, warehouse, table_format=table_format, policies=policies)


def merge_logs(
    spark: SparkSession,
    logs: Mapping[str, Layout | Tier | Path | str],
    warehouse: Warehouse | Path | str,
    *,
    without: Collection[str] = (),
    table_format: str | None = None,
    policies: Policies = DEFAULTS,
) -> SeveralReport:
    """Merge the new changes of several logs, keyed by name, into one warehouse, and publish one cut for all of their
    tables (see `cdcflow.tables.job.several_logs.merge_logs`). `table_format`: as in `merge`."""
    from cdcflow.spark.log_source import several_logs

    return several_logs.merge_logs(
        spark, logs, warehouse, without=without, table_format=table_format, policies=policies
    )


def merge_stream(
    spark: SparkSession,
    log: Layout | Tier | Path | str,
    warehouse: Warehouse | Path | str,
    *,
    table_format: str | None = None,
    policies: Policies = DEFAULTS,
    checkpoint: Path | str | None = None,
    trigger: Mapping[str, bool | str] | None = None,
    on_merge: Callable[[MergeReport], None] | None = None,
    retry_timeout_s: float | None = None,
) -> StreamingQuery:
    """Merge as the log grows, as a streaming query (see `cdcflow.spark.streaming.merge_stream`)."""
    from cdcflow.spark import streaming

    return streaming.merge_stream(
        spark,
        log,
        warehouse,
        table_format=table_format,
        policies=policies,
        checkpoint=checkpoint,
        trigger=trigger,
        on_merge=on_merge,
        retry_timeout_s=streaming.RETRY_TIMEOUT_S if retry_timeout_s is None else retry_timeout_s,
    )


def read_cut(
    spark: SparkSession,
    warehouse: Warehouse | Path | str,
    cut: int | None = None,
    *,
    as_of: AsOf | None = None,
    incomplete: bool = False,
    tables: Collection[str] | None = None,
) -> dict[str, DataFrame]:
    """Return all tables, or some, at one cut or point in time (see `cdcflow.spark.cuts.read_cut`)."""
    from cdcflow.spark import cuts

    return cuts.read_cut(spark, warehouse, cut, as_of=as_of, incomplete=incomplete, tables=tables)


def published_cut(
    spark: SparkSession, warehouse: Warehouse | Path | str, cut: int | None = None, *, as_of: AsOf | None = None
) -> Cut:
    """Return a published cut: its tables with their states, and the excluded ones (see `cdcflow.spark.cuts`)."""
    from cdcflow.spark import cuts

    return cuts.published_cut(spark, warehouse, cut, as_of=as_of)


def read_live(
    spark: SparkSession,
    log: Layout | Tier | Path | str,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    incomplete: bool = False,
    policies: Policies = DEFAULTS,
) -> Live[DataFrame]:
    """Return all tables, or some, as of the latest sealed cut of the log, without a merge (see
    `cdcflow.spark.live`)."""
    from cdcflow.spark import live

    return live.read_live(spark, log, warehouse, tables, incomplete=incomplete, policies=policies)


def register(spark: SparkSession, open_settings: Callable[[str], Layout] | None = None) -> None:
    """Register `spark.read.format("cdcflow")` and `spark.readStream.format("cdcflow")` in a session (see
    `cdcflow.spark.log_source.change_log`), and enable filter pushdown to data sources written in Python.

    `open_settings`, such as `cdcflow.wiring.sealed_layout_of`: needed for the option `config`, which names a settings
    file that specifies the log's location. It is called on every machine.
    """
    from cdcflow.spark.log_source.change_log import ChangeLogSource

    known = type("ChangeLogSource", (ChangeLogSource,), {"open_settings": open_settings})
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(known)


def read_log(
    spark: SparkSession,
    log: Layout | Tier | Path | str,
    table: str,
    *,
    shape: str = "log",
    truncates: str = "stop",
    **ends: int | str | datetime | None,
) -> DataFrame:
    """Return a table's changes in the log's sealed part, over Spark's own Parquet reader (see
    `cdcflow.spark.log_source.log_plan`)."""
    from cdcflow.spark.log_source import log_plan

    return log_plan.read_log(spark, log, table, shape=shape, truncates=truncates, **ends)


def read_logs(
    spark: SparkSession,
    logs: Mapping[str, Layout | Tier | Path | str],
    table: str,
    *,
    to: str | datetime | int | None = None,
    start: Mapping[str, int] | None = None,
) -> DataFrame:
    """Return a table's changes in the sealed parts of several logs, in one order (see
    `cdcflow.spark.log_source.several_logs`)."""
    from cdcflow.spark.log_source import several_logs

    return several_logs.read_logs(spark, logs, table, to=to, start=start)
