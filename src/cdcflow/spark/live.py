"""Every table as of the newest sealed cut, as Spark's plans: the tables' versions with the log's tail folded over them.

A plan has files of the table's version and of the log in it, and names no view; what it was made with is gone when it
is handed out. Rows go from executors to wherever the caller has them go.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.changelog.layout import Layout
from cdcflow.merge.format import Format
from cdcflow.merge.modes import CURRENT, ModeRules
from cdcflow.merge.policy import DEFAULTS, Policies
from cdcflow.merge.target import Target
from cdcflow.ports import Tier
from cdcflow.spark.connect import refuse_connect
from cdcflow.spark.cuts import CutsTable, reached
from cdcflow.spark.engine import located
from cdcflow.spark.failures import of_spark
from cdcflow.spark.formats import table_format
from cdcflow.spark.masters import runs_here
from cdcflow.spark.sql import SparkSql, StatementTable, named
from cdcflow.spark.verbatim import as_written
from cdcflow.warehouse import live
from cdcflow.warehouse.formats import format_for, rules_of
from cdcflow.warehouse.live import Live, VersionGone
from cdcflow.warehouse.paths import Warehouse
from cdcflow.warehouse.port import Failure, Snapshot
from cdcflow.warehouse.segments import InputFile, copied, visible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COPIED_BYTES_MAX = 16 << 20
"""So much of a log in a store is copied here, in parallel, where Spark runs in this process: S3A opens each of a tail's
many small files twice, one after the other."""


def read_live(
    spark: SparkSession,
    log: Layout | Tier | Path | str,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    incomplete: bool = False,
    policies: Policies = DEFAULTS,
) -> Live[DataFrame]:
    """All tables, or some, as of the newest sealed cut of the log, by name; nothing is merged or written.

    `log` as for `merge_stream`: its directory, its layout, or, in Kafka, its tier, of which the history counts: what
    the topic has behind it is shown when a merge has sealed it. Each table is a lazy plan; it reads the files of the
    log that were there at the call, so call again for newer rows, or when Spark says that a file does not exist.

    Everything else, and what is raised, as `cdcflow.warehouse.live.read` says. ConfigurationError also where the
    session is Spark Connect's.
    """
    refuse_connect(spark)
    place = reached(spark, warehouse)
    reader = SparkReader(spark, place, format_for(place, None))
    layout = Layout.of(log) if isinstance(log, Layout | Path | str) else log.layout
    return live.read(reader, layout, place, tables, incomplete=incomplete, policies=policies)


class SparkReader:
    """Implements `cdcflow.warehouse.live.Reader`, in the caller's own session."""

    name = "spark"
    remedy = "read it as of a cut, with read_cut"
    shows_doubled = False

    def __init__(self, spark: SparkSession, warehouse: Warehouse, format_: str) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._format = table_format(format_)
        self.rules: Format = rules_of(format_)

    def cuts(self) -> CutsTable:
        return CutsTable(self._spark, self.rules.name, self._warehouse)

    def table(self, path: Sequence[str]) -> SparkPastTable:
        return SparkPastTable(self._spark, self._format.table(self._spark, self._warehouse, path))

    def located(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        # A file under another name must be there for as long as the plan, and nobody says how long that is.
        hidden = any(Path(file.path).name[0] in "_." for file in files)
        is_here = runs_here(self._spark.sparkContext.master)
        if layout.store is not None and is_here and sum(f.file.bytes for f in files) <= COPIED_BYTES_MAX:
            return [visible(file, lasting_room()) for file in copied(layout, files)]
        return located(self._spark, layout, files, lasting_room() if hidden else room)

    def declines(self, files: Sequence[InputFile], mode: ModeRules = CURRENT) -> str | None:
        return None

    def is_gone(self, error: BaseException) -> bool:
        return any(word in str(error) for word in ("PATH_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFoundException"))

    def failure(self, error: Exception) -> Failure | None:
        return of_spark(error)


class SparkPastTable:
    """Implements `cdcflow.warehouse.live.PastTable`."""

    def __init__(self, spark: SparkSession, table: StatementTable) -> None:
        self._spark = spark
        self._table = table
        self._version = 0
        self.session = SparkSql(spark)

    def as_of(self, version: int) -> Snapshot:
        newest = self._table.snapshot()
        if newest is None:
            raise VersionGone("its folder is gone")
        if newest.version < version:
            raise VersionGone("another table is in its folder, made since then")
        if newest.version > version and (why := self._table.lost(version)) is not None:
            raise VersionGone(why)
        found = self._table.snapshot_at(version)
        if found is None:
            raise VersionGone("what it was like then is not known any more")
        self._version = version
        return found

    def base(self) -> str:
        return named(self._table.at(self._version), "base")

    def result(self, query: str, target: Target, mode: ModeRules = CURRENT) -> DataFrame:
        return self._spark.sql(as_written(self._spark, query))

    def close(self) -> None:
        """Its session is the caller's."""


@functools.cache
def lasting_room() -> Path:
    """A folder that is there until this process ends."""
    made = tempfile.TemporaryDirectory(prefix="cdcflow-live-")
    atexit.register(made.cleanup)
    return Path(made.name)


__all__ = ["SparkReader", "lasting_room", "read_live"]
