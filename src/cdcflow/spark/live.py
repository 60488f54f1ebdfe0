"""Every table as of the latest sealed cut, as Spark plans: the tables' versions with the log's tail folded over them.

A plan contains the files of the table's version and of the log, and names no view; the views from which it was built
are dropped before it is returned. Rows go from executors directly to the caller's destination.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.log.files.layout import Layout
from cdcflow.log.tier import Tier
from cdcflow.spark.cuts import CutsTable, with_reachable_store
from cdcflow.spark.engine import readable_files
from cdcflow.spark.formats import table_format
from cdcflow.spark.runtime.connect import refuse_connect
from cdcflow.spark.runtime.failures import of_spark
from cdcflow.spark.runtime.masters import runs_here
from cdcflow.spark.runtime.verbatim import as_written
from cdcflow.spark.runtime.views import name_view
from cdcflow.spark.sql import SparkSql, StatementTable
from cdcflow.tables.formats import format_for, rules_of
from cdcflow.tables.job import live
from cdcflow.tables.job.live import Live
from cdcflow.tables.job.past_tables import VersionGone
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import Failure, TableSnapshot
from cdcflow.tables.segments import InputFile, local_copies, visible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COPIED_BYTES_MAX = 16 << 20
"""At most this much of a log in a store is copied to the local disk, in parallel, if Spark runs in this process.
Otherwise S3A would open each of the tail's many small files twice, one after the other."""


def read_live(
    spark: SparkSession,
    log: Layout | Tier | Path | str,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    incomplete: bool = False,
    policies: Policies = DEFAULTS,
) -> Live[DataFrame]:
    """Return all tables, or some, as of the latest sealed cut of the log, keyed by name; nothing is merged or written.

    `log`: as for `merge_stream`: its directory, its layout, or, in Kafka, its tier. For a tier only the history is
    read; newer records of the topic are shown once a merge has sealed them. Each table is a lazy plan over the files of
    the log that exist at the time of the call, so call again for newer rows, or when Spark reports that a file does not
    exist.

    Everything else, including errors, is as in `cdcflow.tables.job.live.read`. ConfigurationError is also raised if the
    session is Spark Connect's.
    """
    refuse_connect(spark)
    place = with_reachable_store(spark, warehouse)
    reader = SparkReader(spark, place, format_for(place, None))
    layout = Layout.of(log) if isinstance(log, Layout | Path | str) else log.layout
    return live.read(reader, layout, place, tables, incomplete=incomplete, policies=policies)


class SparkReader:
    """Implements `cdcflow.tables.job.live.Reader`, in the caller's own session."""

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

    def readable_files(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        # A file under another name must exist as long as the plan does, and that is unknown.
        hidden = any(Path(file.path).name[0] in "_." for file in files)
        is_here = runs_here(self._spark.sparkContext.master)
        if layout.store is not None and is_here and sum(f.file.bytes for f in files) <= COPIED_BYTES_MAX:
            return [visible(file, lasting_room()) for file in local_copies(layout, files)]
        return readable_files(self._spark, layout, files, lasting_room() if hidden else room)

    def declines(self, files: Sequence[InputFile], mode: ModeRules = CURRENT) -> str | None:
        return None

    def is_gone(self, error: BaseException) -> bool:
        return any(word in str(error) for word in ("PATH_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFoundException"))

    def failure(self, error: Exception) -> Failure | None:
        return of_spark(error)


class SparkPastTable:
    """Implements `cdcflow.tables.job.past_tables.PastTable`."""

    def __init__(self, spark: SparkSession, table: StatementTable) -> None:
        self._spark = spark
        self._table = table
        self._version = 0
        self.session = SparkSql(spark)

    def as_of(self, version: int) -> TableSnapshot:
        newest = self._table.snapshot()
        if newest is None:
            raise VersionGone("its folder is gone")
        if newest.version < version:
            raise VersionGone("another table is in its folder, created since then")
        if newest.version > version and (why := self._table.why_lost(version)) is not None:
            raise VersionGone(why)
        found = self._table.snapshot_at(version)
        if found is None:
            raise VersionGone("its content at that version is no longer known")
        self._version = version
        return found

    def base(self) -> str:
        return name_view(self._table.rows_at(self._version), "base")

    def result(self, query: str, target: Target, mode: ModeRules = CURRENT) -> DataFrame:
        return self._spark.sql(as_written(self._spark, query))

    def close(self) -> None:
        """Do nothing: its session is the caller's."""


@functools.cache
def lasting_room() -> Path:
    """Return a folder that exists until this process ends."""
    made = tempfile.TemporaryDirectory(prefix="cdcflow-live-")
    atexit.register(made.cleanup)
    return Path(made.name)
