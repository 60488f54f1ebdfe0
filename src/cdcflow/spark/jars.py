"""Delta's jars, Iceberg's, those for Kafka and for S3: fetched once into a cache folder, then used without a network.

    python -m cdcflow.spark.jars              fetch what is not there yet, print the folder
    python -m cdcflow.spark.jars --iceberg    also Iceberg's
    python -m cdcflow.spark.jars --kafka      also what Spark needs to read a log in Kafka
    python -m cdcflow.spark.jars --s3         also what Spark needs to read and write in an S3-compatible store

Spark's own resolver (Ivy, part of pyspark) fetches them, so nothing but pyspark and Java is needed. Where it looks
is the user's matter: Ivy's and Spark's usual settings apply (`DEFAULT_ARTIFACT_REPOSITORY`, and an Ivy settings
file named by `CDCFLOW_IVY_SETTINGS`). Jars that pyspark has already are left out: of what Delta asks for, its own
seven remain.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from cdcflow.errors import ConfigurationError, SourceUnavailable

DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
"""Where Iceberg's catalog is kept."""
KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3"
# Its classes must be there, and do nothing for cdcflow, which uses no tokens. The one of Spark 4.1.3 is missing in
# mirrors that have all the rest.
_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
_TOKENS_VERSION = "4.1.0-preview1"
S3 = "org.apache.hadoop:hadoop-aws:3.4.2"
"""Of the Hadoop that pyspark has."""
_SDK = "software.amazon.awssdk"
_SDK_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
_SDK_VERSION = "2.29.52"
# The bundle is the whole SDK for every service of AWS, 640 MB, of which five modules are used.
_NOT_FOR_S3 = (
    f"{_SDK}:bundle",
    "commons-codec:*",
    "io.netty:*",
    "org.apache.httpcomponents:*",
    "org.wildfly.openssl:*",
)
LOG_STORE = Path(__file__).parent / "log-store.jar"
"""Ours: Delta's commits where several drivers may merge (see `log_store`). Its sources are in `java/`."""
_CONDITIONAL, _CHECKED = "cdcflow.delta.ConditionalLogStore", "cdcflow.delta.CheckedLogStore"
LOG_STORES = ("s3a", "hdfs", "abfss", "gs")
"""The kinds of URLs for which our sessions have them set."""
_NEEDED_FOR_S3 = ("hadoop-aws", "awssdk_s3-", "awssdk_sts", "reactive-streams")
_NEEDED_FOR_KAFKA = ("spark-sql-kafka-0-10", "kafka-clients", "commons-pool2", "spark-token-provider-kafka-0-10")
_NEEDED_FOR_ICEBERG = ("iceberg-spark-runtime", "sqlite-jdbc")
_NEEDED = ("io.delta_delta-spark", "io.delta_delta-storage")
_IN_PYSPARK = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "javax.annotation:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.lz4:*",
    "org.roaringbitmap:*",
    "org.scala-lang.modules:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)


def folder() -> Path:
    """Where the jars are kept: `CDCFLOW_JARS`, else a folder of the user's cache that names the version."""
    own = os.environ.get("CDCFLOW_JARS")
    if own:
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "cdcflow" / "jars" / DELTA.replace(":", "-")


def log_store(scheme: str) -> tuple[str, str]:
    """The Spark setting that says how Delta commits to URLs of this kind, and what it is to be for a merge."""
    return f"spark.delta.logStore.{scheme}.impl", _CONDITIONAL if scheme == "s3a" else _CHECKED


def jars() -> list[str]:
    """The paths of Delta's jars, and of ours for its commits.

    Raises:
        ConfigurationError: they were not fetched yet.
    """
    found = _listed(folder(), _NEEDED, "Spark needs Delta's jars", "python -m cdcflow.spark.jars")
    return [*found, str(LOG_STORE)]


def fetch() -> list[str]:
    """Fetch the jars unless they are there, and return their paths. Whole or not at all: the folder appears last.

    Raises:
        SourceUnavailable: the resolver could not get them; it has printed why.
    """
    return _fetched(jars, [([DELTA], _IN_PYSPARK)], folder())


def iceberg_folder() -> Path:
    """Where Iceberg's jars are kept: beside Delta's."""
    return folder().parent / ICEBERG.replace(":", "-")


def iceberg_jars() -> list[str]:
    """The paths of Iceberg's jars.

    Raises:
        ConfigurationError: they were not fetched yet.
    """
    needs = "Spark needs Iceberg's jars to write Iceberg tables"
    return _listed(iceberg_folder(), _NEEDED_FOR_ICEBERG, needs, "python -m cdcflow.spark.jars --iceberg")


def fetch_iceberg() -> list[str]:
    """Fetch Iceberg's jars unless they are there, and return their paths.

    Raises:
        SourceUnavailable: the resolver could not get them; it has printed why.
    """
    return _fetched(iceberg_jars, [([ICEBERG, _SQLITE], _IN_PYSPARK)], iceberg_folder())


def kafka_folder() -> Path:
    """Where the jars are kept that let Spark read from Kafka: beside Delta's."""
    return folder().parent / KAFKA.replace(":", "-")


def kafka_jars() -> list[str]:
    """The paths of the jars that let Spark read from Kafka.

    Raises:
        ConfigurationError: they were not fetched yet.
    """
    needs = "Spark needs Kafka's jars to read a log in Kafka"
    return _listed(kafka_folder(), _NEEDED_FOR_KAFKA, needs, "python -m cdcflow.spark.jars --kafka")


def s3_folder() -> Path:
    """Where the jars are kept that let Spark read and write in S3-compatible stores: beside Delta's."""
    return folder().parent / S3.replace(":", "-")


def s3_jars() -> list[str]:
    """The paths of the jars that let Spark read and write in S3-compatible stores.

    Raises:
        ConfigurationError: they were not fetched yet.
    """
    needs = "Spark needs S3A's jars to read or write in an object store"
    return _listed(s3_folder(), _NEEDED_FOR_S3, needs, "python -m cdcflow.spark.jars --s3")


def fetch_s3() -> list[str]:
    """Fetch the jars for S3 unless they are there, and return their paths.

    Raises:
        SourceUnavailable: the resolver could not get them; it has printed why.
    """
    packages = [S3, *(f"{_SDK}:{module}:{_SDK_VERSION}" for module in _SDK_MODULES)]
    # Of Hadoop's own modules only this one is asked for, and an exclusion would take it out, too.
    left_out = tuple(name for name in _IN_PYSPARK if name != "org.apache.hadoop:*")
    return _fetched(s3_jars, [(packages, (*left_out, *_NOT_FOR_S3))], s3_folder())


def _listed(place: Path, needed: Sequence[str], needs: str, command: str) -> list[str]:
    found = sorted(str(p) for p in place.glob("*.jar"))
    if not all(any(part in Path(f).name for f in found) for part in needed):
        raise ConfigurationError(
            f"{needs}, and {place} does not have them",
            remedy=f"run `{command}` once (or `make setup`)",
            runbook="merge-session",
        )
    return found


def fetch_kafka() -> list[str]:
    """Fetch the jars for Kafka unless they are there, and return their paths.

    Raises:
        SourceUnavailable: the resolver could not get them; it has printed why.
    """
    # Two steps: of two versions that are asked for, the resolver takes the newer one.
    steps = (
        ([KAFKA], (*_IN_PYSPARK, _TOKENS)),
        ([f"{_TOKENS}:{_TOKENS_VERSION}"], ("*:kafka-clients", *_IN_PYSPARK)),
    )
    return _fetched(kafka_jars, steps, kafka_folder())


def _fetched(
    listed: Callable[[], list[str]], steps: Sequence[tuple[Sequence[str], Sequence[str]]], target: Path
) -> list[str]:
    """What `listed` gives, fetched by these steps unless it is there."""
    try:
        return listed()
    except ConfigurationError:
        _fetch_all(steps, target)
    return listed()


def fetched(packages: Sequence[str], target: Path) -> Path:
    """A folder with these packages and all that they need, fetched unless it is there.

    Raises:
        SourceUnavailable: the resolver could not get them; it has printed why.
    """
    if not target.exists():
        _fetch_all([(packages, ())], target)
    return target


def _fetch_all(steps: Sequence[tuple[Sequence[str], Sequence[str]]], target: Path) -> None:
    """Packages, and what is left out of all that they need, one step after another into one folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cdcflow-jars-", dir=target.parent) as room:
        whole = Path(room) / "whole"
        whole.mkdir()
        for number, (packages, left_out) in enumerate(steps):
            step = Path(room) / str(number)
            _resolve(packages, left_out, step)
            for jar in (step / "ivy" / "jars").glob("*.jar"):
                jar.rename(whole / jar.name)
        if target.exists():
            shutil.rmtree(target)
        whole.rename(target)


def _resolve(packages: Sequence[str], left_out: Sequence[str], room: Path) -> None:
    """Let Spark resolve the packages into `room`/ivy; the session is only a means."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[1]")
        .appName("cdcflow jars")
        .config("spark.ui.enabled", "false")
        .config("spark.jars.packages", ",".join(packages))
        .config("spark.jars.excludes", ",".join(left_out))
        .config("spark.jars.ivy", str(room / "ivy"))
        .config("spark.sql.warehouse.dir", str(room / "warehouse"))
    )
    settings = os.environ.get("CDCFLOW_IVY_SETTINGS")
    if settings:
        builder = builder.config("spark.jars.ivySettings", settings)
    try:
        builder.getOrCreate().stop()
        _leave_java()
    except Exception as error:
        raise SourceUnavailable(
            f"could not fetch {packages[0]} with Spark's resolver (its own words are above)",
            remedy="check the network, or put the jars into the folder that CDCFLOW_JARS names",
            runbook="package-missing",
        ) from error


def _leave_java() -> None:
    """The resolver runs when Java starts: the next one needs another."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)


def main(arguments: Sequence[str]) -> int:
    fetch()
    if "--iceberg" in arguments:
        fetch_iceberg()
    if "--kafka" in arguments:
        fetch_kafka()
    if "--s3" in arguments:
        fetch_s3()
    sys.stdout.write(f"{folder()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
