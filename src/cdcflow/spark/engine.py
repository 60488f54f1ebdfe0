"""Spark as an engine for merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.spark.cuts import CutsTable
from cdcflow.spark.formats import table_format
from cdcflow.spark.runtime.connect import refuse_connect
from cdcflow.spark.runtime.failures import of_spark
from cdcflow.spark.runtime.masters import runs_here
from cdcflow.spark.runtime.metastore import check_metastore
from cdcflow.spark.runtime.sessions import Sessions
from cdcflow.spark.runtime.stores import check_commits, lease, reach, read_object, upkeep_lease, write_object
from cdcflow.spark.sql import StatementTable
from cdcflow.tables.formats import rules_of
from cdcflow.tables.formats.delta import ROW_INDEX
from cdcflow.tables.formats.iceberg import CATALOG
from cdcflow.tables.job import text_files
from cdcflow.tables.job.lease import folder_lease, upkeep_folder_lease
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.refusals import CannotFollow, kept_name
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import Deriver, Failure, TableSnapshot
from cdcflow.tables.segments import InputFile, in_place, present, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdcflow.tables.local.engine import LocalEngine


KEPT_NAMES: Mapping[str, frozenset[str]] = {
    "delta": frozenset({"_metadata", ROW_INDEX}),
    "iceberg": frozenset(
        ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
    ),
}
"""Names under which Spark reads the location of a row from a table of the format: it cannot read a column with such a
name at the same time."""


class SparkEngine:
    """Implements `cdcflow.tables.port.Engine`. It merges every table, in every format."""

    name = "spark"
    reads_in_place = True
    compacts_concurrently = True

    def __init__(
        self, spark: SparkSession, warehouse: Warehouse | Path | str, format_: str, memory_max: int | None = None
    ) -> None:
        """Check that the session can merge into the warehouse. `memory_max`: how much memory this process may have for
        derived tables.

        Raises:
            ConfigurationError: there is no such format; or the session is Spark Connect's, cannot reach the warehouse,
                cannot merge there safely, or uses another metastore than the warehouse.
            SinkUnavailable: the warehouse's store or metastore does not answer.
        """
        refuse_connect(spark)
        self._spark = spark
        self._warehouse = Warehouse.of(warehouse)
        self._format = table_format(format_)
        self._sessions = Sessions(spark, self._warehouse)
        self._memory_max = memory_max
        self._deriving: LocalEngine | None = None
        self.rules: Format = rules_of(format_)
        if self._warehouse.store is not None:
            reach(spark, self._warehouse.store)
        if not self._warehouse.is_local and format_ == "delta":
            check_commits(spark, self._warehouse)
        if self._warehouse.metastore is not None:
            check_metastore(spark, self._warehouse.metastore)

    def lease(self) -> AbstractContextManager[None]:
        if self._warehouse.is_local:
            return folder_lease(self._warehouse.folder)
        return lease(self._spark, self._warehouse)

    def upkeep_lease(self) -> AbstractContextManager[None]:
        if self._warehouse.is_local:
            return upkeep_folder_lease(self._warehouse.folder)
        return upkeep_lease(self._spark, self._warehouse)

    def readable_files(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        return readable_files(self._spark, layout, files, room)

    def deriver(self) -> Deriver:
        """Return the deriver of the local engine. It works in this process, on the same tables, so that a query has one
        meaning, whichever engine merges its inputs."""
        if self._deriving is None:
            self._deriving = self._local_engine()
        return self._deriving.deriver()

    def _local_engine(self) -> LocalEngine:
        from cdcflow.tables.local.reachable import is_installed, only_for_spark

        place, format_ = self._warehouse, self.rules.name
        if why := only_for_spark(place):
            raise underivable(why, "take merge.derive out of the settings, or merge into a warehouse that both reach")
        if not place.is_local and place.store is None and (place.bucket is None or self._describes_buckets()):
            why = "only Spark's settings describe how its bucket is reached"
            raise underivable(why, "set merge.objects, which both use")
        if not is_installed(format_, place):
            extras = "local" if place.is_local else "local,objects"
            raise underivable("its packages are not installed", f"run `pip install 'cdcflow[{extras}]'`")
        from cdcflow.tables.local.engine import LocalEngine

        return LocalEngine(place, format_, memory_max=self._memory_max)

    def _describes_buckets(self) -> bool:
        return any("fs.s3a." in name for name, _ in self._spark.sparkContext.getConf().getAll())

    def defer_checkpoints(self) -> None:
        """Return `None`: Spark writes checkpoints itself."""

    def cuts(self) -> CutsTable:
        return CutsTable(self._spark, self.rules.name, self._warehouse, named=True)

    def table(self, path: Sequence[str]) -> StatementTable:
        session = self._sessions.take()
        try:
            table = self._format.table(session, self._warehouse, path, own=True, named=True)
        except BaseException:
            self._sessions.give(session)
            raise
        table.on_close = partial(self._sessions.give, session)
        return table

    def declines(
        self, before: TableSnapshot | None, files: Sequence[InputFile], mode: ModeRules = CURRENT
    ) -> str | None:
        """Return `None`: Spark merges every table.

        Raises:
            CannotFollow: a column has a name that Spark reserves in tables of this format.
        """
        kept = KEPT_NAMES[self.rules.name]
        for column in files[-1].shape.columns if files else ():
            if column.name.lower() in kept:
                raise kept_name(files[-1].shape.id, column.name, self.rules.name)
        return None

    def read_text(self, path: Sequence[str]) -> str | None:
        if self._warehouse.is_local:
            return text_files.read_text(self._warehouse.folder, path)
        return read_object(self._spark, self._warehouse.location_of(path))

    def write_text(self, path: Sequence[str], text: str) -> None:
        if self._warehouse.is_local:
            text_files.write_text(self._warehouse.folder, path, text)
        else:
            write_object(self._spark, self._warehouse.location_of(path), text)

    def is_conflict(self, error: BaseException) -> bool:
        if self._format.is_conflict(error):
            return True
        return self._deriving is not None and self._deriving.is_conflict(error)

    def failure(self, error: Exception) -> Failure | None:
        found = of_spark(error)
        if found is None or found.place or "SQLite" not in found.what:
            return found
        return replace(found, place=self._warehouse.location_of((CATALOG,)))  # the catalog of a warehouse in a folder


def underivable(why: str, remedy: str) -> CannotFollow:
    """Return the error for a derived table in a warehouse that the local engine does not reach."""
    return CannotFollow(
        f"the local engine computes derived tables, also where Spark merges, and it cannot here: {why}", remedy=remedy
    )


def readable_files(spark: SparkSession, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
    """Return the files where they are, at paths where executors can read them. Files with a name that Spark treats as
    hidden get another name."""
    if layout.store is None:
        return [visible(file, room) for file in files]
    reach(spark, layout.store.address)
    hidden = [f for f in files if Path(f.path).name[0] in "_."]
    if hidden and not runs_here(spark.sparkContext.master):
        raise ConfigurationError(
            f"merging {hidden[0].shape.id}: the name of its file {Path(hidden[0].path).name} begins as hidden files"
            " do, which Spark does not read (an older cdcflow chose the name)",
            remedy="merge once with spark.master local[*] in merge.spark; files have other names by now",
            runbook="merge-session",
        )
    fetched = {f.path: visible(g, room) for f, g in zip(hidden, present(layout, hidden, room), strict=True)}
    return [fetched.get(f.path) or in_place(layout, f) for f in files]
