"""The jars of Delta and Iceberg, and those for Kafka and S3: fetched once into a cache folder, then used without a
network.

A session that lacks some fetches them itself (`jars_for_session`). To fetch them beforehand:

    python -m cdcflow.spark.jars              fetch what is missing, print the folder
    python -m cdcflow.spark.jars --iceberg    also Iceberg's
    python -m cdcflow.spark.jars --kafka      also what Spark needs to read a log in Kafka
    python -m cdcflow.spark.jars --s3         also what Spark needs to read and write in an S3-compatible store

Spark's own resolver (Ivy, part of pyspark) fetches them, so nothing but pyspark and Java is needed. It queries one
repository: Maven Central, or the one that `DEFAULT_ARTIFACT_REPOSITORY` or an Ivy settings file
(`CDCFLOW_IVY_SETTINGS`) names. A failed download is tried again, and files that arrived whole are kept for the next
attempt. Jars that pyspark already has are excluded: of Delta's dependencies, its own seven remain.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable
from cdcflow.spark.runtime.resolver import resolve

DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
"""The driver for the SQLite database that has Iceberg's catalog, if the catalog is in the warehouse's folder."""
KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3"
# Its classes must be present, but do nothing for cdcflow, which uses no tokens. The version for Spark 4.1.3 is missing
# in mirrors that have all the others.
_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
_TOKENS_VERSION = "4.1.0-preview1"
S3 = "org.apache.hadoop:hadoop-aws:3.4.2"
"""The package for S3, in the version of the Hadoop that pyspark has."""
_SDK = "software.amazon.awssdk"
_SDK_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
_SDK_VERSION = "2.29.52"
# The bundle is the whole SDK for every service of AWS, 640 MB; only five of its modules are used.
_NOT_FOR_S3 = (
    f"{_SDK}:bundle",
    "commons-codec:*",
    "io.netty:*",
    "org.apache.httpcomponents:*",
    "org.wildfly.openssl:*",
)
OWN_JAR = Path(__file__).parent / "cdcflow.jar"
"""cdcflow's own jar: the log stores for commits to Delta tables where several drivers may merge (see `log_store`),
and `ICEBERG_PLUGIN`. Its sources are in `java/`."""
ICEBERG_PLUGIN = "cdcflow.iceberg.AllocatorPlugin"
"""A plug-in for `spark.plugins`: it frees memory that Iceberg's vectorized reader would otherwise keep for each file
until its process ends."""
_CONDITIONAL, _CHECKED = "cdcflow.delta.ConditionalLogStore", "cdcflow.delta.CheckedLogStore"
LOG_STORES = ("s3a", "hdfs", "abfss", "gs")
"""The URL schemes for which cdcflow's sessions set its own log stores."""
_NEEDED_FOR_S3 = ("hadoop-aws", "awssdk_s3-", "awssdk_sts", "reactive-streams")
_NEEDED_FOR_KAFKA = ("spark-sql-kafka-0-10", "kafka-clients", "commons-pool2", "spark-token-provider-kafka-0-10")
_NEEDED_FOR_ICEBERG = ("iceberg-spark-runtime", "sqlite-jdbc")
_NEEDED = ("io.delta_delta-spark", "io.delta_delta-storage")
_COMMAND = "python -m cdcflow.spark.jars"

_log = structlog.get_logger()
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
    """Return the folder of the jars: `CDCFLOW_JARS`, or otherwise a folder in the user's cache that names the
    version."""
    own = os.environ.get("CDCFLOW_JARS")
    if own:
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "cdcflow" / "jars" / DELTA.replace(":", "-")


def log_store(scheme: str) -> tuple[str, str]:
    """Return the Spark setting that selects how Delta commits to URLs with this scheme, and the value that a merge
    needs."""
    return f"spark.delta.logStore.{scheme}.impl", _CONDITIONAL if scheme == "s3a" else _CHECKED


@dataclass(frozen=True, slots=True)
class _JarSet:
    """Jars that belong together. `needed`: parts of the names of jars without which the folder is not complete;
    `steps`: packages to fetch, each with what is excluded from their dependencies."""

    purpose: str
    option: str
    megabytes: int
    needed: Sequence[str]
    steps: Sequence[tuple[Sequence[str], Sequence[str]]]
    place: Callable[[], Path]

    @property
    def command(self) -> str:
        return f"{_COMMAND}{self.option}"

    def paths(self) -> list[str]:
        """Return the paths of the jars.

        Raises:
            ConfigurationError: they were not fetched yet.
        """
        place = self.place()
        found = sorted(str(p) for p in place.glob("*.jar"))
        if not self._is_whole(found):
            raise ConfigurationError(
                f"Spark needs {self.purpose}, and {place} does not have them",
                remedy=f"run `{self.command}` once (or `make setup`)",
                runbook="package-missing",
            )
        return found

    def fetch(self) -> list[str]:
        """Fetch the jars unless they are present. Either all appear or none: the folder gets its name last.

        Raises:
            SourceUnavailable: the resolver could not get them; the message names what it requested.
            ConfigurationError: there is no Java, or the folder cannot be written.
        """
        try:
            return self.paths()
        except ConfigurationError:
            place = self.place()
            _log.info("fetching jars", what=self.purpose, size=f"{self.megabytes} MB", to=str(place))
            _fetch_all(self.steps, place, self._is_there)
        return self.paths()

    def _is_there(self) -> bool:
        return self._is_whole([str(p) for p in self.place().glob("*.jar")])

    def _is_whole(self, found: Sequence[str]) -> bool:
        return all(any(part in Path(f).name for f in found) for part in self.needed)


def jars() -> list[str]:
    """Return the paths of Delta's jars, and of cdcflow's for its commits.

    Raises:
        ConfigurationError: they were not fetched yet.
    """
    return [*_DELTA.paths(), str(OWN_JAR)]


def iceberg_jars() -> list[str]:
    """Return the paths of Iceberg's jars, and of cdcflow's jar with `ICEBERG_PLUGIN`. Raises as `jars` does."""
    return [*_ICEBERG.paths(), str(OWN_JAR)]


def s3_jars() -> list[str]:
    """Return the paths of the jars that let Spark read and write in S3-compatible stores. Raises as `jars` does."""
    return _S3.paths()


def jars_for_session(table_formats: Collection[str], *, kafka: bool = False, s3: bool = False) -> list[str]:
    """Return the paths of the jars for a session with these abilities; missing ones are fetched now.

    Raises:
        SourceUnavailable: they are missing and cannot currently be fetched.
        ConfigurationError: there is no Java, or the folder cannot be written, or it is the user's own and incomplete.
    """
    found: list[str] = []
    for jar_set, is_wanted in (
        (_DELTA, "delta" in table_formats),
        (_ICEBERG, "iceberg" in table_formats),
        (_KAFKA, kafka),
        (_S3, s3),
    ):
        if is_wanted:
            found += _ensure(jar_set)
    return [*found, str(OWN_JAR)] if table_formats else found


def _ensure(jar_set: _JarSet) -> list[str]:
    place = jar_set.place()
    if os.environ.get("CDCFLOW_JARS") == str(place) and place.exists() and any(place.iterdir()):
        return jar_set.paths()  # the folder is the user's: its files are not replaced unasked
    try:
        return jar_set.fetch()
    except SourceUnavailable as error:
        message, *rest = str(error).split("\n  ")
        raise SourceUnavailable(
            f"Spark needs {jar_set.purpose}, {place} does not have them, and they could not be fetched: {message}",
            remedy=f"run `{jar_set.command}` once (or `make setup`); {' '.join(rest)}",
            runbook="package-missing",
        ) from error


def folder_of(package: str) -> Path:
    """Return the folder of the jars of another package (`ICEBERG`, `KAFKA`, `S3`), next to Delta's."""
    return folder().parent / package.replace(":", "-")


_DELTA = _JarSet("Delta's jars", "", 13, _NEEDED, [([DELTA], _IN_PYSPARK)], folder)
_ICEBERG = _JarSet(
    "Iceberg's jars to write Iceberg tables",
    " --iceberg",
    60,
    _NEEDED_FOR_ICEBERG,
    [([ICEBERG, _SQLITE], _IN_PYSPARK)],
    partial(folder_of, ICEBERG),
)
_KAFKA = _JarSet(
    "Kafka's jars to read a log in Kafka",
    " --kafka",
    10,
    _NEEDED_FOR_KAFKA,
    # Two steps: if two versions are requested together, the resolver takes the newer one.
    [([KAFKA], (*_IN_PYSPARK, _TOKENS)), ([f"{_TOKENS}:{_TOKENS_VERSION}"], ("*:kafka-clients", *_IN_PYSPARK))],
    partial(folder_of, KAFKA),
)
_S3 = _JarSet(
    "S3A's jars to read or write in an object store",
    " --s3",
    12,
    _NEEDED_FOR_S3,
    [
        (
            [S3, *(f"{_SDK}:{module}:{_SDK_VERSION}" for module in _SDK_MODULES)],
            # Of Hadoop's own modules only this one is requested, and an exclusion would exclude it, too.
            (*(name for name in _IN_PYSPARK if name != "org.apache.hadoop:*"), *_NOT_FOR_S3),
        )
    ],
    partial(folder_of, S3),
)


def fetch_packages(packages: Sequence[str], target: Path) -> Path:
    """Return a folder with these packages and all of their dependencies. They are fetched unless the folder exists.

    Raises:
        SourceUnavailable: the resolver could not get them; the message names what it requested.
        ConfigurationError: there is no Java, or the folder cannot be written.
    """
    if not target.exists():
        _fetch_all([(packages, ())], target, target.exists)
    return target


def _fetch_all(
    steps: Sequence[tuple[Sequence[str], Sequence[str]]], target: Path, is_there: Callable[[], bool]
) -> None:
    """Fetch the packages of each step into one folder, one step after another, without what the step excludes."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target) as room:
            if is_there():
                return  # another process has fetched them in the meantime
            whole = room / "whole"
            shutil.rmtree(whole, ignore_errors=True)
            whole.mkdir(parents=True)
            for number, (packages, left_out) in enumerate(steps):
                step = room / str(number)
                resolve(packages, left_out, step)
                for jar in (step / "ivy" / "jars").glob("*.jar"):
                    shutil.copy(jar, whole / jar.name)
            _put_in_place(whole, target)
            shutil.rmtree(room)
    except OSError as error:
        raise ConfigurationError(
            f"fetching jars into {target}: {error.strerror or error}",
            remedy="make the folder writable, or name another folder in CDCFLOW_JARS",
            runbook="package-missing",
        ) from error


@contextmanager
def _alone(target: Path) -> Iterator[Path]:
    """Lock the folder for downloads and yield it: only one process may use it at a time. A failed fetch leaves its
    files there for the next one."""
    room = target.parent / f".{target.name}.fetching"
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield room


def _put_in_place(whole: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target, ignore_errors=True)
    try:
        whole.rename(target)
    except OSError:
        if not any(target.glob("*.jar")):  # otherwise another process has fetched them
            raise


def main(arguments: Sequence[str]) -> int:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr), processors=[_event_line])
    wanted = [_DELTA, *(s for s in (_ICEBERG, _KAFKA, _S3) if s.option.strip() in arguments)]
    try:
        for jar_set in wanted:
            jar_set.fetch()
    except CdcflowError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(f"{folder()}\n")
    return 0


def _event_line(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    return f"{event.pop('event')}: " + ", ".join(str(value) for value in event.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
