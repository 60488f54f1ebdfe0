"""Position deletes: the deleted rows of the files of an Iceberg table.

    large data file   ◀── its own delete files: a merge adds one, which replaces earlier ones that are not much larger.
                          A single file of all its deleted rows would be most of each merge
    small data files  ◀── one delete file for those of a partition: each merge leaves a small file, and writing a file
                          for each of them would be most of the next merge

A new delete file replaces earlier ones in the same snapshot, if it lists all rows of the remaining files that they
list. PyIceberg reads delete files and plans with them; this module writes them, and adds and removes them with their
own manifests. Source: https://iceberg.apache.org/spec/#position-delete-files
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _read_deletes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.delete_file_index import PATH_FIELD_ID, _referenced_data_file_path
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    UpdatesAndRequirements,
)
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT

from cdcflow.tables.job.failures import reading
from cdcflow.tables.local.iceberg_avro import DeleteManifestWriter, ManifestListWriter, ManifestWriter
from cdcflow.tables.local.iceberg_files import open_random
from cdcflow.tables.local.iceberg_manifests import KnownManifests
from cdcflow.tables.local.recently_used import RecentlyUsed
from cdcflow.tables.local.scan import NONE, Numbers, RowMarks, each_once

SHARING_BYTES = 4 << 20
"""The deleted rows of data files below this size are in delete files that several data files share."""

SHARED_ROWS_MAX = 1 << 20
"""The maximum number of rows in a delete file that several data files share. One that another writer made with more
rows is replaced only when none of its data files is left."""

OWN_TIMES = 4
"""A large data file's new delete file replaces an earlier one with at most this many times its rows. With 440 more
rows in each merge, a row is written 11.7 times on average until a million are deleted, and the data file has at most 5
delete files (computed)."""

_PATH, _NUMBER = "file_path", "pos"
_NUMBER_FIELD_ID = 2147483545
_SCHEMA = pa.schema(
    [
        pa.field(
            _PATH,
            pa.dictionary(pa.int32(), pa.string()),
            nullable=False,
            metadata={"PARQUET:field_id": str(PATH_FIELD_ID)},
        ),
        pa.field(_NUMBER, pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(_NUMBER_FIELD_ID)}),
    ]
)

Listed = Mapping[str, Numbers]
"""Numbers of deleted rows, by the path of their data file."""


KNOWN_BYTES_MAX = 64 << 20
"""The maximum size of the delete files whose rows are kept in memory, as numbers of rows."""


class Deletes:
    """The delete files that were read or written last. The path of each has an id that no other has, so its content
    never changes."""

    def __init__(self, bytes_max: int = KNOWN_BYTES_MAX) -> None:
        self._known: RecentlyUsed[Listed] = RecentlyUsed(bytes_max)

    def of(self, table: Table, task: FileScanTask) -> Numbers:
        """Return the numbers of a file's deleted rows."""
        path, files = task.file.file_path, task.delete_files
        if len(files) == 1:
            (delete,) = files
            return self.content_of(table, delete).get(path, NONE)
        found = self._known.get(_name_of_all(path, files))
        if found is None:
            rows = each_once([self.content_of(table, delete).get(path, NONE) for delete in files])
            self.keep_all(path, files, rows)
            return rows
        return found[path]

    def content_of(self, table: Table, delete: DataFile) -> Listed:
        """Return all rows that a delete file lists, by data file."""
        found = self._known.get(_identity(delete))
        if found is None:
            found = _read(table, delete)
            self.keep(delete, found)
        return found

    def keep(self, delete: DataFile, listed: Listed) -> None:
        """Keep in memory what a delete file lists."""
        self._keep(_identity(delete), listed)

    def keep_all(self, path: str, files: Collection[DataFile], rows: Numbers) -> None:
        """Keep in memory which rows of a data file all of its delete files list together."""
        if len(files) > 1:
            self._keep(_name_of_all(path, files), {path: rows})

    def _keep(self, name: Hashable, listed: Listed) -> None:
        for numbers in listed.values():
            numbers.flags.writeable = False
        self._known.keep(name, listed, sum(numbers.nbytes for numbers in listed.values()))


def _name_of_all(path: str, files: Iterable[DataFile]) -> Hashable:
    return path, frozenset(map(_identity, files))


def _identity(file: DataFile) -> Hashable:
    return file.file_path, int(file.file_size_in_bytes)


def _read(table: Table, delete: DataFile) -> Listed:
    if delete.file_format != FileFormat.PARQUET:
        told = _read_deletes(table.io, delete)
        return {path: each_once([numbers.to_numpy().astype(np.int64)]) for path, numbers in told.items()}
    source = open_random(table.io, delete).source
    with reading(delete.file_path), pq.ParquetFile(source, read_dictionary=[_PATH]) as opened:
        path = _referenced_data_file_path(delete)
        if path is not None:
            return {path: each_once([opened.read([_NUMBER]).column(0).to_numpy()])}
        rows = opened.read([_PATH, _NUMBER]).unify_dictionaries().combine_chunks()
    if not len(rows):
        return {}
    paths, numbers = rows.column(0).chunk(0), rows.column(1).to_numpy()
    codes = paths.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(paths.dictionary) + 1))
    listed = enumerate(paths.dictionary.to_pylist())
    return {path: each_once([numbers[order[ends[n] : ends[n + 1]]]]) for n, path in listed}


def replacing(
    table: Table,
    deletes: Deletes,
    there: Sequence[FileScanTask],
    old: Sequence[FileScanTask],
    marked: Sequence[tuple[FileScanTask, RowMarks]],
) -> tuple[list[DataFile], list[DataFile]]:
    """Write delete files for a commit that removes the data files `old`, and after which exactly these rows of the
    files in `marked` are deleted. Return the new delete files, and those that the commit has to remove. `there`: all
    data files before the commit."""
    alone: list[tuple[DataFile, Listed]] = []
    shared: dict[Hashable, tuple[DataFile, dict[str, Numbers]]] = {}
    stays: set[DataFile] = set()
    written: list[DataFile] = []
    for task, marks in marked:
        path = task.file.file_path
        if task.file.file_size_in_bytes < SHARING_BYTES:
            shared.setdefault(_partition(task.file), (task.file, {}))[1][path] = marks.all
            continue
        rows, earlier = _own_rows(table, deletes, task, marks)
        stays.update(earlier)
        written.append(_write_kept(table, deletes, task.file, {path: rows}))
        deletes.keep_all(path, [*earlier, written[-1]], marks.all)
    done = {task.file.file_path: task for task in (*old, *(task for task, _ in marked))}
    stay = {task.file.file_path for task in there} - done.keys()
    removed = []
    for delete in {delete for task in done.values() for delete in task.delete_files} - stays:
        if _referenced_data_file_path(delete) is None:
            listed = deletes.content_of(table, delete)
            if done.keys().isdisjoint(listed):
                continue  # PyIceberg finds it by its bounds
            left = {path: gone for path, gone in listed.items() if path in stay}
            if left and (delete.record_count > SHARED_ROWS_MAX or _partition(delete) not in shared):
                continue
            for path, gone in left.items():
                _, into = shared[_partition(delete)]
                into[path] = each_once([into.get(path, NONE), gone])
        removed.append(delete)
    for file, into in shared.values():
        while len(into) > 1 and sum(map(len, into.values())) > SHARED_ROWS_MAX:
            most = max(into, key=lambda path: len(into[path]))
            alone.append((file, {most: into.pop(most)}))
    written += [_write_kept(table, deletes, file, listed) for file, listed in (*alone, *shared.values())]
    return written, removed


def _own_rows(
    table: Table, deletes: Deletes, task: FileScanTask, marks: RowMarks
) -> tuple[Numbers, Sequence[DataFile]]:
    """Return the rows that a large data file's new delete file lists, and the earlier delete files that stay."""
    earlier = sorted(task.delete_files, key=lambda delete: delete.record_count)
    listed = sum(delete.record_count for delete in earlier)
    if marks.more is None or not len(marks.more) or listed + len(marks.more) != len(marks.all):
        return marks.all, ()  # other writers' delete files also list rows of other data files, or a row twice
    rows = marks.more
    while earlier and earlier[0].record_count <= OWN_TIMES * len(rows):
        replaced = deletes.content_of(table, earlier.pop(0))
        rows = each_once([rows, replaced[task.file.file_path]])
    return rows, earlier


def _write_kept(table: Table, deletes: Deletes, file: DataFile, listed: Listed) -> DataFile:
    """Write a delete file, and keep in memory what it lists."""
    written = write(table, file, listed)
    deletes.keep(written, listed)
    return written


def _partition(file: DataFile) -> Hashable:
    return file.spec_id, file.partition


def write(table: Table, file: DataFile, listed: Listed) -> DataFile:
    """Write a delete file that lists these rows. `file`: one of the data files that it is about; all are in one
    partition."""
    path = table.location_provider().new_data_location(f"00000-0-{uuid4()}-00001-deletes.parquet")
    names = sorted(listed)  # this is also the order of their bytes in UTF-8
    parts = [listed[name] for name in names]
    codes = np.repeat(np.arange(len(names), dtype=np.int32), [len(part) for part in parts])
    numbers = np.concatenate(parts)
    rows = pa.table([pa.DictionaryArray.from_arrays(codes, names), pa.array(numbers)], schema=_SCHEMA)
    output = table.io.new_output(path)
    with output.create() as written:
        # Numbers hardly repeat. Without Arrow's schema in the file, paths are plain texts.
        pq.write_table(rows, written, compression="zstd", use_dictionary=[_PATH], store_schema=False)
    least, greatest = (int(end).to_bytes(8, "little") for end in (numbers.min(), numbers.max()))
    made = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(numbers),
        file_size_in_bytes=len(output),
        lower_bounds={PATH_FIELD_ID: names[0].encode(), _NUMBER_FIELD_ID: least},
        upper_bounds={PATH_FIELD_ID: names[-1].encode(), _NUMBER_FIELD_ID: greatest},
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    made.spec_id = file.spec_id
    return made


class OverwrittenFiles(_OverwriteFiles):
    """An overwrite that adds and removes delete files. It also drops manifests without live entries, which PyIceberg
    would carry along indefinitely."""

    def __init__(self, change: Transaction, table: Table, said: dict[str, str], known: KnownManifests) -> None:
        """`known`: manifests that were read already."""
        super().__init__(Operation.OVERWRITE, change, table.io, snapshot_properties=said)
        self._known = known
        self._added_deletes: list[DataFile] = []
        self._removed_deletes: set[DataFile] = set()

    def mark(self, added: DataFile) -> None:
        """Add a delete file."""
        self._added_deletes.append(added)

    def let_go(self, deletes: Iterable[DataFile]) -> None:
        """Remove delete files that are no longer needed."""
        self._removed_deletes.update(deletes)

    def _manifests_before(self) -> Sequence[ManifestFile]:
        """Return the manifests of the snapshot that this one follows."""
        parent = self._parent_snapshot_id
        before = None if parent is None else self._transaction.table_metadata.snapshot_by_id(parent)
        return self._known.of(before, self._io)

    def _existing_manifests(self) -> list[ManifestFile]:
        """Return the manifests to keep; manifests that list a removed file are replaced by new ones with their
        remaining files."""
        found: list[ManifestFile] = []
        for manifest in self._manifests_before():
            entries, left = self._split(manifest)
            if len(left) == len(entries):
                found.append(manifest)
            elif left:
                with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                    for entry in left:
                        writer.existing(entry)
                found.append(writer.to_manifest_file())
        return found

    def _deleted_entries(self) -> list[ManifestEntry]:
        """Return an entry with the status "deleted" for each data file to remove."""
        found: list[ManifestEntry] = []
        for manifest in self._manifests_before() if self._deleted_data_files else ():
            entries, left = self._split(manifest)
            if len(left) < len(entries):
                found += [self._as_now(entry) for entry in entries if entry.data_file in self._deleted_data_files]
        self._validate_required_deletes(found)
        return found

    def _split(self, manifest: ManifestFile) -> tuple[Sequence[ManifestEntry], Sequence[ManifestEntry]]:
        """Return all entries of a manifest, and those that stay; both are empty for a manifest that cannot list a
        removed file."""
        if not self._deleted_data_files or manifest.content != ManifestContent.DATA:
            return (), ()
        entries = self._known.entries(manifest, self._io)
        return entries, [entry for entry in entries if entry.data_file not in self._deleted_data_files]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        living = [
            manifest
            for manifest in super()._process_manifests(manifests)
            if manifest.added_snapshot_id == self._snapshot_id
            or manifest.has_added_files()
            or manifest.has_existing_files()
        ]
        if not self._added_deletes and not self._removed_deletes:
            return living
        kept, entries = self._without_removed(living)
        entries += [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=added,
            )
            for added in self._added_deletes
        ]
        by_spec: dict[int, list[ManifestEntry]] = {}
        for entry in entries:
            by_spec.setdefault(entry.data_file.spec_id, []).append(entry)
        return [*kept, *(self._manifest_of(spec, found) for spec, found in by_spec.items())]

    def _without_removed(self, manifests: Sequence[ManifestFile]) -> tuple[list[ManifestFile], list[ManifestEntry]]:
        """Return the manifests to keep, and the remaining entries of the others, converted for a new manifest."""
        kept: list[ManifestFile] = []
        entries: list[ManifestEntry] = []
        for manifest in manifests:
            said: Sequence[ManifestEntry] = ()
            if manifest.content == ManifestContent.DELETES:
                said = self._known.entries(manifest, self._io)
            if any(entry.data_file in self._removed_deletes for entry in said):
                entries += [self._as_now(entry) for entry in said]
            else:
                kept.append(manifest)
        return kept, entries

    def _as_now(self, entry: ManifestEntry) -> ManifestEntry:
        goes = entry.data_file in self._removed_deletes or entry.data_file in self._deleted_data_files
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if goes else ManifestEntryStatus.EXISTING,
            snapshot_id=self._snapshot_id if goes else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _manifest_of(self, spec: int, entries: Collection[ManifestEntry]) -> ManifestFile:
        with self._writer(DeleteManifestWriter, self.spec(spec)) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        return self._writer(ManifestWriter, spec)

    def _writer(self, kind: type[ManifestWriter], spec: PartitionSpec) -> ManifestWriter:
        return kind(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)

    def _commit(self) -> UpdatesAndRequirements:
        """Write the list of manifests, and return the update that makes the snapshot the latest one."""
        manifests, metadata = self._manifests(), self._transaction.table_metadata
        parent, sequence = self._parent_snapshot_id, metadata.next_sequence_number()
        said = self._summary(self.snapshot_properties)
        name = f"snap-{self._snapshot_id}-0-{self.commit_uuid}.avro"
        place = self._transaction._table.location_provider().new_metadata_location(name)
        self._written_manifest_lists.append(place)
        output = self._io.new_output(place)
        with ManifestListWriter(output, self._snapshot_id, parent, sequence, self._compression) as writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot(
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=parent,
            manifest_list=place,
            sequence_number=sequence,
            summary=said,
            schema_id=metadata.current_schema_id,
        )
        latest = SetSnapshotRefUpdate(  # type: ignore[call-arg]  # the others have defaults
            snapshot_id=self._snapshot_id, ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, parent_snapshot_id=parent
        )
        before = metadata.refs.get(MAIN_BRANCH)
        same = AssertRefSnapshotId(snapshot_id=None if before is None else before.snapshot_id, ref=MAIN_BRANCH)
        return (AddSnapshotUpdate(snapshot=snapshot), latest), (same,)

    def _build_delete_files_partition_predicate(self) -> None:
        """Do nothing. PyIceberg would skip manifests by the partitions of the files to delete, but it compares these as
        values of the columns, which they are not (a day is a number)."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Return the snapshot's summary, which also counts delete files. PyIceberg would count these by the current
        specification."""
        metadata = self._transaction.table_metadata
        specs, schema, collected = metadata.specs(), self.schema(), SnapshotSummaryCollector()
        for file in self._added_data_files:
            collected.add_file(file, schema, metadata.spec())
        for file in self._added_deletes:
            collected.add_file(file, schema, specs[file.spec_id])
        for file in self._deleted_data_files | self._removed_deletes:
            collected.remove_file(file, schema, specs[file.spec_id])
        parent = None if self._parent_snapshot_id is None else metadata.snapshot_by_id(self._parent_snapshot_id)
        said = Summary(operation=self._operation, **collected.build(), **snapshot_properties)
        return update_snapshot_summaries(said, None if parent is None else parent.summary)
