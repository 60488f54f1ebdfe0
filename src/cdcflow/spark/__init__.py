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

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcflow.spark.session import session
from cdcflow.tables.merge.policy import DEFAULTS, Policies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cdcflow.log.files.layout import Layout
    from cdcflow.log.tier import Tier
    from cdcflow.spark.cuts import published_cut, read_cut
    from cdcflow.spark.job import MergeReport
    from cdcflow.spark.live import read_live
    from cdcflow.spark.log_source.log_plan import read_log
    from cdcflow.spark.log_source.several_logs import merge_logs, read_logs
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

_FOUND_IN = {
    "merge_logs": "log_source.several_logs",
    "published_cut": "cuts",
    "read_cut": "cuts",
    "read_live": "live",
    "read_log": "log_source.log_plan",
    "read_logs": "log_source.several_logs",
}


def __getattr__(name: str) -> Any:  # Any: a function of this package, imported when it is first used
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FOUND_IN[name]}"), name)


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


def register(spark: SparkSession, open_settings: Callable[[str], Layout] | None = None) -> None:
    """Register `spark.read.format("cdcflow")` and `spark.readStream.format("cdcflow")` in a session (see
    `cdcflow.spark.log_source.change_log`), and enable filter pushdown to data sources written in Python.

    `open_settings`, such as `cdcflow.wiring.sealed_layout_of`, is needed for the option `config`, which names a
    settings file that specifies the log's location. It is called on every machine.
    """
    from cdcflow.spark.log_source.change_log import ChangeLogSource

    known = type("ChangeLogSource", (ChangeLogSource,), {"open_settings": open_settings})
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(known)
