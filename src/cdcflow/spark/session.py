"""A local Spark session with the settings that the merge wants (each one measured or needed; see docs/merge.md)."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.config import Config, KafkaLog
from cdcflow.errors import ConfigurationError
from cdcflow.spark.formats import table_format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


def session(
    *,
    name: str = "cdcflow",
    cores: int | None = None,
    memory: str = "2g",
    scratch: Path | None = None,
    settings: Mapping[str, str] | None = None,
    kafka: bool = False,
    table_formats: Collection[str] = ("delta",),
) -> SparkSession:
    """Start a local Spark session, or return the one that runs already.

    `cores` None: all of the machine's. `scratch` is where Spark spills; None: the system's temporary folder.
    `settings` come last and win. `kafka`: the session is to read logs in Kafka.
    `table_formats`: those of the tables that are to be read or written.

    Raises:
        ConfigurationError: pyspark or the jars are not installed; the message says what to run.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            "merging needs pyspark, which is not installed", remedy="run `pip install 'cdcflow[spark]'`"
        ) from error
    # Here, so that `python -m cdcflow.spark.jars` is not loaded twice.
    from cdcflow.spark.jars import iceberg_jars, jars, kafka_jars

    workers = cores or os.cpu_count() or 2
    # Workers otherwise take the python that stands first in PATH, which may be another version.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{workers}]").appName(name).config("spark.driver.memory", memory)
    chosen = {
        **_SETTINGS,
        **_settings_of(table_formats),
        "spark.sql.shuffle.partitions": str(2 * workers),
        "spark.jars": ",".join(
            [
                *(jars() if "delta" in table_formats else ()),
                *(iceberg_jars() if "iceberg" in table_formats else ()),
                *(kafka_jars() if kafka else ()),
            ]
        ),
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


def _settings_of(formats: Collection[str]) -> dict[str, str]:
    """What sessions need for all of these formats together."""
    found: dict[str, str] = {}
    for name in formats:
        for key, value in table_format(name).settings.items():
            found[key] = f"{found[key]},{value}" if key == "spark.sql.extensions" and key in found else value
    return found


def session_for(config: Config) -> SparkSession:
    """A session that merges as configured (see `session`)."""
    return session(
        name="cdcflow merge",
        settings=config.merge.spark,
        kafka=isinstance(config.log, KafkaLog),
        table_formats=[config.merge.format],
    )
