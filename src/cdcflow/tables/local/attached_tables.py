"""Build a table from rows that were loaded another way (see `cdcflow.tables.job.attached_tables`).

    1 check   columns, types and keys of the base; nothing is written
    2 order   the daemon stops reading the table: it records a base of this name, not yet verified
    3 write   an empty table with the base's name; then its rows and its position, in one commit

If the process dies after 2 or during 3, merges exclude the table, because the log does not have all of its rows, until
the same command has run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.log.files.layout import Layout
from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import MISSING, OFFSET, Table, word
from cdcflow.tables.job.attached_tables import Attached, stand
from cdcflow.tables.local.bases import Base, Fitted, fit_base
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.local.warehouse_folder import open_folder
from cdcflow.tables.merge import statement
from cdcflow.tables.merge.evolution import evolve
from cdcflow.tables.merge.modes import CURRENT
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse, table_path
from cdcflow.tables.port import HandOver, TableSnapshot
from cdcflow.tables.segments import Range, sealed_range

Order = Callable[[str], int]
"""A function that makes the daemon record a base under this name, and returns the log's next offset at that time."""


@dataclass(frozen=True, slots=True)
class AttachReport:
    """The result of attaching a base. `rows` is `None` if it was attached before, and nothing was done."""

    said: str
    rows: int | None
    left_out: tuple[str, ...] = ()


class Attaching:
    """The work of attaching a base to one table. `known` is the base that the daemon has recorded ("" if none)."""

    def __init__(
        self,
        engine: LocalEngine,
        warehouse: Warehouse,
        layout: Layout,
        shape: Table,
        base: Base,
        *,
        wide: bool,
        known: str,
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._shape = shape
        self._base = base
        self._wide = wide
        self._known = known
        self._path = table_path(shape.id)
        self._warehouse = warehouse
        self._folder = open_folder(warehouse).folder(*self._path)
        self._attempted = f"attaching {shape.id}"

    def run(self, order: Order) -> AttachReport:
        """Build the table.

        Raises:
            ConfigurationError: the base does not fit, or there is a table already; the message says what to do.
            SinkUnavailable: a merge is running.
        """
        target = evolve(None, [self._shape], format_=self._engine.rules, mode=CURRENT).target
        found = fit_base(self._base, target, self._attempted)
        if self._warehouse.is_local:
            self._warehouse.folder.mkdir(parents=True, exist_ok=True)  # the location of Iceberg's catalog
        with closing(self._engine.table(self._path)) as there:
            # First what can be answered immediately.
            if self._is_attached(there, target):
                return AttachReport(self._base.said, None)
            rows = found.check_keys(target.key, self._attempted)
            with self._engine.lease():
                if self._is_attached(there, target):
                    return AttachReport(self._base.said, None)
                name = uuid4().hex
                self._write(there, target, found, Attached(name, order(name)), rows)
        return AttachReport(self._base.said, rows, found.left_out)

    def _is_attached(self, there: FileTable[object], target: Target) -> bool:
        """Return whether the table has the base that the daemon has recorded.

        Raises:
            ConfigurationError: another table, or something else, is in its place.
        """
        before = there.snapshot()
        if before is None:
            if next(self._folder.entries(), None) is not None:
                raise self._in_the_way("its folder is not empty")
            return False
        attached = Attached.of(before.properties)
        if attached is not None and attached.base == self._known and self._is_written(before):
            return True
        if not self._is_begun(before, target):
            raise self._in_the_way("the warehouse has a table of it")
        return False

    def _is_written(self, before: TableSnapshot) -> bool:
        return any(app.startswith("cdcflow/") for app in before.transactions)

    def _is_begun(self, before: TableSnapshot, target: Target) -> bool:
        """Return whether an earlier attach created the table and wrote nothing into it, and no merge or cut
        knows it."""
        is_ours = before.properties.get(statement.TARGET_PROPERTY) == target.to_json()
        return is_ours and before.is_empty and not self._is_written(before) and not self._is_shown()

    def _is_shown(self) -> bool:
        newest = self._engine.cuts().newest()
        return newest is not None and str(self._shape.id) in newest.tables

    def _in_the_way(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._attempted}: {why} already, at {self._folder.location}",
            remedy=f"to keep it run `cdcflow repair {word(self._shape.id)}`, which repairs what differs;"
            " otherwise move the folder away and attach again",
            runbook="attach",
        )

    def _write(self, there: FileTable[object], target: Target, found: Fitted, attached: Attached, rows: int) -> None:
        log = sealed_range(self._layout)
        cut, offset = stand(log, self._shape)
        metadata = {"log": log.log_id, "table": str(self._shape.id), "attached": attached.base}
        try:
            self._make(there, log, target, attached, metadata)
            written = _Parts(found, self._attempted, there, offset, target.key)
            there.load(written, metadata, f"cdcflow/{log.log_id}/{self._shape.id}", cut)
        except HandOver as reason:
            raise ConfigurationError(
                f"{self._attempted}: only Spark can write this table: {reason}",
                remedy=f"move {self._folder.location} away, and run `cdcflow backfill {word(self._shape.id)}` to read"
                " all of it",
                runbook="attach",
            ) from reason
        if written.rows != rows:
            raise InvariantViolated(f"{self._attempted}: {self._base.said} changed while it was read", runbook="attach")

    def _make(
        self, there: FileTable[object], log: Range, target: Target, attached: Attached, metadata: dict[str, str]
    ) -> None:
        if there.snapshot() is None:
            table = self._shape.id
            source = {"log": log.log_id, "schema": table.schema, "name": table.name}
            text = json.dumps(source, separators=(",", ":"))
            there.make(target, text, attached.since, metadata, CURRENT, wide=self._wide)
            there.snapshot()
        said = {statement.BEGUN_PROPERTY: str(attached.since), **attached.properties()}
        there.describe(said, metadata)


class _Parts:
    """The rows of a base as rows of the table, part by part, each sorted by the key. `rows`: the number of rows yielded
    so far."""

    def __init__(
        self, found: Fitted, attempted: str, there: FileTable[object], offset: int, key: Sequence[str]
    ) -> None:
        self._found = found
        self._attempted = attempted
        self._there = there
        self._offset = offset
        self._key = ", ".join(map(name_sql, key))
        self.rows = 0

    def __iter__(self) -> Iterator[pa.Table]:
        schema = self._there.schema
        names = self._found.types.names
        for part in self._found.parts(names, self._attempted):
            self.rows += len(part)
            ordered = self._there.session.over(part, f"SELECT * FROM {{}} ORDER BY {self._key}")  # noqa: S608  quoted
            columns = [self._column(ordered, field) for field in schema]
            yield pa.table(columns, schema=schema)

    def _column(self, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
        if field.name == OFFSET:
            return pa.repeat(pa.scalar(self._offset, field.type), len(rows))
        if field.name == MISSING:
            return pa.nulls(len(rows), field.type)
        return rows.column(field.name).cast(field.type)
