"""Delta's jars: fetched once into a cache folder, then used without a network.

    python -m cdcflow.spark.jars        fetch what is not there yet, print the folder

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
from collections.abc import Sequence
from pathlib import Path

from cdcflow.errors import ConfigurationError, SourceUnavailable

DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"
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
    "org.roaringbitmap:*",
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


def jars() -> list[str]:
    """The paths of the jars.

    Raises:
        ConfigurationError: they were not fetched yet.
    """
    found = sorted(str(p) for p in folder().glob("*.jar"))
    if not all(any(Path(f).name.startswith(needed) for f in found) for needed in _NEEDED):
        raise ConfigurationError(
            f"Spark needs Delta's jars, and {folder()} does not have them",
            remedy="run `python -m cdcflow.spark.jars` once (or `make setup`)",
        )
    return found


def fetch() -> list[str]:
    """Fetch the jars unless they are there, and return their paths. Whole or not at all: the folder appears last.

    Raises:
        SourceUnavailable: the resolver could not get them; it has printed why.
    """
    try:
        return jars()
    except ConfigurationError:
        pass
    _fetch([DELTA], _IN_PYSPARK, folder())
    return jars()


def fetched(packages: Sequence[str], target: Path) -> Path:
    """A folder with these packages and all that they need, fetched unless it is there.

    Raises:
        SourceUnavailable: the resolver could not get them; it has printed why.
    """
    if not target.exists():
        _fetch(packages, (), target)
    return target


def _fetch(packages: Sequence[str], left_out: Sequence[str], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cdcflow-jars-", dir=target.parent) as room:
        _resolve(packages, left_out, Path(room))
        whole = Path(room) / "whole"
        whole.mkdir()
        for jar in (Path(room) / "ivy" / "jars").glob("*.jar"):
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
    except Exception as error:
        raise SourceUnavailable(
            f"could not fetch {packages[0]} with Spark's resolver (its own words are above)",
            remedy="check the network, or put the jars into the folder that CDCFLOW_JARS names",
        ) from error


def main() -> int:
    fetch()
    sys.stdout.write(f"{folder()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
