"""Apache Iceberg through Spark, format version 2, merge-on-read. A commit carries cdcflow's position and metadata in
the snapshot's summary, as in `cdcflow.tables.formats.iceberg`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.model.file_layout import FileLayout, SortColumn
from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.model.table import OFFSET
from cdcflow.spark.formats import iceberg_branch
from cdcflow.spark.formats.iceberg_branch import BranchMoved, open_branch
from cdcflow.spark.formats.iceberg_jvm import IcebergJvm, iceberg_jvm
from cdcflow.spark.matched_rows import NewerRows
from cdcflow.spark.runtime.failures import first_line
from cdcflow.spark.runtime.verbatim import as_written
from cdcflow.spark.runtime.views import Views
from cdcflow.spark.sql import StatementTable
from cdcflow.tables.durable import sync_table, torn_error
from cdcflow.tables.formats import iceberg
from cdcflow.tables.formats.iceberg import CATALOG, RULES, TRANSACTIONS, KeptSnapshot
from cdcflow.tables.formats.iceberg_catalog import has_file, step_back
from cdcflow.tables.merge.file_layouts import LAYOUT_PROPERTY
from cdcflow.tables.merge.statement import Folding
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import COMMITTED, Compacted, Kept, TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = structlog.get_logger()

_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_SUMMARY = "spark.sql.iceberg.snapshot-property."
_NOT_THERE = ("NoSuchTable", "NoSuchNamespace", "TABLE_OR_VIEW_NOT_FOUND")
_CONFLICT = re.compile(
    r"org\.apache\.iceberg\.exceptions\.(CommitFailed|CommitStateUnknown|Validation|AlreadyExists)"
    r"|TABLE_OR_VIEW_ALREADY_EXISTS|database is locked|SQLITE_BUSY"
)
_UNREADABLE = re.compile(r"EOFException|FileNotFound|NotFoundException|RuntimeIOException|[Aa]vro")
"""Java's errors for a file that is missing or ends early."""
_RESERVED = "names reserved for Iceberg metadata columns"
"""A text in the error for a table with columns of reserved names. The error has the class of a conflict, but trying
again does not help."""
_BUSY_MS = 60_000
_NEVER = object()


COMPACTED: Mapping[str, str] = {
    "target-file-size-bytes": str(256 << 20),
    "min-file-size-bytes": str(32 << 20),
    "max-file-size-bytes": str(1 << 40),
    "min-input-files": "8",
    "delete-ratio-threshold": "0.33",
    "remove-dangling-deletes": "true",
}
"""Iceberg's options for a compaction: small files are merged if there are several, and files with many deleted rows
are rewritten."""


class _Moved(Exception):
    """The error when another process has changed the table."""


class IcebergFormat:
    """Implements `cdcflow.spark.formats.SparkFormat`."""

    settings: Mapping[str, str] = {
        "spark.sql.extensions": _EXTENSION,
    }

    def table(
        self,
        spark: SparkSession,
        warehouse: Warehouse | Path,
        path: Sequence[str],
        *,
        own: bool = False,
        named: bool = False,
    ) -> IcebergTable:
        if _EXTENSION not in (spark.conf.get("spark.sql.extensions", None) or ""):
            raise ConfigurationError(
                "this Spark session was created without Iceberg",
                remedy="make it with cdcflow.spark.session(table_formats=['iceberg']) in a process without a "
                f"session, or give it Iceberg's jars and spark.sql.extensions={_EXTENSION}",
                runbook="package-missing",
            )
        place = Warehouse.of(warehouse)
        catalog = iceberg.catalog_name(place)
        _configure(spark, catalog, place, own=own)
        folder = known = None
        if place.catalog is None:
            folder, known = (place.folder.resolve().joinpath(*parts) for parts in (path, (CATALOG,)))
        type_ = iceberg.catalog_type(place.catalog or {})
        name = (catalog, *iceberg.identifier(path))
        return IcebergTable(spark, name, place.location_of(path), folder, known, type_)

    def is_conflict(self, error: BaseException) -> bool:
        if isinstance(error, (_Moved, BranchMoved)):
            return True
        return _CONFLICT.search(str(error)) is not None and _RESERVED not in str(error)


def _configure(spark: SparkSession, catalog: str, warehouse: Warehouse, *, own: bool) -> None:
    """Register the warehouse's catalog in this session. With `own`, for one of cdcflow's sessions, a statement runs on
    the version of the table that was loaded last: a concurrent commit is then a conflict, and the statement does not
    silently start from it."""
    setting = f"spark.sql.catalog.{catalog}"
    if spark.conf.get(setting, None) is not None:
        return
    embedded = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{warehouse.location_of((CATALOG,))}?busy_timeout={_BUSY_MS}",
        "jdbc.schema-version": "V1",
        "clients": "1",
    }
    for name, value in {
        "warehouse": warehouse.location_of(()),
        "cache-enabled": str(own).lower(),  # other processes commit, too
        "cache.expiration-interval-ms": "-1",
        **(embedded if warehouse.catalog is None else warehouse.catalog),
    }.items():
        spark.conf.set(f"{setting}.{name}", value)
    spark.conf.set(setting, "org.apache.iceberg.spark.SparkCatalog")


class IcebergTable(StatementTable):
    """A table of the warehouse's catalog."""

    def __init__(
        self,
        spark: SparkSession,
        name: tuple[str, str, str],
        location: str,
        folder: Path | None,
        catalog_file: Path | None = None,
        catalog_type: str = "",
    ) -> None:
        """`folder`: the table's folder, if that is on this machine, where an operator may have moved it away without
        the catalog. `catalog_file`: the database of a catalog in a folder. `catalog_type`: see `iceberg.catalog_type`.
        """
        super().__init__(spark, RULES, ".".join(map(name_sql, name)), location)
        self._folder = folder
        self._catalog_file = catalog_file
        self._catalog_type = catalog_type
        self._looked_at: int | object | None = _NEVER
        self._name = name

    def snapshot(self) -> TableSnapshot | None:
        table = self._table()
        self._looked_at = _id(table)
        if table is None:
            return None
        return _describe_table(self._parts, table, str(table.uuid().toString()))

    def commit(self, statement: str, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        table = self._table()
        if table is None:
            self._make_room()
        self._check_same(table)
        known = _snapshot_properties(table, app, version)
        if known is None:
            return
        said = self._say(statement, metadata, known)
        after = self._table()
        if after is None:  # Spark mistakes some errors of a catalog for a table that another process has just created
            raise SinkUnavailable(
                f"creating {self.sql}: the catalog reported no error, but has no such table",
                remedy="read the catalog's log, then merge again",
                runbook="catalog-unreachable",
            )
        newest = after.currentSnapshot()
        if newest is not None and newest.parentId() == self._looked_at and newest.summary().get(COMMITTED) == said:
            self._looked_at = int(newest.snapshotId())

    def _say(self, statement: str, metadata: Mapping[str, Any], transactions: Mapping[str, int]) -> str:
        """Run a statement whose snapshot carries this metadata and these transactions. Return the metadata as the
        snapshot's summary has it."""
        conf = self._spark.conf
        said = json.dumps(metadata, separators=(",", ":"))
        conf.set(_SUMMARY + COMMITTED, said)
        conf.set(_SUMMARY + TRANSACTIONS, json.dumps(transactions, separators=(",", ":")))
        try:
            self._spark.sql(as_written(self._spark, statement))
        finally:
            for setting in (COMMITTED, TRANSACTIONS):
                conf.unset(_SUMMARY + setting)
        return said

    def _check_same(self, table: Any) -> None:
        """Check that the table is still the one from which the commit was computed."""
        if self._looked_at is not _NEVER and self._looked_at != _id(table):
            raise _Moved(f"{self.sql} was changed by another process in the meantime")

    def _fold(self, folding: Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        if folding.empty:
            self.commit(self._insert(folding, "true"), metadata, app, version)
        elif folding.adds_only:
            self.commit(self._insert(folding, f"{OFFSET} >= {folding.first}"), metadata, app, version)
        elif not (folding.is_by_key and self._fold_on_branch(folding, metadata, app, version)):
            super()._fold(folding, metadata, app, version)

    def _fold_on_branch(self, folding: Folding, metadata: Mapping[str, Any], app: str, version: int) -> bool:
        """Merge a range on a branch (see `formats.iceberg_branch`). Return False, without a change, if a MERGE is
        better or required."""
        table = self._table()
        newest = None if table is None else table.currentSnapshot()
        if newest is None or int(newest.summary().get("total-records") or 0) < iceberg_branch.ROWS_MIN:
            return False
        if not iceberg.marks(self._parts.map(table.properties())):
            return False
        self._check_same(table)
        known = _snapshot_properties(table, app, version)
        if known is None:
            return True
        found = iceberg_branch.extent(self._spark, self.sql, folding)
        if found.rows < iceberg_branch.ROWS_MIN:
            return False
        begun = int(newest.snapshotId())
        branch = iceberg.branch(time.time())
        there = f"{self.sql}.{name_sql(f'branch_{branch}')}"
        with Views(self._spark) as views:
            try:
                change = iceberg_branch.changes(self._spark, views, self.sql, there, folding, found.newest)
            except NewerRows:
                _log.info("rows of the table may be newer than changes of the range", table=self.sql)
                return False
            names = ", ".join(name_sql(c.name) for c in self._parts.columns(table.schema()))
            come = f"INSERT INTO {there} SELECT {names} FROM ({change.come})"  # noqa: S608  names are quoted
            with open_branch(table, branch, begun) as changing:
                changing.take(lambda: self._say(change.gone, metadata, known))
                changing.take(lambda: self._say(come, metadata, known))
                self._looked_at = changing.become_main()
        return True

    def _insert(self, folding: Folding, strange: str) -> str:
        """Return an INSERT that fails if a concurrent commit has added rows that match `strange`: a plain INSERT would
        add to them."""
        # By position: this form of INSERT takes no names.
        columns = ", ".join(name_sql(c.name) for c in self._parts.columns(self._table().schema()))
        rows = f"SELECT {columns} FROM ({folding.rows()})"  # noqa: S608  names are quoted
        return f"INSERT INTO {self.sql} {self._since_then()} REPLACE WHERE {strange} {rows}"

    def add_newest(
        self, row: str, column: str, least: int, metadata: Mapping[str, Any], app: str, version: int
    ) -> None:
        where = f"REPLACE WHERE {name_sql(column)} >= {least}"
        self.commit(f"INSERT INTO {self.sql} {self._since_then()} {where} {row}", metadata, app, version)

    def _since_then(self) -> str:
        """Return the options of a write that make it fail if rows that it would replace were added since the table was
        loaded."""
        options = {"isolation-level": "serializable"}
        if self._looked_at is not None:
            options["validate-from-snapshot-id"] = str(self._looked_at)
        return "WITH (" + ", ".join(f"{text_sql(k)} = {text_sql(v)}" for k, v in options.items()) + ")"

    def newest_commit(self) -> Mapping[str, Any] | None:
        table = self._table()
        newest = None if table is None else table.currentSnapshot()
        said = None if newest is None else newest.summary().get(COMMITTED)
        if said is None:
            return None
        found: Mapping[str, Any] = json.loads(said)
        return found

    def commit_of(self, version: int) -> str:
        found = self._snapshot(version) if version else None
        return "" if found is None else str(int(found.snapshotId()))

    def drop_torn(self, published: int | None = None) -> None:
        """Repair a table after a power cut. A catalog makes a commit whole or not at all, but in a folder files that a
        commit names may be cut short if they were not synced yet."""
        if self._catalog_file is not None:
            step_back(self._catalog_file, self._name[0], self._name[1:])
        table = None if self._folder is None else self._table()
        if table is None or (snapshot := _first_torn(table, published)) is None:
            return
        if snapshot.parentId() is None:
            raise torn_error(self.sql, int(snapshot.sequenceNumber()))
        _log.warning("a torn commit is set aside, its range is merged again", table=self.sql)
        table.manageSnapshots().rollbackTo(snapshot.parentId()).commit()

    def sync(self, published: int | None) -> None:
        if self._folder is None:
            return
        found = None if not published else self._snapshot(published)
        sync_table(self._folder, 0.0 if found is None else int(found.timestampMillis()) / 1000)

    def edits_since(self, version: int) -> list[str]:
        table = self._table()
        found = [] if table is None else list(_ancestors(table, table.currentSnapshot()))
        return [
            f"{snapshot.operation()}@{snapshot.sequenceNumber()}"
            for snapshot in found
            if snapshot.sequenceNumber() > version
            and snapshot.operation() != "replace"
            and snapshot.summary().get(COMMITTED) is None
        ]

    def pin(self, version: int, cut: int) -> None:
        found, tag = self._snapshot(version), iceberg.tag(cut)
        if found is None:
            return
        table = self._table()
        there = table.refs().get(tag)
        if there is None:
            table.manageSnapshots().createTag(tag, found.snapshotId()).commit()
        elif there.snapshotId() != found.snapshotId():
            table.manageSnapshots().replaceTag(tag, found.snapshotId()).commit()

    def arrange(self, layout: FileLayout, recorded: str, metadata: Mapping[str, Any]) -> None:
        table = self._table()
        self._check_same(table)
        change = table.newTransaction()
        self._parts.set_layout(change, table, layout)
        properties = change.updateProperties()
        for name, value in {LAYOUT_PROPERTY: recorded, **iceberg.distribution(layout)}.items():
            properties = properties.set(name, value)
        properties.commit()
        change.commitTransaction()

    def compact(self, order: Sequence[SortColumn] = ()) -> Compacted:
        catalog, schema, name = self._name
        options = ", ".join(f"{text_sql(k)}, {text_sql(v)}" for k, v in COMPACTED.items())
        table = text_sql(f"{name_sql(schema)}.{name_sql(name)}")
        by = ", ".join(f"{name_sql(one.column)} {one.direction}" for one in order)
        sorted_ = f", strategy => 'sort', sort_order => {text_sql(by)}" if order else ""
        rewrite = f"rewrite_data_files(table => {table}, options => map({options}){sorted_})"
        row = self._spark.sql(f"CALL {name_sql(catalog)}.system.{rewrite}").collect()[0]
        files = row.rewritten_data_files_count
        return Compacted(int(files), int(row.added_data_files_count), in_order=bool(order))

    def let_go(self, kept: Kept) -> str:
        """Remove tags of expired cuts, expired snapshots, and the files that only these have."""
        table = self._table()
        if table is None:
            return ""
        needed = kept.of(str(table.uuid().toString()))
        snapshots = list(table.snapshots())
        versions = {int(one.snapshotId()): int(one.sequenceNumber()) for one in snapshots}
        refs = {str(name): int(ref.snapshotId()) for name, ref in dict(table.refs()).items()}
        gone = iceberg.expired_tags({n: versions.get(i, 0) for n, i in refs.items()}, needed, kept.oldest)
        known = [_kept_snapshot(one) for one in snapshots]
        abandoned = iceberg.abandoned_branches(refs, time.time())
        left = [snapshot for name, snapshot in refs.items() if name not in (*gone, *abandoned)]
        old = iceberg.expired_snapshots(known, _id(table), left, needed, kept.since or 0.0)
        if gone or abandoned:
            manage = table.manageSnapshots()
            for tag in gone:
                manage = manage.removeTag(tag)
            for branch in abandoned:
                manage = manage.removeBranch(branch)
            manage.commit()
        if old:
            expire = table.expireSnapshots().expireOlderThan(0)  # otherwise also by the table's own age, five days
            for snapshot in old:
                expire = expire.expireSnapshotId(snapshot)
            expire.commit()
        return f"{len(gone)} tags and {len(old)} snapshots removed" if gone or old else ""

    def why_lost(self, version: int) -> str | None:
        return "its snapshot was expired" if version and self._snapshot(version) is None else None

    def transactions_of(self, version: int) -> Mapping[str, int]:
        return _transactions(self._table(), self._snapshot(version))

    def snapshot_at(self, version: int) -> TableSnapshot | None:
        table = self._table()
        found = None
        for metadata in [] if table is None else self._metadata_back(table):
            if _version(metadata) < version:
                break
            if _version(metadata) == version:
                found = metadata
        return None if found is None else _describe_table(self._parts, found, str(found.uuid()))

    def rows_at(self, version: int) -> DataFrame:
        found = self._snapshot(version)
        if found is None:  # it had no rows yet
            return self._spark.table(self.sql).where("false")
        rows = self._spark.sql(f"SELECT * FROM {self.sql} VERSION AS OF {found.snapshotId()}")  # noqa: S608  quoted
        return _without_pushdown(self._spark, rows) if self._has_other_names(found) else rows

    def _has_other_names(self, snapshot: Any) -> bool:  # Any: py4j gives whatever the other side has
        """Return whether a column of a snapshot has since been renamed or dropped."""
        table = self._table()
        then = None if table is None else table.schemas().get(snapshot.schemaId())
        if then is None or then.schemaId() == table.schema().schemaId():
            return False
        now = {c.id: c.name for c in self._parts.columns(table.schema())}
        return any(now.get(c.id) != c.name for c in self._parts.columns(then))

    def _table(self) -> Any:  # Any: py4j gives whatever the other side has
        try:
            found = self._parts.spark.loadIcebergTable(self._parts.active(self._spark), self.sql)
            found.refresh()
            return found
        except Exception as error:
            if any(name in str(error) for name in _NOT_THERE) or (
                self._folder is not None and not self._folder.exists()
            ):
                return None  # an operator may have moved its folder away
            raise

    @property
    def _parts(self) -> IcebergJvm:
        return iceberg_jvm(self._spark)

    def _metadata_back(self, table: Any) -> Iterator[Any]:
        """Yield the table's metadata, the latest first, as far back as the table keeps them: names and properties of
        columns change without a new version."""
        operations = table.operations()
        newest = operations.current()
        yield newest
        files = newest.previousFiles()
        for number in reversed(range(files.size())):
            try:
                yield self._parts.metadata.read(operations.io(), files.get(number).file())
            except Exception as error:
                if "NotFound" in str(error):  # a concurrent commit has removed it
                    return
                raise

    def forget(self) -> None:
        jvm, session = self._parts.jvm, self._parts.active(self._spark)
        of, schema, name = self._name
        manager = session.sessionState().catalogManager()
        if manager.isCatalogRegistered(of):
            catalog = manager.catalog(of)
            catalog.invalidateTable(jvm.org.apache.spark.sql.connector.catalog.Identifier.of(self._names(schema), name))

    def _names(self, *names: str) -> Any:
        """Return an array of Java strings."""
        gateway: Any = self._spark.sparkContext._gateway
        made = gateway.new_array(gateway.jvm.java.lang.String, len(names))
        for number, name in enumerate(names):
            made[number] = name
        return made

    def _make_room(self) -> None:
        """Prepare the creation of a table: create its namespace, and drop its name if the catalog has one without a
        folder."""
        jvm, session = self._parts.jvm, self._parts.active(self._spark)
        of, schema, name = self._name
        iceberg.check_name((schema, name), self._catalog_type)
        made = f"CREATE NAMESPACE IF NOT EXISTS {name_sql(of)}.{name_sql(schema)}"
        try:
            self._spark.sql(made)
        except Exception:  # noqa: BLE001  see below
            # Another process has created it, for which each catalog has a different error: it exists now.
            self._spark.sql(made)
        if self._folder is None:
            return
        catalog = self._parts.spark.loadIcebergCatalog(session, of)
        namespace = jvm.org.apache.iceberg.catalog.Namespace.of(self._names(schema))
        catalog.dropTable(jvm.org.apache.iceberg.catalog.TableIdentifier.of(namespace, name), False)

    def _snapshot(self, version: int) -> Any:
        """Return the snapshot with that sequence number; `None` if it no longer exists."""
        table = self._table()
        if table is None:
            return None
        for snapshot in _ancestors(table, table.currentSnapshot()):
            if (number := int(snapshot.sequenceNumber())) <= version:
                if number == version:
                    return snapshot
                break
        # The table was rolled back since then, or snapshots in between were expired.
        return next((snapshot for snapshot in table.snapshots() if snapshot.sequenceNumber() == version), None)


def _id(table: Any) -> int | None:
    """Return the id of a table's latest snapshot; `None` if it has none."""
    newest = None if table is None else table.currentSnapshot()
    return None if newest is None else int(newest.snapshotId())


def _version(table: Any) -> int:
    """Return the version of a table, or of a state of it that is given by its metadata."""
    newest = table.currentSnapshot()
    return 0 if newest is None else int(newest.sequenceNumber())


def _without_pushdown(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Return the rows in a plan from which no condition is pushed down to Iceberg.

    When it plans the files of an older snapshot, Iceberg (1.12) binds a condition to the table's latest schema, and
    does not find a column that was renamed since: "Cannot find field".
    """
    plan, session = rows._jdf.queryExecution(), spark._jsparkSession
    return type(rows)(session.internalCreateDataFrame(plan.toRdd(), rows._jdf.schema(), False), spark)


def _describe_table(parts: IcebergJvm, table: Any, id_: str) -> TableSnapshot:
    """Return the description of a table, or of an earlier state that is given by its metadata."""
    newest = table.currentSnapshot()
    return TableSnapshot(
        id=id_,
        version=_version(table),
        properties=parts.map(table.properties()),
        transactions=_transactions(table, newest),
        columns=parts.columns(table.schema()),
        is_empty=newest is None or newest.summary().get("total-data-files") == "0",
        commit="" if newest is None else str(int(newest.snapshotId())),
    )


def _first_torn(table: Any, published: int | None) -> Any:
    """Return the oldest snapshot after a version that names a file which is missing or ends early; `None` if all are
    whole. `published` `None`: only the latest snapshot is checked."""
    found = None
    for snapshot in _ancestors(table, table.currentSnapshot()):
        if published is not None and int(snapshot.sequenceNumber()) <= published:
            break
        if not _is_whole(table.io(), snapshot):
            found = snapshot
        if published is None:
            break
    return found


def _is_whole(io: Any, snapshot: Any) -> bool:
    try:
        if not has_file(str(snapshot.manifestListLocation())):
            return False
        if not all(has_file(str(m.path()), int(m.length())) for m in snapshot.allManifests(io)):
            return False
        files = [*snapshot.addedDataFiles(io), *snapshot.addedDeleteFiles(io)]
        return all(has_file(str(f.location()), int(f.fileSizeInBytes())) for f in files)
    except Exception as error:
        if _UNREADABLE.search(str(error)) is None:
            raise
        _log.info("manifests of a snapshot cannot be read", reason=first_line(error))
        return False


def _kept_snapshot(snapshot: Any) -> KeptSnapshot:
    parent = snapshot.parentId()
    return KeptSnapshot(
        id=int(snapshot.snapshotId()),
        version=int(snapshot.sequenceNumber()),
        parent=None if parent is None else int(parent),
        committed=int(snapshot.timestampMillis()) / 1000,
        tells=snapshot.summary().get(TRANSACTIONS) is not None,
    )


def _ancestors(table: Any, snapshot: Any) -> Iterator[Any]:
    """Yield a snapshot and its ancestors, the latest first, as far back as the table keeps them."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)


def _transactions(table: Any, snapshot: Any) -> Mapping[str, int]:
    for one in _ancestors(table, snapshot):
        said = one.summary().get(TRANSACTIONS)
        if said is not None:
            found: Mapping[str, int] = json.loads(said)
            return found
    return {}


def _snapshot_properties(table: Any, app: str, version: int) -> Mapping[str, int] | None:
    """Return the properties by which a table's next snapshot records its writers; with `app` including the transaction
    (app, version). `None` if the table already has that transaction."""
    known = dict(_transactions(table, None if table is None else table.currentSnapshot()))
    if not app:
        return known
    return None if known.get(app, version - 1) >= version else {**known, app: version}
