"""Object stores and other places that Spark reaches through Hadoop: their settings, small objects, and the merge
lease."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.model.stores import StoreAddress
from cdcflow.spark.jars import log_store
from cdcflow.spark.runtime.failures import first_line
from cdcflow.tables.paths import LEASE, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RENEWED_EVERY_S, LEASED_FOR_S = 15.0, 60.0

_log = structlog.get_logger()


def reach(spark: SparkSession, address: StoreAddress) -> None:
    """Make a bucket reachable for this Spark: for drivers and executors, and in all sessions. Other buckets are not
    affected.

    The keys go into the running Spark's own settings; as arguments at its start they would appear in the list of
    processes.

    Raises:
        ConfigurationError: this Spark cannot read from S3-compatible stores, or it has already reached a bucket with
            the same name in another store: Hadoop caches its clients by bucket name, and would keep reading there.
    """
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


@contextmanager
def lease(spark: SparkSession, warehouse: Warehouse) -> Iterator[None]:
    """Hold a lease so that one merge at a time works in a warehouse of several machines, as far as a store can
    guarantee it. The lease only saves work: the format's own commit keeps the tables correct. The lease of a killed
    merge blocks others for a minute.

    Raises:
        SinkUnavailable: another merge holds it.
    """
    there = _Lease(spark, warehouse)
    there.take()
    stop = threading.Event()
    renewing = threading.Thread(target=there.renew_until, args=(stop,), name="cdcflow lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        stop.set()
        renewing.join()
        there.release()


class _Lease:
    """A file that names the merge that holds the lease; its modification time is the last renewal, by the store's
    clock."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse) -> None:
        jvm: Any = spark._jvm
        self._warehouse = warehouse
        self._path = jvm.org.apache.hadoop.fs.Path(warehouse.location_of((LEASE,)))
        self._asked = jvm.org.apache.hadoop.fs.Path(warehouse.location_of((f"{LEASE}.{uuid.uuid4()}",)))
        self._holder = uuid.uuid4().hex.encode()
        try:
            self._files = self._path.getFileSystem(_hadoop(spark))
        except Exception as error:
            raise _away(f"reading {warehouse}", error) from error

    def take(self) -> None:
        try:
            held_ms = self._held_ms()
            if held_ms is not None and held_ms < LEASED_FOR_S * 1000:
                raise SinkUnavailable(
                    f"merging into {self._warehouse}: another merge works there, or did {held_ms / 1000:.0f} s ago",
                    remedy=f"try again when it is done; the lease of a merge that was killed expires after "
                    f"{LEASED_FOR_S:.0f} s",
                    runbook="busy",
                )
            self._write(self._path)
        except SinkUnavailable:
            raise
        except Exception as error:
            raise _away(f"merging into {self._warehouse}", error) from error

    def renew_until(self, stop: threading.Event) -> None:
        while not stop.wait(RENEWED_EVERY_S):
            try:
                if self._is_ours():
                    self._write(self._path)
            except Exception as error:  # noqa: BLE001  whatever the error is, the merge is just as correct
                _log.warning("the lease on the warehouse was not renewed", reason=first_line(error))

    def release(self) -> None:
        try:
            if self._is_ours():
                self._files.delete(self._path, False)
        except Exception as error:  # noqa: BLE001  as above
            _log.warning("the lease on the warehouse was not given back", reason=first_line(error))

    def _held_ms(self) -> float | None:
        """Return the time since the lease was last renewed, in milliseconds; `None` if no merge holds it."""
        if not self._files.exists(self._path):
            return None
        self._write(self._asked)
        now = self._files.getFileStatus(self._asked).getModificationTime()
        self._files.delete(self._asked, False)
        return float(now - self._files.getFileStatus(self._path).getModificationTime())

    def _is_ours(self) -> bool:
        if not self._files.exists(self._path):
            return False
        stream = self._files.open(self._path)
        try:
            return bytes(stream.readAllBytes()) == self._holder
        finally:
            stream.close()

    def _write(self, path: Any) -> None:
        stream = self._files.create(path, True)
        stream.write(self._holder)
        stream.close()


def _hadoop(spark: SparkSession) -> Any:  # Any: py4j gives whatever the other side has
    context: Any = spark.sparkContext._jsc
    return context.hadoopConfiguration()


def _away(attempted: str, error: Exception) -> SinkUnavailable:
    return SinkUnavailable(
        f"{attempted}: {first_line(error)}",
        remedy="make sure that the store answers, then merge again",
        runbook="store-unreachable",
    )
