"""Delta Lake through Spark: tables by path. A commit carries cdcflow's position as a transaction id, and its metadata
as `userMetadata`. Reads and writes through Delta's private Java classes are in `spark.private_delta`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from cdcflow.errors import SinkUnavailable
from cdcflow.model.file_layout import SortColumn
from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.spark.matched_rows import NewerRows
from cdcflow.spark.private_delta import COMPACTED, DeltaTransaction, DeltaVersions, may_change_rows, may_write
from cdcflow.spark.runtime.failures import first_line
from cdcflow.spark.runtime.metastore import Entry
from cdcflow.spark.runtime.verbatim import as_written, in_setting
from cdcflow.spark.sql import StatementTable
from cdcflow.tables.durable import sync_table
from cdcflow.tables.formats.delta import (
    HARMLESS,
    MAPPING,
    RULES,
    TIME_TRAVEL_ENFORCED,
    is_mapped,
    needs_mapping,
    ours,
    removals_known_since,
    retention,
    user_metadata,
)
from cdcflow.tables.formats.delta_commits import identity, set_aside, torn_since
from cdcflow.tables.merge.acts import Act
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.merge.statement import Folding
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import ROW_GROUP_BYTES, Compacted, HandOver, Kept, TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_READ_VERSION = "cdcflow.delta.read-version"
"""The session setting with the version from which a commit was computed: cdcflow's log stores refuse the commit if
the table has a different one (java/)."""
MADE_TRIES = 5

LET_GO_BEFORE_S = 3600.0
"""How much earlier than a commit the removals of files in it may be dated: its statement took long, or clocks differ.
"""

VACUUMED: Mapping[str, str] = {
    "spark.databricks.delta.vacuum.logging.enabled": "false",  # otherwise each run adds a version
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",  # otherwise 10,000 tasks for a folder
}

_CONFLICT = re.compile(
    r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|io\.delta\.exceptions\.|CDCFLOW_TABLE_CHANGED"
)


_log = structlog.get_logger()


class _Moved(Exception):
    """The error when another process has changed the table."""


class DeltaFormat:
    """Implements `cdcflow.spark.formats.SparkFormat`."""

    settings: Mapping[str, str] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.databricks.delta.schema.autoMerge.enabled": "false",
        "spark.hadoop.parquet.block.size": str(ROW_GROUP_BYTES),  # Delta has no table property for it
    }

    def table(
        self,
        spark: SparkSession,
        warehouse: Warehouse | Path,
        path: Sequence[str],
        *,
        own: bool = False,
        named: bool = False,
    ) -> DeltaTable:
        place = Warehouse.of(warehouse)
        entry = Entry(spark, place, place.metastore, path) if named and place.metastore is not None else None
        return DeltaTable(
            spark, place.location_of(path), entry, Path(place.location_of(path)) if place.is_local else None
        )

    def is_conflict(self, error: BaseException) -> bool:
        return isinstance(error, _Moved) or _CONFLICT.search(str(error)) is not None


class DeltaTable(StatementTable):
    """A table by path, and its `entry` in a metastore, if it has one."""

    def __init__(self, spark: SparkSession, path: str, entry: Entry | None = None, folder: Path | None = None) -> None:
        """`folder`: the table's folder, if that is on this machine."""
        super().__init__(spark, RULES, f"delta.{name_sql(path)}", None)
        self._folder = folder
        self._path = path
        self._versions = DeltaVersions(spark, path)
        self._entry = entry
        self._looked_at: int | None = None
        self._committed: Mapping[str, Any] | None = None
        self._seen: TableSnapshot | None = None

    def snapshot(self) -> TableSnapshot | None:
        found = self._versions.newest()
        self._looked_at, self._committed = int(found.version()), None
        self._keep_entry(is_there=found.version() >= 0)
        self._seen = None if found.version() < 0 else self._versions.describe(found)
        return self._seen

    def _keep_entry(self, *, is_there: bool) -> None:
        if self._entry is not None:
            self._entry.keep(is_there=is_there)

    def commit(self, statement: str, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        # Delta itself skips a transaction that the table has.
        self._look_behind_own_commit()
        with self._committing(metadata, app, version):
            self._spark.sql(as_written(self._spark, statement))
        self._committed = metadata

    def _fold(self, folding: Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        is_added = folding.empty or folding.adds_only
        if not (is_added or folding.is_by_key):
            super()._fold(folding, metadata, app, version)
            return
        change = _append_of(folding.rows()) if is_added else partial(DeltaTransaction.fold, folding=folding)
        try:
            if self._change_rows(change, metadata, app, version):
                return
        except NewerRows:
            _log.info("rows of the table are newer than changes of the range", table=self._path)
        super()._fold(folding, metadata, app, version)

    def _change_rows(
        self,
        change: Callable[[DeltaTransaction], None],
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        can: Callable[[SparkSession, Any], bool] = may_change_rows,
    ) -> bool:
        """Change rows in a transaction without a statement. Return False, without a change, if that is impossible with
        this table or this version of Delta."""
        self._look_behind_own_commit()
        found = self._versions.newest()
        if self._looked_at not in (None, int(found.version())):
            raise _Moved(f"{self.sql} was changed by another process in the meantime")
        if not can(self._spark, found):
            return False
        if self._versions.transactions(found).get(app, version - 1) >= version:
            return True
        with self._committing(metadata, app, version):
            change(DeltaTransaction(self._spark, self._versions.log, found))
        self._committed = metadata
        return True

    def follow(self, act: Act, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        if needs_mapping(act) and not is_mapped(self._versions.settings(self._versions.newest())):
            # Its columns get their positions as ids, as in the description.
            self.commit(f"ALTER TABLE {self.sql} SET TBLPROPERTIES ('{MAPPING}' = 'name')", metadata)
        super().follow(act, metadata, app, version)

    def make(
        self,
        target: Target,
        source: str,
        begun: int,
        metadata: Mapping[str, Any],
        mode: ModeRules = CURRENT,
        *,
        wide: bool = False,
    ) -> None:
        """Create the table, also while another driver creates it, or after that one died in the attempt. Before the
        first commit only empty folders exist, which Delta would take for a table without columns, or for foreign data.
        """
        for _ in range(MADE_TRIES):
            is_free = self._versions.remove_empty_folders(self._path)
            try:
                super().make(target, source, begun, metadata, mode, wide=wide)
            except Exception as error:
                if "NON_EMPTY_LOCATION" not in str(error):
                    raise
            if self._versions.newest_number() >= 0:
                self._keep_entry(is_there=True)
                return
            if not is_free:
                raise CannotFollow(
                    f"creating the table at {self._path}: the folder has files that are not a Delta table",
                    remedy="move that folder away, and merge again",
                )
        raise SinkUnavailable(
            f"creating the table at {self._path}: another driver tries the same, several times in a row",
            remedy="nothing is lost; merge again",
            runbook="busy",
        )

    def add_newest(
        self, row: str, column: str, least: int, metadata: Mapping[str, Any], app: str, version: int
    ) -> None:
        # Of two commits of one transaction Delta accepts one.
        if not self._change_rows(_append_of(row), metadata, app, version):
            self.commit(f"INSERT INTO {self.sql} {row}", metadata, app, version)

    def newest_commit(self) -> Mapping[str, Any] | None:
        for action in self._versions.actions(self._versions.newest()):
            if "commitInfo" in action:
                return ours(action["commitInfo"].get("userMetadata"))
        return None

    def commit_of(self, version: int) -> str:
        lines = self._versions.commit_lines(version)
        return identity(lines) if lines else ""

    def drop_torn(self, published: int | None = None) -> None:
        """Set aside commits that a power cut left torn. A store has no such commits: it writes an object whole or not
        at all."""
        if self._folder is None or not (torn := torn_since(self._folder / "_delta_log", published)):
            return
        set_aside(self._folder / "_delta_log", torn)
        self._versions.read_again()

    def sync(self, published: int | None) -> None:
        if self._folder is None:
            return
        commit = self._folder / "_delta_log" / f"{-1 if published is None else published:020d}.json"
        sync_table(self._folder, commit.stat().st_mtime if commit.exists() else 0.0)

    def edits_since(self, version: int) -> list[str]:
        rows = self._spark.sql(f"DESCRIBE HISTORY {self.sql}").where(f"version > {version}").collect()
        return [
            f"{row.operation}@{row.version}"
            for row in rows
            if row.operation not in HARMLESS and ours(row.userMetadata) is None
        ]

    def compact(self, order: Sequence[SortColumn] = ()) -> Compacted:
        said = {"upkeep": "compact"}
        if order:
            done: list[Compacted] = []
            try:
                if self._change_rows(lambda by: done.append(by.cluster(order)), said, "", 0, may_write):
                    return done[0]
            except Exception as error:
                if _CONFLICT.search(str(error)):
                    raise _Moved(first_line(error)) from error
                raise
            _log.info(
                "files are made without an order: merge.fast_delta is off, or this Delta, or a feature of the table,"
                " was not tested",
                table=self._path,
            )
        self._look_behind_own_commit()
        with self._set(COMPACTED), self._committing(said, "", 0):
            (row,) = self._spark.sql(f"OPTIMIZE {self.sql}").collect()
        self._committed = said
        files = row.metrics.numFilesRemoved
        return Compacted(int(files), int(row.metrics.numFilesAdded))

    def let_go(self, kept: Kept) -> str:
        """Remove, by VACUUM, files that no kept version has. VACUUM decides by the time at which a file was removed
        from the table."""
        found = self.snapshot()
        if found is None or kept.since is None:
            return ""
        now = time.time()
        if wanted := retention(now - kept.since, found.properties, now):
            listed = ", ".join(f"{text_sql(name)} = {text_sql(value)}" for name, value in wanted.items())
            self.commit(f"ALTER TABLE {self.sql} SET TBLPROPERTIES ({listed})", {"upkeep": "retention"})
        known_since = removals_known_since({**found.properties, **wanted}, now)
        let_go = self._let_go_at(found, kept.of(found.id))
        if let_go is not None and let_go < known_since:
            raise HandOver(
                f"kept cuts show files that it removed {(now - let_go) / 86_400:.1f} days ago, and its log keeps"
                f" removals for {(now - known_since) / 86_400:.1f} days: VACUUM would delete these files"
            )
        before = self._versions.count_files()
        with self._set(VACUUMED):
            # With the table's own retention: Delta refuses a shorter one.
            self._spark.sql(f"VACUUM {self.sql}")
        gone = before - self._versions.count_files()
        return f"{gone} files removed" if gone > 0 else ""

    def _let_go_at(self, found: TableSnapshot, needed: frozenset[int]) -> float | None:
        """Return when, in seconds since 1970, the table first removed files of a needed version; `None` if it has not
        yet.

        Raises:
            HandOver: its log no longer contains that.
        """
        oldest = min(needed, default=found.version)
        if oldest >= found.version:
            return None
        rows = self._spark.sql(f"DESCRIBE HISTORY {self.sql}").where(f"version > {oldest}")
        row = rows.selectExpr("min(version) version", "unix_millis(min(timestamp)) at").collect()[0]
        if row.version != oldest + 1:
            raise HandOver(f"its log no longer contains when version {oldest} was replaced")
        return int(row.at) / 1000 - LET_GO_BEFORE_S

    @contextmanager
    def _set(self, chosen: Mapping[str, str]) -> Iterator[None]:
        """Set session settings for a statement."""
        before = {name: self._spark.conf.get(name, None) for name in chosen}
        for name, value in chosen.items():
            self._spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    self._spark.conf.unset(name)
                else:
                    self._spark.conf.set(name, old)

    def why_lost(self, version: int) -> str | None:
        if self._versions.find(version) is None:
            return "Delta has removed that version from the table's log"
        return "files of that version were removed, as VACUUM does" if self._versions.misses_files(version) else None

    def transactions_of(self, version: int) -> Mapping[str, int]:
        found = self._versions.find(version)
        return {} if found is None else self._versions.transactions(found)

    def snapshot_at(self, version: int) -> TableSnapshot | None:
        if self._seen is not None and self._seen.version == version:
            return self._seen
        found = self._versions.find(version)
        return None if found is None or found.version() != version else self._versions.describe(found)

    def rows_at(self, version: int) -> DataFrame:
        if (rows := self._versions.plan_of_few_files(version)) is not None:
            return rows
        # Delta refuses a version that is older than its retention, even if it is the latest. `why_lost` has already
        # checked that its files exist.
        with self._set({TIME_TRAVEL_ENFORCED: "false"}):
            return self._spark.read.format("delta").option("versionAsOf", version).load(self._path)

    def _look_behind_own_commit(self) -> None:
        """Record the latest commit as the one to build on, if this object made it. Another writer's commit is not
        recorded, so the next change fails."""
        if self._committed is None:
            return
        newest = self._versions.newest_number()
        if newest - 1 == self._looked_at and self.newest_commit() == self._committed:
            self._looked_at = newest
        self._committed = None

    @contextmanager
    def _committing(self, metadata: Mapping[str, Any], app: str, version: int) -> Iterator[None]:
        """Set the commit's settings. They belong to the whole session, so two threads must not commit through one
        session at a time. They are reset at the end, whatever happens: otherwise Delta would silently drop the next
        write."""
        conf = self._spark.conf
        conf.set(_METADATA, in_setting(self._spark, user_metadata(metadata)))
        if self._looked_at is not None:
            conf.set(_READ_VERSION, str(self._looked_at))
        if app:
            conf.set(_APP, in_setting(self._spark, app))
            conf.set(_VERSION, str(version))
        try:
            yield
        finally:
            for setting in (_METADATA, _READ_VERSION, _APP, _VERSION):
                conf.unset(setting)


def _append_of(rows: str) -> Callable[[DeltaTransaction], None]:
    return partial(DeltaTransaction.append, rows=rows)
