"""A local Spark session with the settings that a merge needs (each one measured or required; see docs/merge.md)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from cdcflow.config import Config, FileLog, KafkaLog
from cdcflow.errors import ConfigurationError
from cdcflow.spark.formats import table_format
from cdcflow.spark.runtime.java import quiet_start
from cdcflow.spark.runtime.metastore import settings as metastore_settings
from cdcflow.spark.runtime.sessions import FAST_DELTA
from cdcflow.spark.runtime.verbatim import OFF
from cdcflow.tables.paths import Metastore, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Plans of finished statements, with their texts: by default Spark keeps a thousand.
    "spark.sql.ui.retainedExecutions": "50",
    # Finished stages and tasks, each with its metrics: by default a thousand and a hundred thousand.
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    **OFF,
}


def session(
    *,
    name: str = "cdcflow",
    cores: int | None = None,
    memory: str = "2g",
    scratch: Path | None = None,
    settings: Mapping[str, str] | None = None,
    kafka: bool = False,
    s3: bool = False,
    table_formats: Collection[str] = ("delta",),
) -> SparkSession:
    """Start a local Spark session, or return the one that is already running.

    `cores` `None`: all of the machine's. `scratch`: the folder where Spark spills; `None`: the system's temporary
    folder. `settings` are applied last and win; `spark.jars` and `spark.plugins` in them are added to cdcflow's.
    `kafka`: the session can read logs in Kafka. `s3`: it can read and write in S3-compatible stores. `table_formats`:
    the formats of the tables to read or write. Under spark-submit, master, memory, jars and plugins stay as submitted.

    Raises:
        ConfigurationError: pyspark or Java is not installed; the message says what to run.
        SourceUnavailable: jars are missing and cannot currently be fetched.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            "merging needs pyspark, which is not installed",
            remedy="run `pip install 'cdcflow[spark]'`",
            runbook="package-missing",
        ) from error
    # Imported here, so that `python -m cdcflow.spark.jars` is not loaded twice.
    from cdcflow.spark.jars import ICEBERG_PLUGIN, LOG_STORES, jars_for_session, log_store

    workers = cores or os.cpu_count() or 2
    # By default workers use the first python in PATH, which may be another version.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = {
        **_SETTINGS,
        **_settings_of(table_formats),
        "spark.sql.shuffle.partitions": str(2 * workers),
    }
    own = dict(settings or {})
    if "delta" in table_formats:
        chosen |= dict(map(log_store, LOG_STORES))
    if not is_submitted():
        chosen |= {"spark.master": f"local[{workers}]", "spark.driver.memory": memory}
        listed = [
            *jars_for_session(table_formats, kafka=kafka, s3=s3),
            *filter(None, own.pop("spark.jars", "").split(",")),
        ]
        chosen["spark.jars"] = ",".join(listed)
        if "iceberg" in table_formats:
            chosen["spark.plugins"] = ",".join(filter(None, [ICEBERG_PLUGIN, own.pop("spark.plugins", "")]))
    # Spark creates the folder of its default database even if nothing is ever stored there.
    chosen["spark.sql.warehouse.dir"] = str((scratch or Path(tempfile.gettempdir())) / "cdcflow-spark-warehouse")
    if scratch is not None:
        chosen["spark.local.dir"] = str(scratch)
    final = {**chosen, **own}
    for key, value in final.items():
        builder = builder.config(key, value)
    with holding_interrupts(), quiet_start({"spark.app.name": name, **final}):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextlib.contextmanager
def holding_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block. If it interrupted the start of a JVM, that JVM would keep running."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread only
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if not held:
            sys.stderr.write("Spark is still starting; cdcflow ends it as soon as possible\n")
        held.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # Spark may have installed its own handler
            signal.signal(signal.SIGINT, before)
        if held:
            raise KeyboardInterrupt


def _settings_of(formats: Collection[str]) -> dict[str, str]:
    """Return the combined session settings for all of these formats."""
    found: dict[str, str] = {}
    for name in formats:
        for key, value in table_format(name).settings.items():
            found[key] = f"{found[key]},{value}" if key == "spark.sql.extensions" and key in found else value
    return found


def is_submitted() -> bool:
    """Return whether spark-submit started this process, so that Spark's settings are the submitter's."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def session_for(config: Config, *others: Config) -> SparkSession:
    """Return a session that merges as configured (see `session`), and that can also read the logs of the other
    settings."""
    metastore = Metastore.from_settings(config.merge)
    logs = [one.log for one in (config, *others)]
    of_log = any(log.objects is not None if isinstance(log, FileLog) else log.history_url is not None for log in logs)
    return session(
        name="cdcflow merge",
        settings={
            FAST_DELTA: str(config.merge.fast_delta).lower(),
            **({} if metastore is None else metastore_settings(metastore)),
            **config.merge.spark,
        },
        kafka=any(isinstance(log, KafkaLog) for log in logs),
        s3=of_log or Warehouse.of(config.merge.warehouse).bucket is not None,
        table_formats=[config.merge.format],
    )
