"""Iceberg tables through PyIceberg: rows are changed by SQL in memory, and the files that they were in are replaced.

    plan     the files that may have rows with one of the range's keys, by their bounds in the manifests
    stand    their rows, without what deletes took away, as a table in DuckDB
    fold     the statement that Spark would say, on that table
    commit   new files instead of those of which a row changed or went, in one snapshot with our position

A commit names the snapshot that it was worked out from: if somebody else's came first, it fails and is done again from
what is there then. Tables and snapshots are the same as Spark's (`cdcflow.warehouse.formats.iceberg`): each engine goes
on where the other left off.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots, _MergeAppendFiles, _OverwriteFiles
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from sqlalchemy.exc import SQLAlchemyError

from cdcflow.errors import InvariantViolated
from cdcflow.local.session import DuckSession
from cdcflow.merge import statement
from cdcflow.merge.evolution import Act, Add, Describe, FormatColumn, Rename, Target, Widen
from cdcflow.merge.reduce import Layout
from cdcflow.merge.types import name_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.warehouse.formats import iceberg
from cdcflow.warehouse.formats.iceberg import CATALOG, RULES, TRANSACTIONS
from cdcflow.warehouse.paths import Warehouse
from cdcflow.warehouse.port import COMMITTED, HandOver, Snapshot

BUSY_S = 60
FILE = "_cdcflow_file"
"""Which file a row was in, while it stands in memory."""

SMALL_BYTES, SMALL_FILES_MAX = 4 << 20, 32
JOINED_BYTES_MAX = 64 << 20
"""So much at most is made one file at a time, beside what changes."""

_TYPES: dict[str, Callable[[], IcebergType]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "bigint": LongType,
    "float": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp_ntz": TimestampType,
    "timestamp": TimestamptzType,
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_BOUNDED = (IntegerType, LongType, DateType, TimestampType, TimestamptzType, StringType)
"""Key types whose order in manifests is that of SQL."""


def catalog(warehouse: Path) -> SqlCatalog:
    """The warehouse's catalog, which is made if it is not there."""
    uri = f"sqlite:///{quote(str(warehouse.resolve() / CATALOG))}?timeout={BUSY_S}"
    return SqlCatalog(iceberg.catalog_name(Warehouse(warehouse)), uri=uri, warehouse=str(warehouse.resolve()))


@dataclass(slots=True)
class _Standing:
    """Rows of a table in memory: those of `tasks`' files, each with the number of its file. The files with the numbers
    `again` are written again in any case."""

    name: str
    tasks: Sequence[FileScanTask]
    rows: Mapping[int, int]
    again: frozenset[int]


class _Change(Transaction):
    """A transaction that works out what a table would look like once for each update, and not at each look: PyIceberg
    copies every snapshot that is kept for it."""

    _seen: tuple[int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._seen is None or self._seen[0] != len(self._updates):
            self._seen = len(self._updates), super().table_metadata
        return self._seen[1]


class _Replaced(_OverwriteFiles):
    """An overwrite that lets go of manifests in which nothing lives any more; PyIceberg's takes them along for ever."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [
            manifest
            for manifest in super()._process_manifests(manifests)
            if manifest.added_snapshot_id == self._snapshot_id
            or manifest.has_added_files()
            or manifest.has_existing_files()
        ]


class IcebergTable:
    """Implements `cdcflow.warehouse.port.CurrentTable`. `close` it."""

    def __init__(
        self,
        catalog: SqlCatalog,
        warehouse: Path,
        path: Sequence[str],
        bytes_max: int | None = None,
        pinned: dict[Path, tuple[int, int]] | None = None,
    ) -> None:
        """`bytes_max`: what more bytes of files would have to be read for is handed over. `pinned`: by location, the
        version and cut that were tagged last."""
        self._catalog = catalog
        self._identifier = iceberg.identifier(path)
        self._location = warehouse.resolve().joinpath(*path)
        self._bytes_max = bytes_max
        self._pinned = {} if pinned is None else pinned
        self._loaded: Table | None = None
        self._standing: _Standing | None = None

    @cached_property
    def session(self) -> DuckSession:
        return DuckSession()

    def close(self) -> None:
        if "session" in self.__dict__:
            self.session.close()

    def snapshot(self) -> Snapshot | None:
        self._standing = self._loaded = None
        if not self._location.exists():  # nor is it there when somebody moved its folder away
            return None
        try:
            table = self._loaded = self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None
        newest = table.current_snapshot()
        return Snapshot(
            id=str(table.metadata.table_uuid),
            version=_version(newest),
            properties=dict(table.properties),
            transactions=_transactions(table, newest),
            columns=tuple(
                FormatColumn(f.name, f.field_id, iceberg.type_sql(str(f.field_type))) for f in table.schema().fields
            ),
            is_empty=newest is None or _said(newest, "total-data-files") == "0",
        )

    def newest_commit(self) -> Mapping[str, Any] | None:
        newest = self._table.current_snapshot()
        said = None if newest is None else _said(newest, COMMITTED)
        if said is None:
            return None
        found: Mapping[str, Any] = json.loads(said)
        return found

    def edits_since(self, version: int) -> list[str]:
        return [
            f"{_operation(snapshot)}@{snapshot.sequence_number}"
            for snapshot in _ancestors(self._table, self._table.current_snapshot())
            if _version(snapshot) > version
            and _operation(snapshot) != Operation.REPLACE.value
            and _said(snapshot, COMMITTED) is None
        ]

    def pin(self, version: int, cut: int) -> None:
        if self._pinned.get(self._location) == (version, cut) or self.snapshot() is None:
            return
        self._check_ours()
        found = next((s for s in self._table.snapshots() if _version(s) == version), None)
        if found is not None:
            with self._changing() as change:
                self._tag(change, found.snapshot_id, cut)

    def make(self, target: Target, source: str, begun: int, metadata: Mapping[str, Any]) -> None:
        columns = [(c.name, _type(c.type)) for c in target.columns]
        columns += [(OFFSET, LongType()), (MISSING, _list(StringType()))]
        self.create(columns, statement.properties(target, source, begun))

    def create(self, columns: Sequence[tuple[str, IcebergType]], properties: Mapping[str, str]) -> None:
        """Create the table, also where the catalog still has its name and the folder is gone."""
        try:
            self._catalog.create_namespace_if_not_exists(self._identifier[:1])
        except SQLAlchemyError:
            if not self._catalog.namespace_exists(self._identifier[:1]):  # else another table's thread was quicker
                raise
        with contextlib.suppress(NoSuchTableError):
            self._catalog.drop_table(self._identifier)
        # The catalog gives each part a number of its own, in this order.
        fields = [NestedField(i, name, type_, required=False) for i, (name, type_) in enumerate(columns, start=1)]
        self._loaded = self._catalog.create_table(
            self._identifier,
            Schema(*fields),
            location=str(self._location),
            properties={**RULES.properties, **properties},
        )

    def begin(self, begun: int, metadata: Mapping[str, Any]) -> None:
        with self._changing() as change:
            change.set_properties({statement.BEGUN_PROPERTY: str(begun)})

    def follow(self, act: Act, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        if app and self._has(app, version):
            return
        match act:
            case Describe(target):
                with self._changing() as change:
                    change.set_properties({statement.TARGET_PROPERTY: target.to_json()})
            case Add(column):
                self.add([(column.name, _type(column.type))])
            case Rename(old, new):
                with self._changing() as change, change.update_schema() as update:
                    update.rename_column((old,), new)
            case Widen(name, type_):
                with self._changing() as change, change.update_schema() as update:
                    update.update_column((name,), field_type=_type(type_))
            case _:
                self._update(act, metadata, app, version)

    def add(self, columns: Sequence[tuple[str, IcebergType]]) -> None:
        """Add columns, behind those that are there."""
        with self._changing() as change, change.update_schema() as update:
            for name, type_ in columns:
                update.add_column((name,), type_)

    def standing(self, layout: Layout, changes: str) -> str:
        if self._standing is None:
            self._standing = self._stand(self._with_keys(layout, changes) if layout.target.key else None)
        return self._standing.name

    def fold(self, folding: statement.Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        if self._has(app, version):
            return
        layout = folding.layout
        if folding.sweep_before:
            self._standing = self._stand(None)  # whatever the keys are
        name = self.standing(layout, folding.changes)
        ((first,),) = self.session.rows(f"SELECT min(o) FROM {folding.changes}")  # noqa: S608  a name of ours
        self.session.rows(folding.sql(name))
        key = [name_sql(layout.target.columns[i].name) for i in layout.key] if layout.target.key else []
        self._commit(metadata, app, version, first, key)

    def sweep(self, before: int, metadata: Mapping[str, Any], app: str, version: int) -> None:
        if self._has(app, version):
            return
        self._standing = self._stand(None)
        self.session.rows(statement.sweep(self._standing.name, before))
        self._commit(metadata, app, version, None, [])

    def rows_that_miss(self) -> int:
        if self.snapshot() is None:
            return 0
        self._check_ours()
        found = self._table.scan(selected_fields=(MISSING,)).to_arrow().column(MISSING)
        return int(len(found) - found.null_count)

    def rows(self) -> pa.Table:
        """Everything that is in the table, which must be small."""
        return self._table.scan().to_arrow()

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return _arrow(self._table.schema())

    def append(self, rows: pa.Table, metadata: Mapping[str, Any], keep: int) -> None:
        """Add rows in one commit, to a table of which only the newest `keep` versions are needed. Rows have the
        table's schema."""
        kept = list(itertools.islice(_ancestors(self._table, self._table.current_snapshot()), keep - 1))
        tagged = {ref.snapshot_id for ref in self._table.refs().values()} | {s.snapshot_id for s in kept}
        old = [s.snapshot_id for s in self._table.snapshots() if s.snapshot_id not in tagged]
        with self._changing() as change:
            self._snapshot_of(change, [], rows, metadata, "", 0)
            if old:
                ExpireSnapshots(change).by_ids(old).commit()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _table(self) -> Table:
        if self._loaded is None:
            raise NoSuchTableError(".".join(self._identifier))
        return self._loaded

    def _has(self, app: str, version: int) -> bool:
        return _transactions(self._table, self._table.current_snapshot()).get(app, version - 1) >= version

    def _changing(self) -> _Change:
        # A commit that fails was worked out from what is no longer there; done again as it is it would be wrong.
        self._table.metadata.properties["commit.retry.num-retries"] = "0"
        return _Change(self._table)

    def _tag(self, change: Transaction, snapshot: int, cut: int) -> None:
        tag = iceberg.tag(cut)
        there = self._table.refs().get(tag)
        if there is None or there.snapshot_id != snapshot:
            with ManageSnapshots(change) as manage:
                if there is not None:
                    manage.remove_tag(tag)
                manage.create_tag(snapshot, tag)

    def _with_keys(self, layout: Layout, changes: str) -> Callable[[Sequence[FileScanTask]], list[FileScanTask]]:
        """Those files that may have a row with one of the keys of a range."""
        at = layout.key[0]
        field = self._table.schema().find_field(layout.target.columns[at].name)

        def chosen(tasks: Sequence[FileScanTask]) -> list[FileScanTask]:
            if len(tasks) < 2 or not isinstance(field.field_type, _BOUNDED):
                return list(tasks)
            ends = [_bounds(task, field.field_id, field.field_type) for task in tasks]
            known = {n: found for n, found in enumerate(ends) if found is not None}
            bounds = self.session.take("bounds", _bounds_table(known, field))
            inside = f"c.c{at} >= b.least AND c.c{at} <= b.greatest"
            sql = f"SELECT n FROM {bounds} b WHERE EXISTS (SELECT 1 FROM {changes} c WHERE {inside})"  # noqa: S608  ours
            hit = {n for (n,) in self.session.rows(sql)}
            return [task for n, task in enumerate(tasks) if n not in known or n in hit]

        return chosen

    def _check_ours(self) -> None:
        """HandOver where PyIceberg cannot write."""
        if self._table.metadata.format_version != 2 or not self._table.spec().is_unpartitioned():
            raise HandOver("it is partitioned, or of another version than Iceberg's 2")

    def _stand(self, choose: Callable[[Sequence[FileScanTask]], list[FileScanTask]] | None) -> _Standing:
        self._check_ours()
        table = self._table
        if FILE in table.schema().column_names:
            raise HandOver(f"it has a column called {FILE}")
        try:
            tasks = list(table.scan().plan_files())
        except ValueError as error:
            raise HandOver("it has deletes that only Spark reads") from error
        small = _small(tasks)
        if choose is not None:
            tasks = choose(tasks)
        size = sum(map(_size, tasks))
        if self._bytes_max is not None and size > self._bytes_max:
            raise HandOver(f"{size >> 20} MB of its files would have to be read")
        joined = {task.file.file_path for task in small}
        chosen = {task.file.file_path for task in tasks}
        tasks = [*tasks, *(task for task in small if task.file.file_path not in chosen)]
        schema = table.schema()
        scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
        parts = [_arrow(schema).empty_table().append_column(FILE, pa.array([], pa.int32()))]
        for number, task in enumerate(tasks):
            rows = scan.to_table([task]).cast(_arrow(schema))
            parts.append(rows.append_column(FILE, pa.array([number] * len(rows), pa.int32())))
        name = self.session.take("standing", pa.concat_tables(parts))
        again = frozenset(n for n, task in enumerate(tasks) if task.file.file_path in joined)
        return _Standing(name, tasks, {n: len(rows) for n, rows in enumerate(parts[1:])}, again)

    def _update(self, act: Act, metadata: Mapping[str, Any], app: str, version: int) -> None:
        """An act that changes rows."""
        self._standing = standing = self._stand(None)
        changed = 0
        for sql in statement.alter(standing.name, RULES, act):
            ((count,),) = self.session.rows(sql)
            changed += count
        if changed:
            self._replace(standing.tasks, self._rows(standing.name, "true", []), metadata, app, version)
        elif app:
            self._replace([], None, metadata, app, version)
        self._standing = None

    def _commit(
        self, metadata: Mapping[str, Any], app: str, version: int, first: int | None, key: Sequence[str]
    ) -> None:
        """Write what has changed of the rows that stand in memory: `first` is the least offset of a changed row."""
        standing = self._standing
        if standing is None:
            raise InvariantViolated(f"changing {'.'.join(self._identifier)}: its rows were not read")
        sql = f"SELECT {FILE}, count(*), max({OFFSET}) FROM {standing.name} WHERE {FILE} IS NOT NULL GROUP BY {FILE}"  # noqa: S608  names of ours
        left = {number: (count, newest) for number, count, newest in self.session.rows(sql)}
        touched = [
            number
            for number, count in standing.rows.items()
            if number in standing.again
            or left.get(number, (0, None))[0] != count
            or (first is not None and count and left[number][1] is not None and left[number][1] >= first)
        ]
        listed = ", ".join(map(str, touched)) or "NULL"
        rows = self._rows(standing.name, f"{FILE} IS NULL OR {FILE} IN ({listed})", key)
        self._replace([standing.tasks[number] for number in touched], rows, metadata, app, version)
        self._standing = None

    def _rows(self, name: str, where: str, key: Sequence[str]) -> pa.Table:
        schema = _arrow(self._table.schema())
        order = f" ORDER BY {', '.join(key)}" if key else ""
        listed = ", ".join(map(name_sql, schema.names))
        return self.session.arrow(f"SELECT {listed} FROM {name} WHERE {where}{order}").cast(schema)  # noqa: S608  quoted

    def _replace(
        self, old: Sequence[FileScanTask], new: pa.Table | None, metadata: Mapping[str, Any], app: str, version: int
    ) -> None:
        """One commit: without the files `old`, with the rows `new`, and with what we say of it."""
        with self._changing() as change:
            snapshot = self._snapshot_of(change, old, new, metadata, app, version)
            # The version that the next cut shows, most likely; a cut that shows it is then published without a commit.
            self._tag(change, snapshot, metadata["cut"])
        self._pinned[self._location] = _version(self._table.current_snapshot()), metadata["cut"]

    def _snapshot_of(
        self,
        change: Transaction,
        old: Sequence[FileScanTask],
        new: pa.Table | None,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
    ) -> int:
        """Put a snapshot into a commit. Returns its id."""
        table = self._table
        known = dict(_transactions(table, table.current_snapshot()))
        if app:
            known[app] = version
        said = {
            COMMITTED: json.dumps(metadata, separators=(",", ":")),
            TRANSACTIONS: json.dumps(known, separators=(",", ":")),
        }
        producer: _Replaced | _MergeAppendFiles
        if old:
            producer = _Replaced(Operation.OVERWRITE, change, table.io, snapshot_properties=said)
        else:
            producer = change.update_snapshot(snapshot_properties=said).merge_append()
        with producer:
            for task in old:
                producer.delete_data_file(task.file)
            if new is not None and len(new):
                added = _dataframe_to_data_files(change.table_metadata, new, table.io, write_uuid=producer.commit_uuid)
                for file in added:
                    producer.append_data_file(file)
        return producer.snapshot_id


def _version(snapshot: IcebergSnapshot | None) -> int:
    return 0 if snapshot is None else snapshot.sequence_number or 0


def is_conflict(error: BaseException) -> bool:
    """Whether a commit failed because somebody else's came first."""
    return isinstance(error, CommitFailedException | TableAlreadyExistsError) or "database is locked" in str(error)


def _type(text: str) -> IcebergType:
    """Iceberg's type from Spark's text of it."""
    if (made := _TYPES.get(text)) is not None:
        return made()
    if (decimal := _DECIMAL.fullmatch(text)) is not None:
        return DecimalType(int(decimal[1]), int(decimal[2]))
    if text.startswith("array<"):
        return _list(_type(text[len("array<") : -1]))
    raise HandOver(f"it has a column of type {text}")


def _list(item: IcebergType) -> ListType:
    return ListType(element_id=-1, element=item, element_required=False)


def _arrow(schema: Schema) -> pa.Schema:
    """A schema as Arrow's, without what Iceberg says beside it."""
    return schema_to_pyarrow(schema, include_field_ids=False)


def _bounds(task: FileScanTask, field: int, type_: IcebergType) -> tuple[Any, Any] | None:
    """A column's least and greatest value in a file; None where the manifest does not say."""
    low, high = ((found or {}).get(field) for found in (task.file.lower_bounds, task.file.upper_bounds))
    if low is None or high is None:
        return None
    return from_bytes(type_, low), from_bytes(type_, high)  # type: ignore[arg-type]  # one of the plain types


def _bounds_table(known: Mapping[int, tuple[Any, Any]], field: NestedField) -> pa.Table:
    wanted = _arrow(Schema(field)).field(0).type
    stored = pa.string() if pa.types.is_large_string(wanted) or pa.types.is_string(wanted) else pa.int64()
    if pa.types.is_date(wanted) or pa.types.is_int32(wanted):
        stored = pa.int32()
    ends = [pa.array([pair[i] for pair in known.values()], stored).cast(wanted) for i in (0, 1)]
    return pa.table([pa.array(list(known), pa.int32()), *ends], names=["n", "least", "greatest"])


def _small(tasks: Sequence[FileScanTask]) -> list[FileScanTask]:
    """Small files to make one of, where there are many: each cycle that only adds rows leaves one."""
    found = sorted((t for t in tasks if t.file.file_size_in_bytes < SMALL_BYTES), key=_size)
    if len(found) <= SMALL_FILES_MAX:
        return []
    sizes = itertools.accumulate(map(_size, found))
    return [task for task, total in zip(found, sizes, strict=True) if total <= JOINED_BYTES_MAX]


def _size(task: FileScanTask) -> int:
    return int(task.file.file_size_in_bytes)


def _operation(snapshot: IcebergSnapshot) -> str:
    return "" if snapshot.summary is None else snapshot.summary.operation.value


def _said(snapshot: IcebergSnapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)


def _ancestors(table: Table, snapshot: IcebergSnapshot | None) -> Iterator[IcebergSnapshot]:
    """A snapshot and those that it came of, the newest first, as far as they are kept."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def _transactions(table: Table, snapshot: IcebergSnapshot | None) -> Mapping[str, int]:
    for one in _ancestors(table, snapshot):
        said = _said(one, TRANSACTIONS)
        if said is not None:
            found: Mapping[str, int] = json.loads(said)
            return found
    return {}
