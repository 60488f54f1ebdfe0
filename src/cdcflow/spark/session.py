"""A local Spark session with the settings that the merge wants (each one measured or needed; see docs/merge.md)."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Without these a session cannot run a MERGE; spark-submit needs them as `--conf` (see docs/merge.md)."""

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}


def session(
    *,
    name: str = "cdcflow",
    cores: int | None = None,
    memory: str = "2g",
    scratch: Path | None = None,
    settings: Mapping[str, str] | None = None,
    kafka: bool = False,
) -> SparkSession:
    """Start a local Spark session, or return the one that runs already.

    `cores` None: all of the machine's. `scratch` is where Spark spills; None: the system's temporary folder.
    `settings` come last and win. `kafka`: the session is to read logs in Kafka.

    Raises:
        ConfigurationError: pyspark or the jars are not installed; the message says what to run.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            "merging needs pyspark, which is not installed", remedy="run `pip install 'cdcflow[spark]'`"
        ) from error
    from cdcflow.spark.jars import jars, kafka_jars  # here, so that `python -m cdcflow.spark.jars` is not loaded twice

    workers = cores or os.cpu_count() or 2
    # Workers otherwise take the python that stands first in PATH, which may be another version.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{workers}]").appName(name).config("spark.driver.memory", memory)
    chosen = {
        **_SETTINGS,
        **DELTA_SETTINGS,
        "spark.sql.shuffle.partitions": str(2 * workers),
        "spark.jars": ",".join([*jars(), *(kafka_jars() if kafka else ())]),
    }
    # Spark makes the folder of its default database even where nothing is ever put there.
    chosen["spark.sql.warehouse.dir"] = str((scratch or Path(tempfile.gettempdir())) / "cdcflow-spark-warehouse")
    if scratch is not None:
        chosen["spark.local.dir"] = str(scratch)
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
