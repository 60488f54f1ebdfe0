"""The engine that merges in this process: DuckDB folds, PyIceberg commits. For small ranges, and without Java."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import (
    BooleanType,
    IcebergType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from cdcflow.changelog.layout import Layout
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.local import FORMAT
from cdcflow.local.iceberg import IcebergTable, catalog, is_conflict
from cdcflow.merge.format import Format
from cdcflow.merge.types import DECIMAL_TEXT, has_two_zeros, stored
from cdcflow.model.table import Table
from cdcflow.warehouse.cut import LATER_COLUMNS, Cut
from cdcflow.warehouse.formats import rules_of
from cdcflow.warehouse.lease import folder_lease
from cdcflow.warehouse.paths import CUTS
from cdcflow.warehouse.port import Snapshot
from cdcflow.warehouse.segments import InputFile, present

KEPT = 10
"""So many versions of the table of cuts are kept: its rows are never changed, so the newest one has all of them."""

_SAID_ALIKE = ("boolean", "tinyint", "smallint", "int", "bigint", "decimal(", "string")
"""Types of which Spark and DuckDB read the same value from the source's text of a constant."""


class LocalEngine:
    """Implements `cdcflow.warehouse.port.Engine`."""

    name = "local"
    reads_in_place = False
    rules: Format = rules_of(FORMAT)

    def __init__(self, warehouse: Path, changes_max: int | None = None, bytes_max: int | None = None) -> None:
        """`changes_max` and `bytes_max`: a table with more changes than so many, or more of whose files would have to
        be read, is declined."""
        self._warehouse = warehouse
        self._changes_max = changes_max
        self._bytes_max = bytes_max
        self._pinned: dict[Path, tuple[int, int]] = {}

    @cached_property
    def _catalog(self) -> SqlCatalog:
        return catalog(self._warehouse)

    def close(self) -> None:
        """Let go of the catalog."""
        if "_catalog" in self.__dict__:
            self._catalog.close()

    def lease(self) -> AbstractContextManager[None]:
        return folder_lease(self._warehouse)

    def located(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        return present(layout, files, room)

    def cuts(self) -> LocalCuts:
        return LocalCuts(self.table((CUTS,)))

    def table(self, path: Sequence[str]) -> IcebergTable:
        return IcebergTable(self._catalog, self._warehouse, path, self._bytes_max, self._pinned)

    def declines(self, before: Snapshot | None, files: Sequence[InputFile]) -> str | None:
        changes = sum(f.file.rows for f in files)
        if self._changes_max is not None and changes > self._changes_max:
            return f"it has {changes} changes, more than {self._changes_max}"
        return next((why for shape in {f.shape for f in files} if (why := _strange(shape)) is not None), None)

    def is_conflict(self, error: BaseException) -> bool:
        return is_conflict(error)


def _strange(shape: Table) -> str | None:
    """What only Spark does right in a table of this shape."""
    for column in shape.columns:
        try:
            held = stored(column.type.arrow)
        except ConfigurationError:
            return None  # no engine can, and the merge says so
        if "struct<" in held.table or DECIMAL_TEXT in (held.convert or ""):
            return f"its column {column.name} is of a type that is merged by Spark only ({column.type.source})"
        if has_two_zeros(held.table) and (not shape.key or column.name in shape.key):
            return f"its key has a column of floating-point numbers ({column.name})"
        if column.missing is not None and not held.table.startswith(_SAID_ALIKE):
            return f"its column {column.name} was added with a default of type {column.type.source}"
    return None


def _texts() -> MapType:
    return MapType(-1, StringType(), -1, StringType(), False)


def _columns() -> list[tuple[str, IcebergType]]:
    fields: list[tuple[str, IcebergType]] = [
        ("path", StringType()),
        ("version", LongType()),
        ("complete", BooleanType()),
        ("generation", LongType()),
    ]
    entry = StructType(*(NestedField(-1 - i, name, type_, required=False) for i, (name, type_) in enumerate(fields)))
    return [
        ("cut", LongType()),
        ("log_id", StringType()),
        ("offset", LongType()),
        ("position", StringType()),
        ("commit_clock", TimestamptzType()),
        ("published", TimestamptzType()),
        ("tables", MapType(-1, StringType(), -1, entry, False)),
        *((name, _texts()) for name in LATER_COLUMNS),
    ]


class LocalCuts:
    """Implements `cdcflow.warehouse.port.Cuts`: the same table that Spark's has."""

    def __init__(self, table: IcebergTable) -> None:
        self._table = table
        self._version: int | None = None

    def newest(self) -> Cut | None:
        there = self._table.snapshot()
        self._version = -1 if there is None else there.version
        if there is None:
            return None
        said = self._table.newest_commit()
        if said is not None and "published" in said:
            return Cut.from_json(said["published"])
        rows = self._table.rows().sort_by([("cut", "descending"), ("published", "descending")])
        newest = rows.slice(0, 1)
        clocks = newest.column("commit_clock").cast(pa.int64()).to_pylist()
        found = newest.to_pylist(maps_as_pydicts="strict")
        return Cut.from_row(found[0], clocks[0]) if found else None

    def publish(self, cut: Cut) -> None:
        there = self._table.snapshot()
        version = -1 if there is None else there.version
        if self._version is not None and self._version != version:
            raise SinkUnavailable(
                f"publishing cut {cut.cut}: another merge has published one meanwhile",
                remedy="nothing is lost; merge again",
            )
        if there is None:
            self._table.create(_columns(), {})
        elif LATER_COLUMNS[-1] not in {c.name for c in there.columns}:
            self._table.add([(name, _texts()) for name in LATER_COLUMNS])
        metadata = {"log": cut.log_id, "cut": cut.cut, "published": cut.to_json()}
        self._table.append(self._row(cut), metadata, KEPT)
        self._version = None if (after := self._table.snapshot()) is None else after.version

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
        }
        return pa.Table.from_pylist([row], schema=self._table.schema)
