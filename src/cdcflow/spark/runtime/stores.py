"""Access to object stores and other places through Spark's Hadoop: their settings, small objects, and the merge
lease."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.model.stores import StoreAddress
from cdcflow.spark.jars import log_store
from cdcflow.spark.runtime.failures import first_line
from cdcflow.tables.job.store_lease import store_lease, upkeep_store_lease
from cdcflow.tables.paths import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = structlog.get_logger()


def reach(spark: SparkSession, address: StoreAddress) -> None:
    """Make a bucket reachable for this Spark: for drivers and executors, and in all sessions. Other buckets are not
    affected. Stores of Google and Azure are reached as Spark's own settings describe.

    The keys go into the running Spark's own settings; as arguments at its start they would appear in the list of
    processes.

    Raises:
        ConfigurationError: this Spark cannot read from S3-compatible stores, or it has already reached a bucket with
            the same name in another store: Hadoop caches its clients by bucket name, and would keep reading there.
    """
    if address.kind != "s3":
        return
    hadoop = _hadoop(spark)
    place = f"{address.endpoint or 'AWS'} {address.region or ''}".rstrip()
    reached = hadoop.get(f"cdcflow.reached.{address.bucket}")
    if reached not in (None, place):
        raise ConfigurationError(
            f"this Spark has reached a bucket {address.bucket} at {reached}, and cannot reach the one at {place} too",
            remedy="start a new Spark application for it, or give the buckets different names",
            runbook="merge-session",
        )
    prefix = f"fs.s3a.bucket.{address.bucket}"
    options: dict[str, str | None] = {
        f"{prefix}.endpoint": address.endpoint,
        f"{prefix}.endpoint.region": address.region,
        f"{prefix}.path.style.access": "true" if address.endpoint is not None else None,
        f"{prefix}.access.key": address.access_key,
        f"{prefix}.secret.key": address.secret_key,
    }
    for name, value in options.items():
        if value is not None:
            hadoop.set(name, value)
    try:
        hadoop.getClassByName("org.apache.hadoop.fs.s3a.S3AFileSystem")
    except Exception as error:
        raise ConfigurationError(
            f"this Spark session cannot reach the bucket {address.bucket}: it has no S3A",
            remedy="fetch its jars with `python -m cdcflow.spark.jars --s3` and create the session with "
            "session(s3=True), or give"
            " them to spark-submit with --jars",
            runbook="package-missing",
        ) from error
    hadoop.set(f"cdcflow.reached.{address.bucket}", place)


def check_commits(spark: SparkSession, warehouse: Warehouse) -> None:
    """Check that two drivers cannot both commit the same Delta version at this URL, and that a commit is based on the
    version that its driver has read.

    Raises:
        ConfigurationError: two drivers could commit the same version, so that one commit is silently lost, or one could
            commit a change that it computed before the other's commit.
    """
    setting, wanted = log_store(urlsplit(str(warehouse.root)).scheme)
    chosen = spark.sparkContext.getConf().get(setting, "")
    if not chosen:
        raise ConfigurationError(
            f"merging into {warehouse}: this Spark session would commit with Delta's own log store, and one of "
            f"two drivers could undo the commits of the other",
            remedy=f"begin with cdcflow.spark.session(), or set {setting}={wanted} and give Spark the jars that"
            " cdcflow.spark.jars.jars() lists (and s3_jars() for S3)",
            runbook="merge-session",
        )
    if chosen != wanted:
        _log.info("another log store is used for Delta's commits", log_store=chosen)
        return
    if warehouse.bucket is None:
        return
    jvm: Any = spark._jvm
    try:
        safe = bool(jvm.cdcflow.delta.ConditionalLogStore.isSafe(str(warehouse.root), _hadoop(spark)))
    except Exception as error:
        raise _away(f"reading {warehouse}", error) from error
    if not safe:
        raise ConfigurationError(
            f"merging into {warehouse}: this store has no conditional writes, so two merges could lose each "
            f"other's commits",
            remedy="use a store with conditional writes (If-None-Match), Iceberg tables with a catalog, or a folder",
            runbook="store-unsuitable",
        )


def read_object(spark: SparkSession, place: str) -> str | None:
    """Return a small text at a URL; `None` if it does not exist.

    Raises:
        SinkUnavailable: the store does not answer.
    """
    try:
        path, files = _path(spark, place)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()
    except Exception as error:
        raise _away(f"reading {place}", error) from error


def write_object(spark: SparkSession, place: str, text: str) -> None:
    """Write a small text to a URL, replacing any existing one. In an object store a reader sees either the old or the
    new one, whole.

    Raises:
        SinkUnavailable: the store does not answer.
    """
    try:
        path, files = _path(spark, place)
        stream = files.create(path, True)
        stream.write(text.encode())
        stream.close()
    except Exception as error:
        raise _away(f"writing {place}", error) from error


def _path(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Return Hadoop's path of a place, and its file system."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path, path.getFileSystem(_hadoop(spark))


def lease(spark: SparkSession, warehouse: Warehouse) -> AbstractContextManager[None]:
    """Return the lease of a merge (see `cdcflow.tables.job.store_lease`): the same object, through Hadoop's file
    systems."""
    return store_lease(_HadoopFolder(spark, warehouse))


def upkeep_lease(spark: SparkSession, warehouse: Warehouse) -> AbstractContextManager[None]:
    """Return the lease of a maintenance step, like `lease`."""
    return upkeep_store_lease(_HadoopFolder(spark, warehouse))


class _HadoopFolder:
    """Implements `LeaseFolder` on a warehouse, through Hadoop."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self.location = str(warehouse)

    def create(self, name: str, content: bytes) -> None:
        # Hadoop checks first, then writes; another process may come between (`store_lease`: what the lease is worth).
        if read_object(self._spark, self._place_of(name)) is not None:
            raise FileExistsError(17, "another process has created it", self._place_of(name))
        self.replace(name, content)

    def replace(self, name: str, content: bytes) -> None:
        write_object(self._spark, self._place_of(name), content.decode())

    def read_each(self, names: Sequence[str]) -> list[bytes | None]:
        found = [read_object(self._spark, self._place_of(name)) for name in names]
        return [None if text is None else text.encode() for text in found]

    def modified_at(self, name: str) -> float:
        place = self._place_of(name)
        with _asking(f"reading {place}"):
            path, files = _path(self._spark, place)
            if files.exists(path):
                return float(files.getFileStatus(path).getModificationTime()) / 1000
        raise FileNotFoundError(2, "no such object", place)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with _asking(f"removing {self._place_of(name)}"):
                path, files = _path(self._spark, self._place_of(name))
                files.delete(path, False)

    def _place_of(self, name: str) -> str:
        return self._warehouse.location_of((name,))


@contextmanager
def _asking(attempted: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _away(attempted, error) from error


def _hadoop(spark: SparkSession) -> Any:  # Any: py4j gives whatever the other side has
    context: Any = spark.sparkContext._jsc
    return context.hadoopConfiguration()


def _away(attempted: str, error: Exception) -> SinkUnavailable:
    return SinkUnavailable(
        f"{attempted}: {first_line(error)}",
        remedy="make sure that the store answers, then merge again",
        runbook="store-unreachable",
    )
