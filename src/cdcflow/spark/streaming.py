"""The merge as a Spark streaming query, over a log of any kind.

    log in files   ──names of sealed segments──▶ ┐
    log in Kafka   ──Spark's Kafka source──────▶ ┴ a batch: "there is more" ──foreachBatch──▶ merge

The stream only triggers merges. When a merge begins, it reads from the tables where to start, and from the log how far
to go, which is never less than its batch has. So a repeated batch changes nothing, and a lost checkpoint loses nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from cdcflow.config.base import URL
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.log.tier import Tier
from cdcflow.spark import job, kafka
from cdcflow.spark.job import MergeReport
from cdcflow.spark.runtime.connect import refuse_connect
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.paths import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_PAUSE_S, PAUSE_S_MAX = 1.0, 30.0
_STOP_LOOK_S = 0.2

_log = structlog.get_logger()
_Result = TypeVar("_Result")


RETRY_TIMEOUT_S = 600.0

LOOK_PAUSE_S = 1.0
"""The minimum time between two polls. Without a trigger Spark polls a hundred times a second, and a poll may be a
request to an object store."""

_registering = threading.Lock()


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
    retry_timeout_s: float = RETRY_TIMEOUT_S,
) -> StreamingQuery:
    """Merge as the log grows: a streaming query with one merge for each of Spark's batches.

    `log`: its directory, its layout (`cdcflow.wiring.log_layout(config.log)`, also for a log in an object store), or,
    in Kafka, `cdcflow.wiring.tier(config)`, for which the session needs Kafka's jars. `trigger`: arguments of Spark's
    `DataStreamWriter.trigger`, such as `{"availableNow": True}`, with which the query ends when everything that was
    sealed at its start is merged, or `{"processingTime": "10 seconds"}`; `None`: as fast as possible. `checkpoint`:
    Spark's own folder for the query (`None`: a temporary one). `on_merge` is called after each merge, in another
    thread.

    A merge, or a poll of the log, that fails with SinkUnavailable (another merge is running, or the store is
    unavailable) is repeated within its batch, with pauses of 1 s to 30 s; after `retry_timeout_s` the query ends with
    that error. Any other error ends it at once. The next start of the query finishes what this one left undone.

    Raises:
        ConfigurationError: there is no such log, or the session is Spark Connect's.
    """
    refuse_connect(spark)
    place = Layout.of(log) if isinstance(log, Layout | Path | str) else log
    _check(place)
    # A separate session: settings that a merge makes for a commit must not affect the caller's other writes.
    own = spark.newSession()
    life = _Life()

    def merge_batch(batch: DataFrame, number: int) -> None:
        report = retry(lambda: _merge(own, place, warehouse, table_format, policies), retry_timeout_s, life.is_wanted)
        if on_merge is not None:
            on_merge(report)

    try:
        writer = _growth(spark, place, life, retry_timeout_s).writeStream.foreachBatch(merge_batch)
        if checkpoint is not None:
            writer = writer.option("checkpointLocation", _place(checkpoint))
        if trigger is not None:
            writer = writer.trigger(**trigger)  # type: ignore[arg-type]  # one of several keywords
        life.query = writer.start()
    except BaseException:
        life.failed = True
        raise
    return life.query


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Life:
    """The state of a query, which its threads read to find out whether it still runs."""

    query: StreamingQuery | None = None
    failed: bool = False

    def is_wanted(self) -> bool:
        """Return whether the query runs, or is about to."""
        return not self.failed and (self.query is None or self.query.isActive)


def _place(checkpoint: Path | str) -> str:
    """Return a folder's absolute path: Spark's JVM may have started in another directory than this process."""
    return str(checkpoint) if URL.match(str(checkpoint)) else str(Path(checkpoint).absolute())


def _check(log: Layout | Tier) -> None:
    """Report problems at the start that waiting cannot fix. If a store is only unavailable, the query waits for it.

    Raises:
        ConfigurationError: there is no such log.
    """
    with contextlib.suppress(SinkUnavailable):
        if not isinstance(log, Layout):
            with log.open():
                return
        if not log.exists():
            raise ConfigurationError(
                f"there is no change log at {log.name}",
                remedy="start `cdcflow run` first, or name the log's directory; pass a log in an object store as"
                " cdcflow.wiring.log_layout(config.log)",
                runbook="no-log",
            )


def _merge(
    spark: SparkSession,
    log: Layout | Tier,
    warehouse: Warehouse | Path | str,
    table_format: str | None,
    policies: Policies,
) -> MergeReport:
    if isinstance(log, Layout):
        return job.merge(spark, log, warehouse, table_format=table_format, policies=policies)
    return kafka.merge(spark, log, warehouse, table_format=table_format, policies=policies)


def _growth(spark: SparkSession, log: Layout | Tier, life: _Life, retry_timeout_s: float) -> DataFrame:
    """Return a stream with a batch whenever the log has grown."""
    if not isinstance(log, Layout):
        return kafka.records(spark, log)
    # Imported here, so that importing this package does not import pyspark.
    from cdcflow.spark.log_source.sealed_offsets import NAME, OffsetServer, source_of

    looks = _Looks(log)
    server = OffsetServer(lambda: retry(looks.newest, retry_timeout_s, life.is_wanted))
    server.start(life.is_wanted)
    with _registering:  # the name belongs to the session, the log to this query
        spark.dataSource.register(source_of(server.path))
        return spark.readStream.format(NAME).load()


class _Looks:
    """Polls the names of a log's segments, at most once per `LOOK_PAUSE_S`."""

    def __init__(self, log: Layout) -> None:
        self._log = log
        self._next_s = 0.0
        self._newest = 0

    def newest(self) -> int:
        """Return the last offset of the latest sealed segment; 0 if there is none.

        Raises:
            SinkUnavailable, ConfigurationError: the store is unavailable, or refuses.
        """
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        self._next_s = time.monotonic() + LOOK_PAUSE_S
        sealed = self._log.segments_behind(self._newest)
        self._newest = sealed[-1][1] if sealed else 0
        return self._newest


def retry(attempt: Callable[[], _Result], timeout_s: float, is_wanted: Callable[[], bool] = lambda: True) -> _Result:
    """Return what `attempt` returns. After SinkUnavailable it is repeated, with pauses that grow from 1 s to 30 s.

    Raises:
        SinkUnavailable: the next attempt would begin later than `timeout_s` after the first one, or `is_wanted`
            returned False during a pause.
    """
    began = time.monotonic()
    for pause_s in _pauses():
        try:
            return attempt()
        except SinkUnavailable as error:
            resumes = time.monotonic() + pause_s
            if resumes > began + timeout_s:
                raise
            _log.warning("put off", reason=str(error).splitlines()[0], retry_in_s=pause_s)
            while (left := resumes - time.monotonic()) > 0:
                if not is_wanted():
                    raise
                time.sleep(min(left, _STOP_LOOK_S))
    raise AssertionError("pauses never end")


def _pauses() -> Iterator[float]:
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
