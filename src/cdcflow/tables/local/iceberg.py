"""Iceberg tables through PyIceberg (see `tables`).

Tables and snapshots are the same as Spark's (`cdcflow.tables.formats.iceberg`), so each engine can continue where
the other stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    ArrowScan,
    _dataframe_to_data_files,
    _pyarrow_to_schema_without_ids,
    bin_pack_arrow_table,
    pyarrow_to_schema,
    schema_to_pyarrow,
    write_file,
)
from pyiceberg.manifest import DataFile, FileFormat, ManifestEntryStatus
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction, WriteTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots, _MergeAppendFiles
from pyiceberg.types import (
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from sqlalchemy.exc import SQLAlchemyError

from cdcflow.model.file_layout import FileLayout, SortColumn
from cdcflow.tables.durable import torn_error
from cdcflow.tables.formats import iceberg
from cdcflow.tables.formats.iceberg import CATALOG, ROW_GROUPS, RULES, TRANSACTIONS, KeptSnapshot
from cdcflow.tables.formats.iceberg_catalog import has_file, step_back
from cdcflow.tables.job.failures import reading
from cdcflow.tables.job.past_tables import VersionGone
from cdcflow.tables.local import compaction, iceberg_partitions, position_deletes, unneeded_files
from cdcflow.tables.local.file_rewrites import Touched
from cdcflow.tables.local.iceberg_avro import read_list, read_living
from cdcflow.tables.local.iceberg_catalogs import LOCKED, TableCatalog
from cdcflow.tables.local.iceberg_commits import RETRIES
from cdcflow.tables.local.iceberg_files import TableIO, open_random
from cdcflow.tables.local.iceberg_manifests import DELETES, KnownManifests
from cdcflow.tables.local.iceberg_metadata import with_updates
from cdcflow.tables.local.position_deletes import OverwrittenFiles
from cdcflow.tables.local.scan import Ends, Numbers, RowMarks, ScannedFile
from cdcflow.tables.local.synced import sync
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.merge.file_layouts import existing_order
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.merge.target import FormatColumn
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import COMMITTED, HandOver, Kept, TableSnapshot

_log = structlog.get_logger()

_BOUNDED = (IntegerType, LongType, DateType, TimestampType, TimestamptzType, StringType)
"""Types of key columns whose bounds in manifests have the same order as in SQL."""

_CONFLICTS = (CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError)


class _Change(Transaction):
    """A transaction that computes the table's new metadata once per update. PyIceberg's computes it at each access."""

    _seen: tuple[int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._seen is None or self._seen[0] != len(self._updates):
            self._seen = len(self._updates), with_updates(self._table.metadata, self._updates)
        return self._seen[1]


class IcebergTables:
    """Implements `cdcflow.tables.local.tables.LocalTables`."""

    def __init__(self, warehouse: Warehouse | Path, bytes_max: int | None) -> None:
        self._warehouse = Warehouse.of(warehouse)
        self._bytes_max = bytes_max
        self._pinned: dict[str, tuple[int, int]] = {}
        self._manifests = KnownManifests()
        self._deletes = position_deletes.Deletes()

    @cached_property
    def _catalog(self) -> TableCatalog:
        return TableCatalog(self._warehouse)

    def table(self, path: Sequence[str]) -> IcebergTable:
        known = self._manifests, self._deletes
        return IcebergTable(self._catalog, self._warehouse, path, self._bytes_max, self._pinned, *known)

    def defer_checkpoints(self) -> None:
        """Return `None`: commits of Iceberg tables write no checkpoints."""

    def is_conflict(self, error: BaseException) -> bool:
        return isinstance(error, _CONFLICTS) or LOCKED in str(error)

    def close(self) -> None:
        if "_catalog" in self.__dict__:
            self._catalog.close()


class IcebergTable(FileTable[FileScanTask]):
    """An Iceberg table of the warehouse's catalog."""

    rules = RULES

    def __init__(
        self,
        catalog: TableCatalog,
        warehouse: Warehouse,
        path: Sequence[str],
        bytes_max: int | None,
        pinned: dict[str, tuple[int, int]],
        manifests: KnownManifests,
        deletes: position_deletes.Deletes,
    ) -> None:
        """`pinned`: by location, the version and cut that were tagged last. `manifests`, `deletes`: those that need not
        be read."""
        self._identifier = iceberg.identifier(path)
        super().__init__(".".join(self._identifier), bytes_max)
        self._catalog = catalog
        self._warehouse = warehouse
        self._path = tuple(path)
        self._location = warehouse.location_of(path)
        self._pinned = pinned
        self._manifests = manifests
        self._loaded: Table | None = None
        self._looked_at: str | None = None
        self._schema: tuple[Schema, pa.Schema] | None = None
        self._planned: tuple[Table, int | None, list[FileScanTask]] | None = None
        self._deletes = deletes

    def snapshot(self) -> TableSnapshot | None:
        self._changes.forget()
        self._loaded = self._newest()
        self._looked_at = None if self._loaded is None else self._loaded.metadata_location
        return None if self._loaded is None else self._read_snapshot(self._loaded)

    def own_snapshot(self) -> TableSnapshot | None:
        """Return the version that the latest commit made. The answer to that commit contains the table's metadata, so
        it is not requested again."""
        mine = self._loaded
        if mine is None or mine.metadata_location == self._looked_at or self._catalog.is_embedded:
            return self.snapshot()
        self._changes.forget()
        return self._read_snapshot(mine)

    def as_of(self, version: int) -> TableSnapshot | None:
        table = self._newest()
        if table is None:
            raise VersionGone("its folder is gone")
        now = _moved_to(table, version)
        found = _metadata_of(table, version)
        then = now if found is None else found
        self._loaded = Table(table.name(), then, table.metadata_location, table.io, table.catalog)
        self._looked_at = table.metadata_location
        return None if found is None else self._read_snapshot(self._loaded)

    def _newest(self) -> Table | None:
        """Return the table in its current version; `None` if it does not exist."""
        if self._catalog.is_embedded and not Path(self._location).exists():
            return None  # an operator may have moved its folder away
        with reading(f"{self._location}/metadata", SQLAlchemyError):
            found = self._catalog.load(self._identifier)
        if found is not None and found.name() != self._identifier and not self._is_here(found.location()):
            raise CannotFollow(
                f"table {self.name} cannot be merged: the catalog does not distinguish its name from that of the table"
                f" at {found.location()}",
                remedy="rename one of the two at the source, or exclude it from the capture",
            )
        return found

    def _is_here(self, location: str) -> bool:
        """Return whether a location is the one where this table belongs."""
        return location.rstrip("/").rpartition("://")[2] == self._location.rpartition("://")[2]

    def _read_snapshot(self, table: Table) -> TableSnapshot:
        newest = table.current_snapshot()
        return TableSnapshot(
            id=str(table.metadata.table_uuid),
            version=_version(newest),
            properties=dict(table.properties),
            transactions=_transactions(table, newest),
            columns=_columns(table),
            is_empty=newest is None or _summary_of(newest, "total-data-files") == "0",
            commit="" if newest is None else str(newest.snapshot_id),
        )

    def commit_of(self, version: int) -> str:
        found = next((s for s in self._table.snapshots() if _version(s) == version), None)
        return "" if found is None else str(found.snapshot_id)

    def drop_torn(self, published: int | None = None) -> None:
        """Repair the table after a power cut. If the catalog names metadata that never reached the disk, set it back to
        the metadata that it named before. If files of a snapshot did not, which Spark does not sync, roll back to the
        one before it."""
        if not self._catalog.is_embedded:
            return  # it names only files that are whole
        file, name = self._warehouse.folder.resolve() / CATALOG, iceberg.catalog_name(self._warehouse)
        with self._catalog.calling(f"repairing {self.name}"):
            is_to_check = step_back(file, name, self._identifier, self._catalog.has_read)
        table = self._newest() if is_to_check else None
        if table is None or (torn := _first_torn(table, published)) is None:
            return
        if torn.parent_snapshot_id is None:
            raise torn_error(self.name, _version(torn))
        _log.warning("a torn commit is set aside, its range is merged again", table=self.name)
        with self._catalog.calling(f"repairing {self.name}"):
            table.manage_snapshots().rollback_to_snapshot(torn.parent_snapshot_id).commit()

    def newest_commit(self) -> Mapping[str, Any] | None:
        newest = self._table.current_snapshot()
        said = None if newest is None else _summary_of(newest, COMMITTED)
        if said is None:
            return None
        found: Mapping[str, Any] = json.loads(said)
        return found

    def edits_since(self, version: int) -> list[str]:
        return [
            f"{_operation(snapshot)}@{snapshot.sequence_number}"
            for snapshot in self._snapshots_since(version)
            if _operation(snapshot) != Operation.REPLACE.value and _summary_of(snapshot, COMMITTED) is None
        ]

    def compactions_since(self, version: int) -> list[tuple[int, int]]:
        found = []
        for snapshot in filter(_is_compaction, self._snapshots_since(version)):
            parent = itertools.islice(_ancestors(self._table, snapshot), 1, 2)
            found += [(_version(before), _version(snapshot)) for before in parent]
        return found[::-1]

    def _snapshots_since(self, version: int) -> Iterator[IcebergSnapshot]:
        """Yield the current snapshot and its ancestors that are later than a version, the latest first. PyIceberg
        searches all snapshots for each, and a table may have thousands."""
        listed = _ancestors(self._table, self._table.current_snapshot())
        return itertools.takewhile(lambda snapshot: _version(snapshot) > version, listed)

    def rows(self) -> pa.Table:
        """Return all rows, also for a table that PyIceberg cannot write."""
        names, tasks = self.schema.names, self._plan_files()
        marked = [task for task in tasks if task.delete_files]
        parts = [self._scan([task for task in tasks if not task.delete_files], names)]
        return pa.concat_tables([*parts, *(self.read(task, names) for task in marked)])

    def pin(self, version: int, cut: int) -> None:
        if self._pinned.get(self._location) == (version, cut) or self.snapshot() is None:
            return
        self._check_ours()
        found = next((s for s in self._table.snapshots() if _version(s) == version), None)
        if found is not None:
            with self._changing() as change:
                self._tag(change, found.snapshot_id, cut)

    def create(
        self,
        columns: pa.Schema,
        properties: Mapping[str, str],
        metadata: Mapping[str, Any],
        rules: Format | None = None,
    ) -> None:
        if self._catalog.is_embedded:
            self._catalog.remove_entry(self._identifier)  # its folder was moved away
        self._loaded = self._catalog.create(
            self._identifier, columns, self._location, {**(rules or RULES).properties, **properties}
        )

    def describe(self, properties: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        with self._changing() as change:
            change.set_properties(dict(properties))

    def lay_out(self, layout: FileLayout, properties: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        with self._changing() as change:
            iceberg_partitions.set_layout(change, self._table, layout)
            change.set_properties({**properties, **iceberg.distribution(layout)})

    def add(self, columns: pa.Schema, metadata: Mapping[str, Any]) -> None:
        with self._changing() as change, change.update_schema() as update:
            for column in columns:
                update.add_column((column.name,), _iceberg(column.type))

    def rename(self, old: str, new: str, metadata: Mapping[str, Any]) -> None:
        with self._changing() as change, change.update_schema() as update:
            update.rename_column((old,), new)

    def widen(self, name: str, type_: pa.DataType, metadata: Mapping[str, Any]) -> None:
        with self._changing() as change, change.update_schema() as update:
            update.update_column((name,), field_type=_iceberg(type_))

    @property
    def marks_rows(self) -> bool:
        return iceberg.marks(self._table.properties)

    @property
    def order(self) -> tuple[SortColumn, ...]:
        return existing_order(self._table.properties, _columns(self._table))

    @property
    def schema(self) -> pa.Schema:
        found = self._table.schema()
        if self._schema is None or self._schema[0] is not found:
            self._schema = found, _arrow(found)
        return self._schema[1]

    def append(self, rows: pa.Table, metadata: Mapping[str, Any], app: str, version: int, keep: int) -> None:
        old = self._old(keep)
        with self._changing() as change:
            self._snapshot_of(change, [], rows, metadata, app, version)
            if old:
                ExpireSnapshots(change).by_ids(old).commit()

    def load(self, parts: Iterable[pa.Table], metadata: Mapping[str, Any], app: str, version: int) -> None:
        table = self._table
        with self._changing() as change:
            said = _summary(table, metadata, app, version)
            with change.update_snapshot(snapshot_properties=said).merge_append() as producer:
                for part in parts:
                    _check_written(part)
                    # Each part's files have their own name.
                    for file in self._write_files(change, self.in_own_order(part), uuid4()):
                        producer.append_data_file(file)

    @property
    def layout(self) -> Hashable:
        metadata = self._table.metadata
        return metadata.current_schema_id, metadata.default_spec_id

    def path_of(self, file: FileScanTask) -> str:
        return str(file.file.file_path)

    def row_count(self, file: FileScanTask) -> int:
        return int(file.file.record_count)

    def write_files(self, rows: pa.Table) -> list[tuple[DataFile, Numbers]]:
        self._check_ours()
        _check_written(rows)
        metadata = self._without_row_groups(self._table.metadata)
        schema = pyarrow_to_schema(rows.schema, name_mapping=metadata.schema().name_mapping)
        numbered = rows.append_column(compaction.ROW, pa.array(np.arange(len(rows))))
        keys: Iterable[PartitionKey | None] = [None]
        if not metadata.spec().is_unpartitioned():
            keys = iceberg_partitions.split(numbered, metadata.spec(), metadata.schema())
        uuid = uuid4()
        tasks: list[WriteTask] = []
        numbers: list[Numbers] = []
        for key in keys:
            part = key.rows if isinstance(key, iceberg_partitions.PartitionRows) else numbered
            most = max(1, len(part) * _file_bytes(metadata) // max(part.nbytes, 1))
            for first in range(0, len(part), most):
                held = part.slice(first, most)
                numbers.append(held.column(compaction.ROW).to_numpy())
                batches = held.drop_columns([compaction.ROW]).to_batches()
                tasks.append(WriteTask(uuid, len(tasks), schema, batches, partition_key=key))
        written = list(write_file(self._table.io, metadata, iter(tasks)))
        sync(self._table.io)  # the commit may use another IO
        for file in written:
            file.spec_id = metadata.default_spec_id  # PyIceberg sets it only where it reads a manifest
        self._keep_rows_of(written, rows)
        return list(zip(written, numbers, strict=True))

    def swap(
        self, old: Sequence[FileScanTask], new: Sequence[tuple[DataFile, Numbers]], metadata: Mapping[str, Any]
    ) -> None:
        table = self._table
        with self._changing() as change:
            producer = self._replace(
                OverwrittenFiles(change, table, _summary(table, metadata, "", 0), self._manifests), old, ()
            )
            with producer:
                for file, gone in new:
                    producer.append_data_file(file)
                    if len(gone):
                        producer.mark(position_deletes.write(table, file, {file.file_path: gone}))

    def rewrite(self, rows: pa.Table, metadata: Mapping[str, Any], keep: int) -> None:
        old = self._old(keep)
        with self._changing() as change:
            self._snapshot_of(change, self.files(), rows, metadata, "", 0)
            if old:
                ExpireSnapshots(change).by_ids(old).commit()

    def let_go(self, kept: Kept) -> str:
        """Remove expired tags and snapshots, the files that only these have, and abandoned files (see
        `unneeded_files`)."""
        self.drop_stored()
        table, needed = self._table, kept.of(str(self._table.metadata.table_uuid))
        before = table.metadata
        versions = {s.snapshot_id: _version(s) for s in table.snapshots()}
        tags = {name: versions.get(ref.snapshot_id, 0) for name, ref in table.refs().items()}
        gone = iceberg.expired_tags(tags, needed, kept.oldest)
        known = [
            KeptSnapshot(s.snapshot_id, _version(s), s.parent_snapshot_id, s.timestamp_ms / 1000, _tells(s))
            for s in table.snapshots()
        ]
        refs = {name: ref.snapshot_id for name, ref in table.refs().items()}
        abandoned = iceberg.abandoned_branches(refs, time.time())
        left = [snapshot for name, snapshot in refs.items() if name not in (*gone, *abandoned)]
        current = table.current_snapshot()
        newest = None if current is None else current.snapshot_id
        old = iceberg.expired_snapshots(known, newest, left, needed, kept.since or 0.0)
        if gone or old or abandoned:
            with self._changing() as change:
                with ManageSnapshots(change) as manage:
                    for tag in gone:
                        manage.remove_tag(tag)
                    for branch in abandoned:
                        manage.remove_branch(branch)
                if old:
                    ExpireSnapshots(change).by_ids(old).commit()
        files = self._delete_unneeded(before, kept)
        done = [f"{len(gone)} tags and {len(old)} snapshots removed"] if gone or old or abandoned else []
        return ", ".join([*done, *([f"{files} files deleted"] if files else [])])

    def _delete_unneeded(self, before: TableMetadata, kept: Kept) -> int:
        """Delete files that no snapshot needs any longer, and return their number. `before`: the metadata before the
        expiry."""
        now, io = self._table.metadata, self._table.io
        if not isinstance(io, TableIO) or not unneeded_files.may_remove(now):
            return 0
        since = time.time() - unneeded_files.ABANDONED_S
        if len(self._path) == 1 and kept.since is not None:  # one of cdcflow's own tables, whose commits take no time
            since = kept.since
        found = unneeded_files.files_of_expired(before, now, io)
        found += set(unneeded_files.abandoned_files(now, self._table.metadata_location, io, since)) - set(found)
        io.delete_all(found)
        return len(found)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _table(self) -> Table:
        if self._loaded is None:
            raise NoSuchTableError(self.name)
        return self._loaded

    def _old(self, keep: int) -> list[int]:
        """Return the snapshots to expire with the next commit, for a table that keeps only its latest `keep`
        versions."""
        kept = list(itertools.islice(_ancestors(self._table, self._table.current_snapshot()), keep - 1))
        tagged = {ref.snapshot_id for ref in self._table.refs().values()} | {s.snapshot_id for s in kept}
        return [s.snapshot_id for s in self._table.snapshots() if s.snapshot_id not in tagged]

    def has(self, app: str, version: int) -> bool:
        return _transactions(self._table, self._table.current_snapshot()).get(app, version - 1) >= version

    def _changing(self) -> _Change:
        table = self._table
        properties = {**table.metadata.properties, RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})  # other readers share the old one
        return _Change(table)

    def _tag(self, change: Transaction, snapshot: int, cut: int) -> None:
        tag = iceberg.tag(cut)
        there = self._table.refs().get(tag)
        if there is None or there.snapshot_id != snapshot:
            with ManageSnapshots(change) as manage:
                if there is not None:
                    manage.remove_tag(tag)
                manage.create_tag(snapshot, tag)

    def _check_ours(self) -> None:
        """Raise HandOver if PyIceberg cannot write the table."""
        if self._table.metadata.format_version != 2:
            raise HandOver("it is of another version than Iceberg's 2")
        iceberg_partitions.check_known(self._table)

    def files(self) -> Sequence[FileScanTask]:
        self._check_ours()
        return self._plan_files()

    def _plan_files(self) -> list[FileScanTask]:
        table, snapshot = self._table, self._table.metadata.current_snapshot_id
        if self._planned is None or self._planned[0] is not table or self._planned[1] != snapshot:
            self._planned = table, snapshot, self._plan(table)
        return self._planned[2]

    def _plan(self, table: Table) -> list[FileScanTask]:
        try:
            if table.catalog.supports_server_side_planning():
                return list(table.scan().plan_files())
            return self._manifests.plan(table.current_snapshot(), table.io)
        except HandOver:
            raise
        except Exception as error:
            self._check_manifests()
            if isinstance(error, ValueError):
                raise HandOver(DELETES) from error
            raise

    def _check_manifests(self) -> None:
        """Check that the table's manifests can be read.

        Raises:
            FileUnreadable: one of the files that list the table's files is damaged.
        """
        newest, io = self._table.current_snapshot(), self._table.io
        with reading("" if newest is None else newest.manifest_list):
            manifests = [] if newest is None else newest.manifests(io)
        for manifest in manifests:
            with reading(manifest.manifest_path):
                manifest.fetch_manifest_entry(io, discard_deleted=False)

    def partition_of(self, file: FileScanTask) -> Hashable:
        return file.file.spec_id, file.file.partition

    def in_partitions(
        self, files: Sequence[FileScanTask], chosen: Sequence[int], key: Sequence[str], keys: Callable[[], pa.Table]
    ) -> Sequence[int]:
        specs = {files[n].file.spec_id for n in chosen}
        known = iceberg_partitions.of_keys(self._table, specs, key, keys) if len(chosen) > 1 else {}
        if not known:
            return chosen
        listed = [(n, files[n].file) for n in chosen]
        return [n for n, f in listed if f.spec_id not in known or f.partition in known[f.spec_id]]

    def size_of(self, file: FileScanTask) -> int:
        return int(file.file.file_size_in_bytes)

    def deletions(self, file: FileScanTask) -> Touched:
        size, rows = self.size_of(file), int(file.file.record_count)
        if not file.delete_files:
            return Touched(size, rows or 1, 0)
        return Touched(size, rows, len(self._deletes.of(self._table, file)))

    def read(self, file: FileScanTask, columns: Sequence[str]) -> pa.Table:
        # For a file with deletes PyIceberg takes each remaining row by its number, which costs more than reading it.
        if file.delete_files and file.file.file_format == FileFormat.PARQUET and _is_flat(self.schema):
            with contextlib.suppress(HandOver), self.open_file(file) as rows:
                return rows.living(columns)
        return self._scan([file], columns)

    def _scan(self, files: Sequence[FileScanTask], columns: Sequence[str]) -> pa.Table:
        """Return these columns of all rows of some files, as PyIceberg reads them."""
        schema = self._table.schema().select(*columns)
        scan = ArrowScan(self._table.metadata, self._table.io, schema, AlwaysTrue())
        with reading(files[0].file.file_path if len(files) == 1 else f"{self._location}/data"):
            return scan.to_table(files).cast(_arrow(schema))

    def bounds(self, files: Sequence[FileScanTask], column: str) -> Sequence[Ends | None]:
        field = self._table.schema().find_field(column)
        if not isinstance(field.field_type, _BOUNDED):
            return [None] * len(files)
        return [_bounds(file, field.field_id, field.field_type) for file in files]

    def may_have_null(self, file: FileScanTask, column: str) -> bool:
        field = self._table.schema().find_field(column).field_id
        return (file.file.null_value_counts or {}).get(field) != 0

    def deleted_rows(self, file: FileScanTask) -> Numbers:
        return self._deletes.of(self._table, file)

    def marks_of(self, file: FileScanTask) -> Hashable:
        return frozenset(deletes.file_path for deletes in file.delete_files)

    def content_of(self, file: FileScanTask, column: str) -> Hashable:
        return self.content_of_new(file.file, column)

    def content_of_new(self, file: DataFile, column: str) -> Hashable:
        return file.file_path, file.file_size_in_bytes, self.column_id(column)

    def column_id(self, column: str) -> Hashable:
        return self._table.schema().find_field(column).field_id

    @property
    def folder_on_disk(self) -> Path | None:
        return _on_disk(self._table.io, self._table.location())

    def path_on_disk(self, file: FileScanTask) -> Path | None:
        return self.path_of_new_on_disk(file.file)

    def path_of_new_on_disk(self, file: DataFile) -> Path | None:
        return _on_disk(self._table.io, file.file_path)

    def identity_of(self, file: FileScanTask) -> Hashable:
        return _identity_of(file.file)

    def open_file(self, file: FileScanTask) -> ScannedFile:
        if file.file.file_format != FileFormat.PARQUET:
            raise HandOver("it has files of another format than Parquet")
        with reading(file.file.file_path):
            access = open_random(self._table.io, file.file)
            opened = pq.ParquetFile(access.source)
        names = {(f.metadata or {}).get(b"PARQUET:field_id"): f.name for f in opened.schema_arrow}
        if None in names:
            raise HandOver("it has files without column ids")
        schema = self.schema
        ids = [str(field.field_id).encode() for field in self._table.schema().fields]
        # No file has a column with this name.
        held = pa.schema([f.with_name(names.get(id_, f"\0{id_!r}")) for f, id_ in zip(schema, ids, strict=True)])
        return ScannedFile(opened, schema, held, partial(self.deleted_rows, file), file.file.file_path, access.fetch)

    def replace(
        self,
        old: Sequence[FileScanTask],
        new: pa.Table | None,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        marked: Sequence[tuple[FileScanTask, RowMarks]] = (),
    ) -> None:
        """Make one commit that removes the files `old`, adds the rows `new`, and records cdcflow's metadata."""
        with self._changing() as change:
            snapshot = self._snapshot_of(change, old, new, metadata, app, version, marked)
            # Most likely the next cut shows this version, and is then published without a commit to the table.
            # Maintenance has no cut: the latest cut's tag stays with the version that the cut shows. An existing tag
            # stays, too.
            is_new = "cut" in metadata and iceberg.tag(metadata["cut"]) not in self._table.refs()
            if is_new:
                self._tag(change, snapshot, metadata["cut"])
        if is_new:
            self._pinned[self._location] = _version(self._table.current_snapshot()), metadata["cut"]

    def _snapshot_of(
        self,
        change: Transaction,
        old: Sequence[FileScanTask],
        new: pa.Table | None,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        marked: Sequence[tuple[FileScanTask, RowMarks]] = (),
    ) -> int:
        """Add a snapshot to a commit, and return the snapshot's id. Raise HandOver if rows have values that PyIceberg
        cannot write."""
        if new is not None:
            _check_written(new)
        table = self._table
        said = _summary(table, metadata, app, version)
        producer: OverwrittenFiles | _MergeAppendFiles
        if old or marked:
            producer = self._replace(OverwrittenFiles(change, table, said, self._manifests), old, marked)
        else:
            producer = change.update_snapshot(snapshot_properties=said).merge_append()
        with producer:
            if new is not None and len(new):
                written = list(self._write_files(change, new, producer.commit_uuid))
                for file in written:
                    producer.append_data_file(file)
                self._keep_rows_of(written, new)
        return producer.snapshot_id

    def _keep_rows_of(self, written: Sequence[DataFile], rows: pa.Table) -> None:
        """Keep the rows of what was written, if it is one file, which then has their order."""
        if len(written) == 1:
            self.keep_written(_identity_of(written[0]), rows)

    def _write_files(self, change: Transaction, rows: pa.Table, uuid: UUID) -> Iterable[DataFile]:
        """Write new files with these rows. PyIceberg itself would size row groups by their number of rows alone, and
        warn about a table whose properties specify bytes."""
        told = self._without_row_groups(change.table_metadata)
        if told.spec().is_unpartitioned() and rows.schema.equals(_arrow(told.schema())):
            parts = bin_pack_arrow_table(rows, _file_bytes(told))
            tasks = (WriteTask(uuid, number, told.schema(), batches) for number, batches in enumerate(parts))
            return write_file(self._table.io, told, tasks)
        if told.spec().is_unpartitioned():
            return _dataframe_to_data_files(told, rows, self._table.io, write_uuid=uuid)
        return _write_partitions(told, rows, self._table.io, uuid)

    def _without_row_groups(self, metadata: TableMetadata) -> TableMetadata:
        properties = {name: said for name, said in metadata.properties.items() if name != ROW_GROUPS}
        return metadata.model_copy(update={"properties": properties})

    def _replace(
        self, producer: OverwrittenFiles, old: Sequence[FileScanTask], marked: Sequence[tuple[FileScanTask, RowMarks]]
    ) -> OverwrittenFiles:
        for task in old:
            producer.delete_data_file(task.file)
        added, removed = position_deletes.replacing(self._table, self._deletes, self._plan_files(), old, marked)
        producer.let_go(removed)
        for delete in added:
            producer.mark(delete)
        return producer


def _write_partitions(metadata: TableMetadata, rows: pa.Table, io: FileIO, uuid: UUID) -> Iterator[DataFile]:
    """Write the files of each partition."""
    schema = pyarrow_to_schema(rows.schema, name_mapping=metadata.schema().name_mapping)
    size = _file_bytes(metadata)
    numbers = itertools.count()
    tasks = (
        WriteTask(uuid, next(numbers), schema, batches, partition_key=part)
        for part in iceberg_partitions.split(rows, metadata.spec(), metadata.schema())
        for batches in bin_pack_arrow_table(part.rows, size)
    )
    return write_file(io, metadata, tasks)


def _file_bytes(metadata: TableMetadata) -> int:
    """Return the maximum number of bytes in memory of the rows in a new file."""
    return int(metadata.properties.get(_FILE_BYTES, _FILE_BYTES_DEFAULT))


_FILE_BYTES = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES
_FILE_BYTES_DEFAULT = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
_DAYS = (date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days
_MICROS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)


def _check_written(rows: pa.Table) -> None:
    """Raise HandOver if a date or timestamp is outside of Python's range: PyIceberg converts a file's bounds to Python
    values."""
    for name in rows.column_names:
        type_ = rows.schema.field(name).type
        if not (pa.types.is_date(type_) or pa.types.is_timestamp(type_)):
            continue
        ends, held = (_DAYS, pa.int32()) if pa.types.is_date(type_) else (_MICROS, pa.int64())
        found = pc.min_max(rows.column(name).cast(held)).values()
        low, high = (end.as_py() for end in found)
        if low is not None and (low < ends[0] or high > ends[1]):
            raise HandOver(f"its column {name} has dates before the year 1 or after 9999, which only Spark writes")


def _summary(table: Table, metadata: Mapping[str, Any], app: str, version: int) -> dict[str, str]:
    """Return the properties of a new snapshot that record cdcflow's merge."""
    known = dict(_transactions(table, table.current_snapshot()))
    if app:
        known[app] = version
    return {
        COMMITTED: json.dumps(metadata, separators=(",", ":")),
        TRANSACTIONS: json.dumps(known, separators=(",", ":")),
    }


def _on_disk(io: FileIO, location: str) -> Path | None:
    return io.path(location) if isinstance(io, TableIO) else None


def _identity_of(file: DataFile) -> Hashable:
    return file.file_path, int(file.file_size_in_bytes)


def _version(snapshot: IcebergSnapshot | None) -> int:
    return 0 if snapshot is None else snapshot.sequence_number or 0


def _columns(table: Table) -> tuple[FormatColumn, ...]:
    return tuple(FormatColumn(f.name, f.field_id, iceberg.type_sql(str(f.field_type))) for f in table.schema().fields)


def _metadata_of(table: Table, version: int) -> TableMetadata | None:
    """Return the table's metadata at the time when a version was committed; `None` if the version no longer exists.

    It is found in the table's older metadata files, because names and properties of columns may have changed since
    without a new version. Only a limited number of these files is kept; if none is old enough, the oldest is the best
    available answer.
    """
    found = None
    for metadata in _metadata_back(table):
        newest = _version(metadata.current_snapshot())
        if newest < version:
            break
        if newest == version:
            found = metadata
    return found


def _moved_to(table: Table, version: int) -> TableMetadata:
    """Return the latest metadata, changed to point to the rows of a version.

    Raises:
        VersionGone: the rows no longer exist.
    """
    if not version:  # it had no rows yet
        return table.metadata.model_copy(update={"current_snapshot_id": None})
    found = next((s for s in table.snapshots() if _version(s) == version), None)
    if found is None:
        raise VersionGone("its snapshot was expired")
    of_then = {"current_snapshot_id": found.snapshot_id}
    if found.schema_id is not None:
        of_then["current_schema_id"] = found.schema_id
    return table.metadata.model_copy(update=of_then)


def _metadata_back(table: Table) -> Iterator[TableMetadata]:
    """Yield the table's metadata, the latest first, as far back as the table keeps them."""
    yield table.metadata
    for entry in reversed(table.metadata.metadata_log):
        try:
            yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except FileNotFoundError:  # a concurrent commit has removed it
            return


class _KnownSchemas:
    """Arrow's schemas of tables. PyIceberg visits each column for that, and the schema of the next version is usually
    the same object."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._known: dict[int, tuple[Schema, pa.Schema]] = {}

    def arrow(self, schema: Schema) -> pa.Schema:
        """Return an Arrow schema, without Iceberg's field ids."""
        known = self._known.get(id(schema))
        if known is None or known[0] is not schema:
            known = schema, schema_to_pyarrow(schema, include_field_ids=False)
            if len(self._known) >= self._most:
                self._known = {}
            self._known[id(schema)] = known  # holds the schema, so no other one gets this id
        return known[1]


_arrow = _KnownSchemas().arrow


def _is_flat(schema: pa.Schema) -> bool:
    """Return whether no column has nested fields, which would have ids as well."""
    return not any(pa.types.is_struct(f.type) or pa.types.is_map(f.type) for f in schema)


def _bounds(task: FileScanTask, field: int, type_: IcebergType) -> tuple[Any, Any] | None:
    """Return a column's least and greatest value in a file; `None` if the manifest does not have them."""
    low, high = ((found or {}).get(field) for found in (task.file.lower_bounds, task.file.upper_bounds))
    if low is None or high is None:
        return None
    return from_bytes(type_, low), from_bytes(type_, high)  # type: ignore[arg-type]  # one of the plain types


def _iceberg(type_: pa.DataType) -> IcebergType:
    """Return Iceberg's type for an Arrow type."""
    return _pyarrow_to_schema_without_ids(pa.schema([("c", type_)])).fields[0].field_type


def _is_compaction(snapshot: IcebergSnapshot) -> bool:
    said = _summary_of(snapshot, COMMITTED)
    return said is not None and json.loads(said) == compaction.COMMIT


def _operation(snapshot: IcebergSnapshot) -> str:
    return "" if snapshot.summary is None else snapshot.summary.operation.value


def _summary_of(snapshot: IcebergSnapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)


def _tells(snapshot: IcebergSnapshot) -> bool:
    return _summary_of(snapshot, TRANSACTIONS) is not None


def _ancestors(table: Table, snapshot: IcebergSnapshot | None) -> Iterator[IcebergSnapshot]:
    """Yield a snapshot and its ancestors, the latest first, as far back as the table keeps them."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def _first_torn(table: Table, published: int | None) -> IcebergSnapshot | None:
    """Return the oldest snapshot after a version that names a file which is missing or torn; `None` if all are whole.
    `published` `None`: only the latest snapshot is checked."""
    newest = table.current_snapshot()
    snapshots = [s for s in _ancestors(table, newest) if s is newest or published is not None]
    later = [s for s in snapshots if published is None or _version(s) > published]
    return next((s for s in reversed(later) if not _is_whole(table.io, s)), None)


def _is_whole(io: FileIO, snapshot: IcebergSnapshot) -> bool:
    if not has_file(snapshot.manifest_list):
        return False
    try:
        manifests = read_list(snapshot.manifest_list, io)
    except (OSError, EOFError, ValueError):  # its size is recorded nowhere
        return False
    if not all(has_file(m.manifest_path, m.manifest_length) for m in manifests):
        return False
    entries = (e for m in manifests if m.added_snapshot_id == snapshot.snapshot_id for e in read_living(m, io))
    added = (entry.data_file for entry in entries if entry.status == ManifestEntryStatus.ADDED)
    return all(has_file(file.file_path, file.file_size_in_bytes) for file in added)


def _transactions(table: Table, snapshot: IcebergSnapshot | None) -> Mapping[str, int]:
    for one in _ancestors(table, snapshot):
        said = _summary_of(one, TRANSACTIONS)
        if said is not None:
            found: Mapping[str, int] = json.loads(said)
            return found
    return {}
