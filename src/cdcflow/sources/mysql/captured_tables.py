"""The captured tables as the stream sees them: as of the preparation of the source.

A table that is created later is captured from the next attempt, which also reads its rows; until then its changes are
skipped, since they are included in the rows to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.selection import CapturedTableRefused
from cdcflow.sources.mysql.catalog import PRIMARY, Catalog, CatalogTable
from cdcflow.sources.mysql.errors import history_refusal
from cdcflow.sources.mysql.lives import Lives
from cdcflow.sources.mysql.position import Coordinate
from cdcflow.sources.mysql.tables import DescribedTable, TableMap
from cdcflow.sources.mysql.types.columns import ServerColumn, TypeCode


class CapturedTables:
    """Implements `row_events.Tables`. Used by the stream's thread; `catalog` may be shared. `marks` is the table of
    marks, named as in the catalog. `lives`: the tables that are gone, and those that are new. `shape_of`: see
    `ShapeAsking`."""

    def __init__(
        self,
        catalog: Catalog,
        tables: Iterable[CatalogTable],
        lives: Lives | None = None,
        shape_of: Callable[[TableId], Table | None] = lambda table: None,
    ) -> None:
        self._catalog = catalog
        self._names = catalog.names()
        self.marks = catalog.wanted.marks
        self._entries = {t.id: t for t in tables}
        self._gone = frozenset() if lives is None else lives.gone_tables
        self._later = {} if lives is None else dict(lives.begins)
        self._shape_of = shape_of
        self._by_key = {self._names.key(t): t for t in (self.marks, *self._gone, *self._entries)}
        self._described: dict[TableId, DescribedTable] = {}
        self._seen: dict[TableId, DescribedTable] = {}

    def catalog_name(self, table: TableId) -> TableId:
        if table in self._entries:
            return table
        key = self._names.key(table)
        return self._by_key.get(key, key)

    def is_captured(self, table: TableId) -> bool:
        return table in self._entries or table in self._gone

    def is_new(self, table: TableId) -> bool:
        return table in self._later

    def describe(self, found: TableMap) -> DescribedTable | None:
        if not self.is_captured(found.id):
            return None
        try:
            return self._as_then(found)
        except ConfigurationError:
            if not self.is_new(found.id):
                raise
            return None

    def _as_then(self, found: TableMap) -> DescribedTable | None:
        if self._is_history(found):
            return None
        logged = self._shape_of(found.id)
        made = self._catalog.describe(found, logged, is_gone=found.id in self._gone)
        if made is not None:
            self._described[found.id] = self._seen[found.id] = made
        return made

    def _is_history(self, found: TableMap) -> bool:
        """Whether a table map is from a time when the table was system-versioned, and it no longer is. Its rows are
        then old and current rows, which the key's last column distinguishes: the end of a row's period. The statement
        that ended the versioning has the table read again.

        Raises:
            ConfigurationError: the table is still system-versioned.
        """
        periods = {c.name for c in found.columns if _may_be_of_a_period(c)}
        if not found.key or found.key_names[-1] not in periods or len(periods) < 2:
            return False
        now = self._catalog.now(found.id)
        if now is not None and now.is_versioned:
            raise CapturedTableRefused(found.id, [history_refusal(found.id)])
        known = now or self._shape_of(found.id)
        return known is not None and found.key_names[-1] not in {c.name for c in known.columns}

    def last_shape(self, table: TableId) -> DescribedTable | None:
        if not self.is_captured(table):
            return None
        if table not in self._described:
            made = self._last_shape(table)
            if made is None:
                return None
            self._described[table] = made
        return self._described[table]

    def _last_shape(self, table: TableId) -> DescribedTable | None:
        if table in self._entries:
            return self._catalog.describe_entry(self._entries[table])
        logged = self._shape_of(table)
        return None if logged is None else DescribedTable(logged, (), ())

    def captured_in(self, schema: str | None) -> Sequence[TableId]:
        wanted = None if schema is None else self._names.text(schema)
        return [
            t for t in {**self._entries, **dict.fromkeys(self._gone)} if wanted in (None, self._names.text(t.schema))
        ]

    def mapped_shape(self, table: TableId) -> DescribedTable | None:
        return self._seen.get(table)

    def now(self, table: TableId) -> Sequence[ServerColumn] | None:
        found = self._catalog.now(table)
        return None if found is None else found.columns

    def is_versioned(self, table: TableId) -> bool:
        found = self._catalog.now(table)
        return found is not None and found.is_versioned

    def is_computed(self, table: TableId) -> bool:
        found = self._catalog.now(table)
        return found is not None and found.is_computed

    def lacks_primary_key(self, table: TableId) -> bool:
        found = self._catalog.now(table) if self.is_captured(table) else None
        return found is not None and found.index != PRIMARY

    def engine_that_keeps_changes(self, table: TableId) -> str:
        entry = self._entries.get(table)
        if entry is None or not entry.lacks_transactions:
            return ""
        now = self._catalog.now(table)
        return now.engine if now is not None and now.lacks_transactions else ""

    @property
    def next_begin(self) -> Coordinate | None:
        return min(self._later.values(), default=None)

    def begin(self, upto: Coordinate | None) -> None:
        self._later = {} if upto is None else {t: place for t, place in self._later.items() if place > upto}

    def invalidate(self, table: TableId | None) -> None:
        if table is not None:
            self._seen.pop(table, None)
        if table is None or self.is_captured(table):
            self._catalog.forget()


def _may_be_of_a_period(column: ServerColumn) -> bool:
    """Whether a column may be the start or the end of a row's period: a TIMESTAMP(6), or a transaction's number."""
    kind = (column.type_code, column.metadata, column.unsigned)
    return not column.nullable and kind in ((TypeCode.TIMESTAMP, 6, False), (TypeCode.LONGLONG, 0, True))
