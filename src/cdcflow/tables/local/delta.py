"""Delta tables, version by version (see `tables` and `deltalog`).

Tables and commits are the same as Spark's (`cdcflow.spark.formats.delta`), so each engine can continue where the other
stopped. Deleted rows are marked by deletion vectors, as Spark does (`vectors`). A vector's file is durable before the
commit that refers to it; a run that dies in between leaves an unreferenced file.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.log.files.parquet import repeating
from cdcflow.model.file_layout import SortColumn
from cdcflow.tables.folders import WarehouseFolder
from cdcflow.tables.formats import delta
from cdcflow.tables.formats.delta import (
    COLUMN_ID,
    HARMLESS,
    MAPPING,
    MARKS,
    RULES,
    columns,
    is_mapped,
    ours,
    user_metadata,
)
from cdcflow.tables.job.failures import reading
from cdcflow.tables.job.past_tables import VersionGone
from cdcflow.tables.local import compaction
from cdcflow.tables.local.arrow_types import TYPES, type_of
from cdcflow.tables.local.deltalog import Action, Conflict, DeltaLog, File, LogBegun, name_of, unread
from cdcflow.tables.local.due_checkpoints import DueCheckpoints
from cdcflow.tables.local.file_rewrites import Touched
from cdcflow.tables.local.scan import Ends, Numbers, RowMarks, ScannedFile, rename_columns
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.local.vectors import KnownVectors
from cdcflow.tables.local.warehouse_folder import open_folder
from cdcflow.tables.merge.file_layouts import existing_order
from cdcflow.tables.merge.format import Format
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import HandOver, Kept, TableSnapshot
from cdcflow.version import __version__

FILE_BYTES = 256 << 20
"""A new file gets at most this many bytes of rows, as measured in memory."""

ROW_GROUP = 1 << 17
"""Rows per row group: the minimum that is read to get one row of a file."""

INDEXED, TEXT_MAX = 32, 31
"""Bounds are kept for this many columns, and for texts up to this length: for longer ones other writers keep only
prefixes."""

_NAME = "delta.columnMapping.physicalName"
_MAX_ID = "delta.columnMapping.maxColumnId"
_OWN = re.compile(r".*\.parquet|deletion_vector_.*\.bin")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_SQL_WORDS = {text: word for word, text in delta.TYPES.items()}
_WORDS = {type_: _SQL_WORDS.get(text, text) for text, type_ in TYPES.items()}


class DeltaTables:
    """Implements `cdcflow.tables.local.tables.LocalTables`."""

    def __init__(self, warehouse: Warehouse | Path, bytes_max: int | None) -> None:
        self._warehouse = open_folder(Warehouse.of(warehouse))
        self._bytes_max = bytes_max
        self._logs: dict[str, DeltaLog] = {}
        self._later: DueCheckpoints | None = None
        self._vectors = KnownVectors()

    def defer_checkpoints(self) -> DueCheckpoints:
        """Leave the writing of checkpoints as later work from now on, and return that work (see
        `Engine.defer_checkpoints`)."""
        self._later = self._later or DueCheckpoints()
        return self._later

    def table(self, path: Sequence[str]) -> DeltaTable:
        folder = self._warehouse.folder(*path)
        known = self._logs.get(folder.location)
        log = self._logs[folder.location] = DeltaLog(folder) if known is None else known.copy()
        if self._later is not None:
            self._later.follow(log)
        return DeltaTable(folder, self._bytes_max, log, self._vectors)

    def is_conflict(self, error: BaseException) -> bool:
        return isinstance(error, Conflict)

    def close(self) -> None:
        """Forget the logs, and end the threads of requests."""
        self._logs.clear()
        self._warehouse.close()


class DeltaTable(FileTable[File]):
    """A table in a folder."""

    rules = RULES

    def __init__(
        self,
        folder: WarehouseFolder | Path,
        bytes_max: int | None,
        log: DeltaLog | None = None,
        known: KnownVectors | None = None,
    ) -> None:
        """`log`: its log, as far as it was read already. `known`: vectors that need not be read."""
        self._folder = WarehouseFolder.of(folder)
        super().__init__(self._folder.table_name, bytes_max)
        self._log = log or DeltaLog(self._folder)
        self._vectors = known or KnownVectors()
        self._old_files: list[str] | None = None

    def snapshot(self) -> TableSnapshot | None:
        self._changes.forget()
        return None if self._log.update() < 0 else self._read_snapshot()

    def as_of(self, version: int) -> TableSnapshot:
        self._log = DeltaLog(self._folder)
        gone = "the log of the Delta table there does not have that version"
        try:
            found = self._log.update(version)
        except LogBegun as error:
            raise VersionGone(gone) from error
        if found != version:
            raise VersionGone("its folder is gone" if found < 0 else gone)
        return self._read_snapshot()

    def _read_snapshot(self) -> TableSnapshot:
        metadata = self._log.metadata
        return TableSnapshot(
            id=metadata["id"],
            version=self._log.version,
            properties=dict(metadata["configuration"]),
            transactions=dict(self._log.transactions),
            columns=columns(metadata["schemaString"]),
            is_empty=self._log.is_short and not self._log.files(),
            commit=self._log.commit_id,
        )

    def commit_of(self, version: int) -> str:
        return self._log.commit_id_of(version)

    def version_at(self, at_ms: float) -> int | None:
        """Return the version that was the latest at a time, in milliseconds since 1970; `None` if that is unknown."""
        found = self._log.at_time_ms(at_ms)
        began = _info(self._log.actions(found) or []).get("timestamp")
        return found if began is not None and began <= at_ms else None

    def drop_torn(self, published: int | None = None) -> None:
        self._log.drop_torn(published)

    @property
    def features(self) -> frozenset[str]:
        """The features of Delta that readers of the table must support."""
        return frozenset(self._log.protocol.get("readerFeatures") or ())

    @property
    def is_partitioned(self) -> bool:
        return bool(self._log.metadata.get("partitionColumns"))

    def parts(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield these columns of all rows, file by file."""
        for file in self._log.files():
            yield self.read(file, columns)

    def newest_commit(self) -> Mapping[str, Any] | None:
        return ours(_info(self._log.actions(self._log.version) or []).get("userMetadata"))

    def edits_since(self, version: int) -> list[str]:
        found = []
        for newer in range(self._log.version, version, -1):
            info = _info(self._log.actions(newer) or [])
            operation = info.get("operation")
            if operation and operation not in HARMLESS and ours(info.get("userMetadata")) is None:
                found.append(f"{operation}@{newer}")
        return found

    def compactions_since(self, version: int) -> list[tuple[int, int]]:
        later = range(version + 1, self._log.version + 1)
        told = {v: ours(_info(self._log.actions(v) or []).get("userMetadata")) for v in later}
        return [(v - 1, v) for v in later if told[v] == compaction.COMMIT]

    @property
    def order(self) -> tuple[SortColumn, ...]:
        return existing_order(self._settings, columns(self._log.metadata["schemaString"]))

    @property
    def schema(self) -> pa.Schema:
        return _schemas(self._log.metadata["schemaString"])[0]

    def create(
        self,
        columns: pa.Schema,
        properties: Mapping[str, str],
        metadata: Mapping[str, Any],
        rules: Format | None = None,
    ) -> None:
        if self._log.update() >= 0:
            raise Conflict(f"another process has created {self.name}")
        properties = {**(rules or RULES).properties, **properties}
        numbers = _Numbers(0) if is_mapped(properties) else None
        fields = [_field(column, numbers) for column in columns]
        settings = {**properties, **({} if numbers is None else {_MAX_ID: str(numbers.last)})}
        made = {
            "id": str(uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "partitionColumns": [],
            "createdTime": _now_ms(),
        }
        self._describe("CREATE TABLE", made, fields, settings, metadata)

    def add(self, columns: pa.Schema, metadata: Mapping[str, Any]) -> None:
        is_plain = all(delta.is_plain(c.name, has_fields=pa.types.is_struct(c.type)) for c in columns)
        fields, settings = (self._fields, self._settings) if is_plain else self._with_column_mapping()
        numbers = _Numbers(int(settings[_MAX_ID])) if is_mapped(settings) else None
        fields = [*fields, *(_field(column, numbers) for column in columns)]
        more = {} if numbers is None else {_MAX_ID: str(numbers.last)}
        self._describe("ADD COLUMNS", {}, fields, {**settings, **more}, metadata)

    def describe(self, properties: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        self._describe("SET TBLPROPERTIES", {}, self._fields, {**self._settings, **properties}, metadata)

    def rename(self, old: str, new: str, metadata: Mapping[str, Any]) -> None:
        fields, settings = self._with_column_mapping()
        fields = [{**f, "name": new if f["name"] == old else f["name"]} for f in fields]
        self._describe("RENAME COLUMN", {}, fields, settings, metadata)

    def widen(self, name: str, type_: pa.DataType, metadata: Mapping[str, Any]) -> None:
        fields = [_widen_field(f, _word(type_)) if f["name"] == name else f for f in self._fields]
        settings = {**self._settings, "delta.enableTypeWidening": "true"}
        self._describe("CHANGE COLUMN", {}, fields, settings, metadata)

    def append(self, rows: pa.Table, metadata: Mapping[str, Any], app: str, version: int, keep: int) -> None:
        self.replace([], rows, metadata, app, version)

    def load(self, parts: Iterable[pa.Table], metadata: Mapping[str, Any], app: str, version: int) -> None:
        self._check_ours()
        self._put(
            "WRITE",
            [],
            [f for part in parts if len(part) for f in self._write_files(self.in_own_order(part))],
            metadata,
            app,
            version,
        )

    @property
    def layout(self) -> Hashable:
        return str(self._log.metadata["schemaString"]), self._settings.get(MAPPING)

    def path_of(self, file: File) -> str:
        return file.path

    def row_count(self, file: File) -> int:
        return self._count(file)

    def write_files(self, rows: pa.Table) -> list[tuple[File, Numbers]]:
        self._check_ours()
        written = self._write_files(rows)
        ends = list(accumulate(map(self._count, written), initial=0))
        return [(file, np.arange(begin, end)) for file, begin, end in zip(written, ends, ends[1:], strict=False)]

    def swap(self, old: Sequence[File], new: Sequence[tuple[File, Numbers]], metadata: Mapping[str, Any]) -> None:
        self._check_ours()
        marked = self._mark_deleted([(file, RowMarks(gone)) for file, gone in new if len(gone)])
        self._put("MERGE", old, [*marked, *(file for file, gone in new if not len(gone))], metadata, "", 0)

    def rewrite(self, rows: pa.Table, metadata: Mapping[str, Any], keep: int) -> None:
        self.replace(self._log.files(), rows, metadata, "", 0)

    def look_around(self, kept: Kept) -> None:
        self._old_files = self._written_before(_may_go_before(kept, time.time()))

    def let_go(self, kept: Kept) -> str:
        self.drop_stored()
        return self._remove_files(kept)

    def _remove_files(self, kept: Kept) -> str:
        """Remove files that no kept version has, that no version since `kept.since` had, and that are older than the
        week that Delta keeps removed files."""
        self._check_ours()
        now, since = time.time(), kept.since or 0.0
        if wanted := delta.retention(now - since, self._settings, now):
            self.describe(wanted, {"upkeep": "retention"})
        needed = kept.of(self._log.metadata["id"])
        before = _may_go_before(kept, now)
        old = self._written_before(before) if self._old_files is None else self._old_files
        current = _last_parts(self._log.files())
        if all(name.rpartition("/")[2] in current for name in old):
            return ""
        least = self._log.about_time_ms(before * 1000)
        oldest = min([self._log.version, least, *needed])
        used = self._used_since(oldest)
        if used is None:
            raise HandOver(f"its log no longer contains what version {oldest} has")
        gone = [name for name in old if name.rpartition("/")[2] not in used]
        self._folder.delete(gone)
        return f"{len(gone)} files removed" if gone else ""

    def _used_since(self, oldest: int) -> set[str] | None:
        """Return the names of the files that the version `oldest`, or any later one, has; `None` if that is unknown.
        These are the current files and those that were removed since."""
        removed = self._log.removed_since(oldest)
        if removed is None:
            return None
        return _last_parts((*self._log.files(), *removed))

    def _written_before(self, at: float) -> list[str]:
        """Return the names of files of rows and of vectors that are older than a time, in seconds since 1970."""
        return [
            entry.name
            for entry in self._folder.entries()
            if entry.modified < at and _OWN.fullmatch(entry.name.rpartition("/")[2]) and entry.name[0] not in "_."
        ]

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def marks_rows(self) -> bool:
        return self._settings.get(MARKS) == "true"

    def _with_column_mapping(self) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        """Return fields and settings of the table with column mapping: ids are the columns' positions, as Delta itself
        assigns them, and the names in files are the current ones."""
        if is_mapped(self._settings):
            return self._fields, self._settings
        fields = [
            {**f, "metadata": {**f["metadata"], COLUMN_ID: number, _NAME: f["name"]}}
            for number, f in enumerate(self._fields, start=1)
        ]
        return fields, {**self._settings, MAPPING: "name", _MAX_ID: str(len(fields))}

    @property
    def _fields(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._log.metadata["schemaString"])["fields"]
        return found

    def _name_in_files(self, column: str) -> str:
        """Return a column's name in the table's files. Maintenance requests it for each column of each file."""
        named, held = _schemas(self._log.metadata["schemaString"])
        return str(held.field(named.get_field_index(column)).name)

    @property
    def _settings(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self._log.metadata["configuration"]
        return found

    def has(self, app: str, version: int) -> bool:
        return self._log.transactions.get(app, version - 1) >= version

    def _check_ours(self) -> None:
        """Raise HandOver if only Spark can write the table."""
        if (why := unread(self._log.protocol, self._log.metadata)) is not None:
            raise HandOver(why)

    def _describe(
        self,
        operation: str,
        made: Action,
        fields: Sequence[Mapping[str, Any]],
        settings: Mapping[str, str],
        metadata: Mapping[str, Any],
    ) -> None:
        """Commit a new description of the table; no row changes."""
        if self._log.version >= 0:
            self._check_ours()
        schema = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
        changed = {**self._log.metadata, **made, "schemaString": schema, "configuration": dict(settings)}
        actions: list[Action] = [self._commit_info(operation, metadata), {"metaData": changed}]
        protocol = _protocol(self._log.protocol, schema, settings)
        if protocol != self._log.protocol:
            actions.append({"protocol": protocol})
        self._log.commit(actions)

    def _commit_info(self, operation: str, metadata: Mapping[str, Any]) -> Action:
        base = {} if self._log.version < 0 else {"readVersion": self._log.version}
        return {
            "commitInfo": {
                "timestamp": _now_ms(),
                "operation": operation,
                "operationParameters": {},
                **base,
                "isolationLevel": "Serializable",
                "isBlindAppend": False,
                "engineInfo": f"cdcflow/{__version__}",
                "txnId": str(uuid4()),
                "userMetadata": user_metadata(metadata),
            }
        }

    def files(self) -> Sequence[File]:
        self._check_ours()
        return self._log.files()

    def size_of(self, file: File) -> int:
        return file.size

    def deletions(self, file: File) -> Touched:
        if file.vector is None:
            return Touched(file.size, 1, 0)
        return Touched(file.size, self._count(file), int(file.vector["cardinality"]))

    def deleted_rows(self, file: File) -> Numbers:
        return self._vectors.deleted_numbers(self._folder, file.vector)

    def marks_of(self, file: File) -> Hashable:
        return file.key

    def content_of(self, file: File, column: str) -> Hashable:
        return str(self._folder.place_of(name_of(file))), file.size, self.column_id(column)

    def content_of_new(self, file: File, column: str) -> Hashable:
        return self.content_of(file, column)

    def column_id(self, column: str) -> Hashable:
        return self._name_in_files(column)

    @property
    def folder_on_disk(self) -> Path | None:
        return self._folder.path

    def path_on_disk(self, file: File) -> Path | None:
        return None if self._folder.path is None else self._folder.path / name_of(file)

    def path_of_new_on_disk(self, file: File) -> Path | None:
        return self.path_on_disk(file)

    def identity_of(self, file: File) -> Hashable:
        return str(self._folder.place_of(name_of(file))), file.size

    def open_file(self, file: File) -> ScannedFile:
        name = name_of(file)
        place = self._folder.place_of(name)
        with reading(place):
            opened = self._folder.open(name, file.size)
            rows = pq.ParquetFile(opened.source)
        return ScannedFile(
            rows,
            *_schemas(self._log.metadata["schemaString"]),
            partial(self.deleted_rows, file),
            place,
            opened.fetch,
        )

    def read(self, file: File, columns: Sequence[str]) -> pa.Table:
        with self.open_file(file) as rows:
            return rows.living(columns)

    def bounds(self, files: Sequence[File], column: str) -> Sequence[Ends | None]:
        field = next(f for f in self._fields if f["name"] == column)
        name, type_ = _physical(field), field["type"]

        def of(file: File) -> Ends | None:
            low, high = (file.stats.get(which, {}).get(name) for which in ("minValues", "maxValues"))
            if low is None or high is None:
                return None
            if type_ in ("byte", "short", "integer", "long"):
                return low, high
            if type_ == "date" and _DATE.fullmatch(low) and _DATE.fullmatch(high):
                return low, high
            return (low, high) if type_ == "string" and len(high) <= TEXT_MAX else None

        return [of(file) for file in files]

    def may_have_null(self, file: File, column: str) -> bool:
        return bool(file.stats.get("nullCount", {}).get(self._name_in_files(column)) != 0)

    def replace(
        self,
        old: Sequence[File],
        new: pa.Table | None,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        marked: Sequence[tuple[File, RowMarks]] = (),
    ) -> None:
        self._check_ours()
        written = [*self._mark_deleted(marked), *(self._write_files(new) if new is not None and len(new) else [])]
        gone = [*old, *(file for file, _ in marked)]
        self._put("MERGE" if gone else "WRITE", gone, written, metadata, app, version)

    def _put(
        self,
        operation: str,
        old: Sequence[File],
        new: Sequence[File],
        metadata: Mapping[str, Any],
        app: str,
        version: int,
    ) -> None:
        """Commit files that are already written, in place of the files `old`."""
        now = _now_ms()
        actions = [self._commit_info(operation, metadata)]
        if app:
            actions.append({"txn": {"appId": app, "version": version, "lastUpdated": now}})
        actions += [file.remove_action(now) for file in old]
        if new:
            self._folder.sync()
        self._log.commit([*actions, *(file.add_action() for file in new)])

    def _mark_deleted(self, marked: Sequence[tuple[File, RowMarks]]) -> list[File]:
        """Return files with these rows marked as deleted."""
        if not marked:
            return []
        said = self._vectors.write(self._folder, [(file.vector, marks) for file, marks in marked])
        return [
            file.with_deleted_rows(self._count(file), vector) for (file, _), vector in zip(marked, said, strict=True)
        ]

    def _count(self, file: File) -> int:
        """Return how many rows a file has, including deleted ones."""
        if "numRecords" in file.stats:
            return int(file.stats["numRecords"])
        with self.open_file(file) as rows:
            return len(rows)

    def _write_files(self, rows: pa.Table) -> list[File]:
        """Write files with these rows. The contents are durable on return, the names are not yet."""
        fields = self._fields
        held = rename_columns(rows, _schema(fields, _physical))
        most = max(1, len(held) * FILE_BYTES // max(held.nbytes, 1))
        found = []
        for first in range(0, len(held), most):
            part = held.slice(first, most)
            name = f"part-00000-{uuid4()}-c000.zstd.parquet"
            size = self._folder.write(name, partial(_write_rows, part))
            found.append(File(name, size, _stats(part), None, _now_ms()))
            self.keep_written(self.identity_of(found[-1]), rows.slice(first, most))
        return found


def _write_rows(rows: pa.Table, file: IO[bytes]) -> None:
    # A dictionary of values that never repeat costs half of the writing time, and space.
    pq.write_table(rows, file, compression="zstd", row_group_size=ROW_GROUP, use_dictionary=repeating(rows))


def _names_of(file: File) -> list[str]:
    """Return the names of a file and of its deletion vector's file."""
    vector = file.vector
    found = [name_of(file)]
    if vector is not None and vector["storageType"] == "u":
        found.append(delta.vector_path(vector["pathOrInlineDv"]))
    elif vector is not None and vector["storageType"] == "p":
        raise HandOver("it has deletion vectors outside of its folder")
    return found


def _may_go_before(kept: Kept, now: float) -> float:
    """Return a time, in seconds since 1970: only files from before it may be removed."""
    return min(kept.since or 0.0, now - delta.REMOVED_KEPT_S)


def _last_parts(files: Iterable[File]) -> set[str]:
    """Return the names of files and of their vectors' files, without their folders."""
    return {name.rpartition("/")[2] for file in files for name in _names_of(file)}


class _Numbers:
    """Assigns column numbers, each only once."""

    def __init__(self, last: int) -> None:
        self.last = last

    def next(self) -> int:
        self.last += 1
        return self.last


def _info(actions: Sequence[Action]) -> Mapping[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _protocol(before: Action, schema: str, settings: Mapping[str, str]) -> Action:
    """Return the protocol that a table requires: what it required before, and its new features."""
    both = ["deletionVectors"] if settings.get(MARKS) == "true" else []
    both += ["columnMapping"] if is_mapped(settings) else []
    both += ["timestampNtz"] if '"timestamp_ntz"' in schema else []
    both += ["typeWidening"] if settings.get("delta.enableTypeWidening") == "true" else []
    if not both and before.get("minReaderVersion", 1) == 1:
        return before or {"minReaderVersion": 1, "minWriterVersion": 2}
    if both == ["columnMapping"] and before.get("minReaderVersion") == 2:
        return before
    # In a checkpoint a missing value may be NULL.
    reader, writer = before.get("readerFeatures") or [], before.get("writerFeatures") or ["invariants", "appendOnly"]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [*reader, *(f for f in both if f not in reader)],
        "writerFeatures": [*writer, *(f for f in both if f not in writer)],
    }


# ── conversion between schemas in Delta's JSON and Arrow schemas ──────────────────────────────────────────────


def _logical(field: Mapping[str, Any]) -> str:
    return str(field["name"])


def _physical(field: Mapping[str, Any]) -> str:
    return str(field["metadata"].get(_NAME, field["name"]))


@lru_cache(maxsize=256)
def _schemas(text: str) -> tuple[pa.Schema, pa.Schema]:
    """Return the Arrow schemas of a table's columns, under their own names and under those in its files. `text`: the
    schema in the table's metadata."""
    fields = json.loads(text)["fields"]
    return _schema(fields, _logical), _schema(fields, _physical)


def _schema(fields: Sequence[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> pa.Schema:
    """Return the Arrow schema of a table's columns, under their own names or under those in its files."""

    def column(field: Mapping[str, Any]) -> pa.Field:
        id_ = field["metadata"].get(COLUMN_ID) if name is _physical else None
        ids = None if id_ is None else {b"PARQUET:field_id": str(id_)}
        return pa.field(name(field), arrow(field["type"]), metadata=ids)

    def arrow(type_: Any) -> pa.DataType:
        if isinstance(type_, str):
            return type_of(delta.TYPES.get(type_, type_))
        match type_["type"]:
            case "array":
                return pa.list_(arrow(type_["elementType"]))
            case "map":
                return pa.map_(arrow(type_["keyType"]), arrow(type_["valueType"]))
            case _:
                return pa.struct([column(f) for f in type_["fields"]])

    return pa.schema([column(field) for field in fields])


def _field(column: pa.Field, numbers: _Numbers | None) -> dict[str, Any]:
    """Return the description of a new column. `numbers`: the numbers of the table's columns, if it has column
    mapping."""
    if numbers is None:
        return {"name": column.name, "type": _word(column.type), "nullable": True, "metadata": {}}
    metadata = {COLUMN_ID: numbers.next(), _NAME: f"col-{uuid4()}"}
    return {"name": column.name, "type": _word(column.type, numbers), "nullable": True, "metadata": metadata}


def _word(type_: pa.DataType, numbers: _Numbers | None = None) -> Any:
    """Return a type as Delta's JSON."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_list(type_):
        return {"type": "array", "elementType": _word(type_.value_type, numbers), "containsNull": True}
    if pa.types.is_map(type_):
        key, value = _word(type_.key_type, numbers), _word(type_.item_type, numbers)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pa.types.is_struct(type_):
        return {"type": "struct", "fields": [_field(field, numbers or _Numbers(0)) for field in type_]}
    return _WORDS[type_]


def _widen_field(field: Mapping[str, Any], word: str) -> dict[str, Any]:
    before = field["metadata"].get("delta.typeChanges", [])
    change = {"fromType": field["type"], "toType": word}
    return {**field, "type": word, "metadata": {**field["metadata"], "delta.typeChanges": [*before, change]}}


def _stats(rows: pa.Table) -> str:
    """Return statistics of a file's columns as the log stores them."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for name in rows.column_names[:INDEXED]:
        column = rows.column(name)
        type_ = column.type
        if not (pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_string(type_)):
            continue
        try:
            low, high = (end.as_py() for end in pc.min_max(column).values())
        except OverflowError:  # a date before the year 1, or after 9999: other readers have no text for it either
            continue
        if low is None or (isinstance(high, str) and max(len(low), len(high)) > TEXT_MAX):
            continue
        least[name], greatest[name] = (str(low), str(high)) if pa.types.is_date(type_) else (low, high)
    found = {
        "numRecords": len(rows),
        "minValues": least,
        "maxValues": greatest,
        "nullCount": {name: rows.column(name).null_count for name in rows.column_names[:INDEXED]},
        "tightBounds": True,
    }
    return json.dumps(found, separators=(",", ":"))
