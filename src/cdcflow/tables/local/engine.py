"""The engine that merges in this process: DuckDB folds, and the table formats commit. For small ranges, without
Java."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.model.sqltypes import DECIMAL_TEXT, has_two_zeros, list_items, stored_type
from cdcflow.model.table import Table
from cdcflow.tables.cut import (
    EXPIRED_PROPERTY,
    LATER_COLUMNS,
    MEMBERS,
    PUBLICATION,
    Cut,
    ListedCut,
    already_published,
    newest_of_each,
)
from cdcflow.tables.folders import WarehouseFolder
from cdcflow.tables.formats import rules_of
from cdcflow.tables.job import text_files
from cdcflow.tables.job.failures import kinds, of_system
from cdcflow.tables.job.job import TABLES_AT_ONCE
from cdcflow.tables.job.lease import folder_lease, upkeep_folder_lease
from cdcflow.tables.job.store_lease import store_lease, upkeep_store_lease
from cdcflow.tables.local.deriver import LocalDeriver
from cdcflow.tables.local.mapped_memory import RESIDENT, RESIDENT_BYTES_MAX
from cdcflow.tables.local.table_files import HeldFiles
from cdcflow.tables.local.tables import FileTable, LocalTables
from cdcflow.tables.local.warehouse_folder import open_folder
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.paths import CUTS, Warehouse
from cdcflow.tables.port import Failure, HandOver, Kept, Later, Shown, TableSnapshot
from cdcflow.tables.segments import InputFile, present

KEPT = 10
"""How many versions the table of cuts keeps. Its rows never change, so the latest version has all of them."""

VERSIONS_KEPT_S = 3600.0
"""Versions of the table of cuts that are younger than this are kept, because readers may be using them."""

DUCKDB_BYTES_MIN = 64 << 20
"""The minimum of DuckDB's memory. With less it cannot sort or join, even with temporary files."""

_DAY = r"\d{4}-\d\d-\d\d"
_MOMENT = rf"{_DAY} \d\d:\d\d:\d\d(?:\.\d{{1,6}})?"
_SAID_ALIKE: tuple[tuple[str, str], ...] = (
    (r"boolean|tinyint|smallint|int|bigint|float|double|string", r".*"),
    (r"decimal\(.*", r"-?\d+(?:\.\d+)?"),
    (r"binary", r"\\x.*"),
    (r"date", _DAY),
    (r"timestamp_ntz", _MOMENT),
    (r"timestamp", rf"{_MOMENT}\+00"),
)
"""Types, and forms of constants in the source's own text, for which Spark and DuckDB read the same value."""

RESIDENT_PART = 8
"""Indexes of files keep their pages up to the n-th part of the process's memory."""


class LocalEngine:
    """Implements `cdcflow.tables.port.Engine`."""

    name = "local"
    reads_in_place = False
    compacts_concurrently = False

    def __init__(
        self,
        warehouse: Warehouse | Path | str,
        format_: str,
        changes_max: int | None = None,
        bytes_max: int | None = None,
        memory_max: int | None = None,
    ) -> None:
        """Open the engine of a warehouse. A table is left to another engine if it has more than `changes_max` changes,
        or if more than `bytes_max` bytes of its files would have to be held in memory. `memory_max`: how much memory
        the process may have; DuckDB gets a part of it, and writes temporary files beyond that."""
        self._warehouse = Warehouse.of(warehouse)
        self._folder = open_folder(self._warehouse)
        self._is_safe = False
        self._changes_max = changes_max
        self._duckdb_bytes = None if memory_max is None else _duckdb_bytes(memory_max)
        if memory_max is not None:
            RESIDENT.bytes_max = min(RESIDENT_BYTES_MAX, memory_max // RESIDENT_PART)
        self._tables = _tables(format_, self._warehouse, bytes_max)
        self._held: dict[tuple[str, ...], HeldFiles] = {}
        self._deriver: LocalDeriver | None = None
        self.rules: Format = rules_of(format_)

    def close(self) -> None:
        """Close what the engine's tables have open."""
        if self._deriver is not None:
            self._deriver.close()
        self._tables.close()
        self._folder.close()

    def lease(self) -> AbstractContextManager[None]:
        if self._warehouse.is_local:
            return folder_lease(self._warehouse.folder)
        self._check_commits()
        return store_lease(self._folder)

    def upkeep_lease(self) -> AbstractContextManager[None]:
        if self._warehouse.is_local:
            return upkeep_folder_lease(self._warehouse.folder)
        self._check_commits()
        return upkeep_store_lease(self._folder)

    def _check_commits(self) -> None:
        """Check once that the store lets only one of two processes commit a version.

        Raises:
            ConfigurationError: it lets both.
        """
        if self._is_safe:
            return
        if not self._folder.is_safe():
            raise ConfigurationError(
                f"merging into {self._warehouse}: this store has no conditional writes, so two merges could lose each"
                " other's commits",
                remedy="use a store with conditional writes (If-None-Match), Iceberg tables with a catalog, or a"
                " folder",
                runbook="store-unsuitable",
            )
        self._is_safe = True

    def readable_files(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        return present(layout, files, room)

    def defer_checkpoints(self) -> Later | None:
        return self._tables.defer_checkpoints()

    def cuts(self) -> LocalCuts:
        return LocalCuts(self._tables, self._folder)

    def deriver(self) -> LocalDeriver:
        if self._deriver is None:
            self._deriver = LocalDeriver(self.table, self._duckdb_bytes)
        return self._deriver

    def table(self, path: Sequence[str]) -> FileTable[Any]:
        found = self._tables.table(path)
        found.memory_bytes = self._duckdb_bytes
        found.held = self._held.setdefault(tuple(path), found.held)
        return found

    def declines(
        self, before: TableSnapshot | None, files: Sequence[InputFile], mode: ModeRules = CURRENT
    ) -> str | None:
        changes = sum(f.file.rows for f in files)
        if self._changes_max is not None and changes > self._changes_max:
            return f"it has {changes} changes, more than {self._changes_max}"
        return next((why for shape in {f.shape for f in files} if (why := _strange(shape, mode)) is not None), None)

    def read_text(self, path: Sequence[str]) -> str | None:
        return text_files.read_text(self._folder, path)

    def write_text(self, path: Sequence[str], text: str) -> None:
        text_files.write_text(self._folder, path, text)

    def is_conflict(self, error: BaseException) -> bool:
        return self._tables.is_conflict(error)

    def failure(self, error: Exception) -> Failure | None:
        return of_local(error)


def _duckdb_bytes(memory_max: int) -> int:
    """Return how much memory DuckDB may use for one table. The tables that are merged at the same time share half of
    the process's memory, and Arrow has the rest."""
    return max(memory_max // 2 // TABLES_AT_ONCE, DUCKDB_BYTES_MIN)


def _strange(shape: Table, mode: ModeRules) -> str | None:
    """Return why only Spark can merge a table of this shape correctly; `None` if this engine can."""
    for column in shape.columns:
        try:
            held = stored_type(column.type.arrow)
        except ConfigurationError:
            return None  # no engine can, and the merge reports it
        if "struct<" in held.table or DECIMAL_TEXT in (held.convert or ""):
            return f"its column {column.name} is of a type that is merged by Spark only ({column.type.source})"
        if mode.keeps_changes:
            continue  # nothing is compared or filled in
        if has_two_zeros(held.table) and (not shape.key or column.name in shape.key):
            return f"its key has a column of floating-point numbers ({column.name})"
        if column.missing is not None and not _is_said_alike(column.missing, held.table):
            return f"its column {column.name} was added with a default of type {column.type.source}"
    return None


def _is_said_alike(text: str, table_type: str) -> bool:
    """Whether Spark and DuckDB read the same value of this type from a constant."""
    if table_type.startswith("array<"):
        items = list_items(text)
        return items is not None and all(i is None or _is_said_alike(i, table_type[6:-1]) for i in items)
    return any(re.fullmatch(types, table_type) and re.fullmatch(forms, text, re.DOTALL) for types, forms in _SAID_ALIKE)


def _tables(format_: str, warehouse: Warehouse, bytes_max: int | None) -> LocalTables:
    # Imported here, so that a format does not need the other's packages.
    if format_ == "iceberg":
        from cdcflow.tables.local.iceberg import IcebergTables

        return IcebergTables(warehouse, bytes_max)
    from cdcflow.tables.local.delta import DeltaTables

    return DeltaTables(warehouse, bytes_max)


_TEXTS = pa.map_(pa.string(), pa.string())
_LATER = pa.schema([(name, _TEXTS) for name in LATER_COLUMNS])
_MEMBERS = pa.field(MEMBERS, _TEXTS)
_ENTRY = pa.struct(
    [("path", pa.string()), ("version", pa.int64()), ("complete", pa.bool_()), ("generation", pa.int64())]
)
_COLUMNS = pa.schema(
    [
        ("cut", pa.int64()),
        ("log_id", pa.string()),
        ("offset", pa.int64()),
        ("position", pa.string()),
        ("commit_clock", pa.timestamp("us", "UTC")),
        ("published", pa.timestamp("us", "UTC")),
        ("tables", pa.map_(pa.string(), _ENTRY)),
        *_LATER,
    ]
)


class LocalCuts:
    """Implements `cdcflow.tables.port.Cuts`, on the same table that Spark uses."""

    def __init__(self, tables: LocalTables, folder: WarehouseFolder) -> None:
        self._tables = tables
        self._folder = folder
        self._table = tables.table((CUTS,))
        self._version: int | None = None
        self._parts: dict[tuple[str, int], pa.Table] = {}

    def drop_torn(self) -> None:
        self._table.drop_torn()

    def newest(self) -> Cut | None:
        with _only_for_spark():
            there = self._table.snapshot()
            self._version = _version(there)
            if there is None:
                return None
            said = self._table.newest_commit()
            if said is not None and "published" in said:
                return Cut.from_json(said["published"])
            return _newest(self._table.rows())

    def cut_by_number(self, cut: int) -> Cut | None:
        with _only_for_spark():
            if self._table.snapshot() is None:
                return None
            rows = self._table.rows_near("cut", cut)
        return _newest(rows.filter(pc.equal(rows.column("cut"), cut)))

    def list_cuts(self) -> list[ListedCut]:
        with _only_for_spark():
            if self._table.snapshot() is None:
                return []
            rows = self._rows()
        counts = pc.list_value_length(_as_lists(rows.column("ids"))).fill_null(0).to_pylist()
        plain = rows.select(["cut", "offset", "position"]).to_pylist()
        clocks, published = (rows.column(name).cast(pa.int64()).to_pylist() for name in ("commit_clock", "published"))
        return newest_of_each(
            ListedCut(**row, commit_clock=clock, published=at, tables=count)
            for row, clock, at, count in zip(plain, clocks, published, counts, strict=True)
        )

    def latest_expired(self) -> int:
        with _only_for_spark():
            there = self._table.snapshot()
        return 0 if there is None else int(there.properties.get(EXPIRED_PROPERTY, "0"))

    def tables_shown(self) -> Mapping[str, Shown]:
        with _only_for_spark():
            rows = None if self._table.snapshot() is None else self._rows()
        return {} if rows is None else _shown_tables(rows)

    def tidy(self, oldest: int) -> None:
        with _only_for_spark():
            if self._table.snapshot() is None:
                return
            rows = self._rows()
            kept = rows.filter(pc.greater_equal(rows.column("cut"), oldest))
            if len(kept) < len(rows):
                # This first, so that a reader of an expired cut gets the reason.
                self._table.describe({EXPIRED_PROPERTY: str(oldest - 1)}, {})
            if len(kept) < len(rows) or self._table.has_many_files:
                self._table.rewrite(kept, {"upkeep": "cuts", "oldest": oldest}, KEPT)
            self._table.let_go(Kept({}, 0, time.time() - VERSIONS_KEPT_S))

    def _rows(self) -> pa.Table:
        """Return all rows of the latest version. Files that were read before are not read again: otherwise a listing
        would read a file for each cut since the last compaction, and steps that follow a listing should begin soon."""
        schema = self._table.schema
        before, self._parts = self._parts, {}
        for file in self._table.files():
            part = self._table.path_of(file), self._table.deletions(file).dead
            known = before.get(part)
            is_same = known is not None and known.schema.equals(schema)
            self._parts[part] = known if is_same else self._table.rows_of([file])
        return pa.concat_tables([schema.empty_table(), *self._parts.values()])

    def publish(self, cut: Cut) -> None:
        with _only_for_spark():
            there = self._table.snapshot()
            if self._version is not None and self._version != _version(there):
                raise already_published(cut)
            try:
                self._publish(cut, there)
            except Exception as error:
                if self._tables.is_conflict(error):
                    raise already_published(cut) from error
                raise
            self._version = _version(self._table.own_snapshot())
            # This also makes the deletion of SQLite's journal durable: if it reappeared, it would undo the commit.
            self._folder.sync()

    def _publish(self, cut: Cut, there: TableSnapshot | None) -> None:
        said = {"log": cut.log_id, "cut": cut.cut}
        has_members = any(table.members for table in cut.tables.values())
        if there is None:
            self._table.create(_COLUMNS.append(_MEMBERS) if has_members else _COLUMNS, {}, said)
        else:
            known = {c.name for c in there.columns}
            wanted = [*_LATER, *([_MEMBERS] if has_members else [])]
            if lacking := [field for field in wanted if field.name not in known]:
                self._table.add(pa.schema(lacking), said)
        number = 1 + (0 if there is None else there.transactions.get(PUBLICATION, 0))
        published = {**said, "published": cut.to_json()}
        self._table.append(self._row(cut), published, PUBLICATION, number, KEPT)

    def _row(self, cut: Cut) -> pa.Table:
        entries = {
            name: {"path": t.path, "version": t.version, "complete": t.complete, "generation": t.generation}
            for name, t in cut.tables.items()
        }
        row = {
            "cut": cut.cut,
            "log_id": cut.log_id,
            "offset": cut.offset,
            "position": cut.position,
            "commit_clock": cut.commit_clock,
            "published": datetime.now(UTC),
            "tables": list(entries.items()),
            "ids": [(name, t.id) for name, t in cut.tables.items()],
            "states": [(name, t.state) for name, t in cut.tables.items()],
            "left_out": list(cut.left_out.items()),
            "tags": [(name, t.tag) for name, t in cut.tables.items()],
            "logs": [(log_id, part.to_json()) for log_id, part in cut.logs.items()],
            "commits": [(name, t.commit) for name, t in cut.tables.items()],
            MEMBERS: [(name, t.members_json) for name, t in cut.tables.items() if t.members],
        }
        return pa.Table.from_pylist([row], schema=self._table.schema)


def _shown_tables(rows: pa.Table) -> dict[str, Shown]:
    """Return the tables that these cuts show. There may be millions of entries, so no Python object is created for one,
    except for the numbers of versions in the result."""
    tables, ids = _entries(rows.column("tables")), _entries(rows.column("ids"))
    fields = {name: tables["value"].field(name) for name in ("path", "version")}
    given = pa.table({"row": tables["row"], "name": tables["name"], **fields})
    known = pa.table({"row": ids["row"], "name": ids["name"], "id": ids["value"]})
    entries = given.join(known, ["row", "name"], join_type="left outer").select(
        ["row", "name", "path", "version", "id"]
    )
    entries = entries.set_column(4, "id", pc.fill_null(entries.column("id"), ""))
    ordered = entries.sort_by("row")
    paths = ordered.group_by("name", use_threads=False).aggregate([("path", "first")])
    versions = ordered.group_by(["name", "id"], use_threads=False).aggregate([("version", "distinct")])
    found: dict[str, dict[str, frozenset[int]]] = {}
    for group in versions.to_pylist():
        found.setdefault(group["name"], {})[group["id"]] = frozenset(group["version_distinct"])
    return {path["name"]: Shown(path["path_first"], found[path["name"]]) for path in paths.to_pylist()}


def _entries(column: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return the entries of a column of maps: the number of the `row`, the `name`, and the `value`."""
    lists = _as_lists(column)
    entries = lists.flatten()
    return {"row": pc.list_parent_indices(lists), "name": entries.field("name"), "value": entries.field("value")}


def _as_lists(column: pa.ChunkedArray) -> pa.ListArray:
    """Return a column of maps as lists, which Arrow has functions for."""
    entry = pa.struct([("name", column.type.key_type), ("value", column.type.item_type)])
    return pc.cast(column.combine_chunks(), pa.list_(entry))


def _newest(rows: pa.Table) -> Cut | None:
    """Return the cut with the greatest number among these rows, in its latest publication; `None` if there are no
    rows."""
    newest = rows.sort_by([("cut", "descending"), ("published", "descending")]).slice(0, 1)
    clocks = newest.column("commit_clock").cast(pa.int64()).to_pylist()
    found = newest.to_pylist(maps_as_pydicts="strict")
    return Cut.from_row(found[0], clocks[0]) if found else None


def _version(there: TableSnapshot | None) -> int:
    return -1 if there is None else there.version


@contextmanager
def _only_for_spark() -> Iterator[None]:
    try:
        yield
    except HandOver as reason:
        raise ConfigurationError(
            f"merging without Spark: only Spark can write the table of published cuts: {reason}",
            remedy="set merge.engine to spark",
            runbook="merge-session",
        ) from reason


def of_local(error: Exception) -> Failure | None:
    """Return what an error of this engine means for the table at which it occurred (see
    `tables.port.Engine.failure`)."""
    if isinstance(error, MemoryError):
        return None
    return of_system(error) or Failure("fault", kinds(error))
