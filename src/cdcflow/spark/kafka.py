"""Merge a log in Kafka: Spark's Kafka source seals new records into the history, then the history is merged.

    topic ──Kafka source, read_committed──▶ one task: frames ─▶ Parquet ─▶ history/segments ──merge──▶ tables
            from the record which has the                     installed by the driver,
            next offset to what is committed                  in order, and by one driver only

The history is a folder that all machines see, or is stored in an object store; in the second case the task uploads the
files from its own machine, and the driver adds the manifests. Everything that the task works with, including the
store's keys, is sent to it with its function: Spark writes functions into no plan and no event log, unlike options and
local properties.

So the result is the same as from files, whichever process dies at whatever time: each record is sealed once, and a
table's position is in its own commit. The topic has one partition, so one task reads it, in the order of the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from cdcflow import errors
from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable
from cdcflow.log.format.records import Message
from cdcflow.log.format.topic_tail import TopicAddress, TopicTail
from cdcflow.log.tier import OpenTier, Tier
from cdcflow.model.position import Checkpoint
from cdcflow.spark import job
from cdcflow.spark.job import MergeReport, OnEdit
from cdcflow.spark.runtime.connect import refuse_connect
from cdcflow.spark.runtime.java_options import java_options
from cdcflow.tables.job.reports import Watch, ignore_progress
from cdcflow.tables.job.several_logs import Merged
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.paths import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS_AT_ONCE, BATCH_BYTES_MAX = 1024, 16 << 20
"""How many records, and how many bytes, Spark sends to a Python worker at a time. There are two limits because a record
has between a few bytes and more than a megabyte."""

Sealer = Callable[[Iterable[Message]], Iterator[str]]


def merge(
    spark: SparkSession,
    tier: Tier,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    on_edit: OnEdit = "warn",
    table_format: str | None = None,
    watch: Watch = ignore_progress,
    policies: Policies = DEFAULTS,
) -> MergeReport:
    """Bring every current-state table to the latest committed cut of the log, then publish the cut.

    `tier` is created by `cdcflow.wiring.tier(config)`; `spark` by `session(kafka=True)`, or from another session with
    Kafka's jars. On a cluster the history is in an object store, or in a folder that all machines see under the same
    path.

    Raises:
        ConfigurationError, HistoryLost, SinkUnavailable, InvariantViolated: as `cdcflow.ports.Tier.open` and
            `cdcflow.spark.job.merge` do.
    """
    refuse_connect(spark)
    newest, origin = seal(spark, tier)
    return job.merge(
        spark,
        tier.layout,
        warehouse,
        tables,
        on_edit=on_edit,
        table_format=table_format,
        newest=newest,
        origin=origin,
        watch=watch,
        policies=policies,
    )


def log_to_merge(spark: SparkSession, name: str, tier: Tier, policies: Policies = DEFAULTS) -> Merged:
    """Seal the topic's new records into the history, and return the log, under this name, for a merge together with
    other logs (see `cdcflow.tables.job.several_logs`).

    Raises:
        ConfigurationError, HistoryLost, SinkUnavailable: as `cdcflow.ports.Tier.open` does.
    """
    refuse_connect(spark)
    return Merged(name, tier.layout, policies, *seal(spark, tier))


def seal(spark: SparkSession, tier: Tier) -> tuple[Checkpoint, Mapping[str, object]]:
    """Add the topic's records after the history to it, up to the last committed one.

    Return the log's latest checkpoint, and the place in the topic where the history ends. Durable on return.
    """
    with tier.open() as opened:
        if opened.tail is not None:
            for directory in _seal_in_task(spark, opened, opened.tail):
                opened.put(directory)
        return opened.newest, dict(opened.origin())


def records(spark: SparkSession, tier: Tier) -> DataFrame:
    """Return the topic as a stream, which shows when there are new records (see `cdcflow.spark.streaming`). Its batches
    may end anywhere, even inside a transaction of the log.

    Raises:
        ConfigurationError: the session has no Kafka source.
    """
    reader = (
        spark.readStream.format("kafka")
        .options(**_connection(tier.topic()))
        # The history checks its own chain for gaps; this stream only wakes the query.
        .option("failOnDataLoss", "false")
        .option("startingOffsets", "earliest")
    )
    try:
        return reader.load()
    except Exception as error:
        raise _translate_error(f"streaming topic {tier.topic().name}", error) from error


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _seal_in_task(spark: SparkSession, opened: OpenTier, tail: TopicTail) -> list[str]:
    """Have one Spark task write the segments, and return their directories."""
    attempted = f"sealing topic {tail.topic.name} with Spark, places {tail.begin} to {tail.end}"
    # A separate session: the batch size is a session's setting.
    own = spark.newSession()
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(RECORDS_AT_ONCE))
    own.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(BATCH_BYTES_MAX))
    options = _connection(tail.topic)
    try:
        rows = (
            own.read.format("kafka")
            .options(**options)
            .option("startingOffsets", _places(tail.topic.name, tail.begin))
            .option("endingOffsets", _places(tail.topic.name, tail.end))
            .option("failOnDataLoss", "true")
            .load()
            .select("offset", "key", "value")
        )
        found = rows.mapInArrow(_work(opened.sealer), "directory string, kind string, message string").collect()
    except Exception as error:
        raise _translate_error(attempted, error) from error
    for row in found:
        if row.kind is not None:
            raise _again(row.kind, row.message)
    return [row.directory for row in found]


def _work(sealer: Sealer) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return the task's function. It returns cdcflow's errors as rows: as exceptions they would arrive only as text."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for directory in sealer(_messages(batches)):
                yield _row(directory, None, None)
        except CdcflowError as error:
            yield _row(None, type(error).__name__, str(error))

    return work


def _row(*values: str | None) -> pa.RecordBatch:
    columns = [pa.array([value], pa.string()) for value in values]
    return pa.RecordBatch.from_arrays(columns, ["directory", "kind", "message"])


def _messages(batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    """Yield the topic's records, which are frames; their rows stay in columns."""
    for batch in batches:
        offset, key, value = batch.columns
        for at in range(batch.num_rows):
            yield Message(offset[at].as_py(), key[at].as_py() or b"", value[at].as_py() or b"")


def _connection(topic: TopicAddress) -> dict[str, str]:
    return {
        **java_options(topic.options),
        "kafka.bootstrap.servers": topic.brokers,
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic.name: [0]}),
    }


def _places(topic: str, place: int) -> str:
    return json.dumps({topic: {"0": place}})


def _translate_error(attempted: str, error: Exception) -> CdcflowError:
    """Return cdcflow's error for one of Spark's. It contains only the first line, because the rest is a Java stack."""
    text = str(error).split("\n")[0][:500]
    if "data source" in text and "kafka" in text:
        return ConfigurationError(
            f"{attempted}: this Spark session has no Kafka source",
            remedy="fetch its jars with `python -m cdcflow.spark.jars --kafka` and create the session with "
            "session(kafka=True), or "
            "give them to spark-submit with --jars",
            runbook="package-missing",
        )
    if "No module named 'cdcflow" in str(error):
        return ConfigurationError(
            f"{attempted}: the machine that seals lacks the package cdcflow, or has another version of it",
            remedy="install cdcflow on every machine of the cluster, in the Python that PYSPARK_PYTHON names",
            runbook="package-missing",
        )
    return SinkUnavailable(f"{attempted}: {text}", remedy="nothing was added to the history; merge again")


def _again(kind: str, message: str) -> CdcflowError:
    """Return an error of the kind that a task reported."""
    made = getattr(errors, kind, SinkUnavailable)
    error: CdcflowError = made(message)
    return error
