"""The captured tables as the stream asks for them (`row_events.Tables`): fixed when the source was prepared.

A table that is made later belongs to the capture from the next attempt on, which reads its rows as well; until then
its changes are left out, for they are in what is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.catalog import ENGINES, Catalog, CatalogTable
from cdcflow.sources.mysql.losses import versioned
from cdcflow.sources.mysql.shapes import DescribedTable, ServerColumn
from cdcflow.sources.mysql.table_map import TableMap
from cdcflow.sources.mysql.types import TypeCode


class CapturedTables:
    """Implements `row_events.Tables`. Used by the stream's thread; `catalog` may be shared."""

    def __init__(self, catalog: Catalog, tables: Iterable[CatalogTable]) -> None:
        self._catalog = catalog
        self._entries = {t.id: t for t in tables}
        self._described: dict[TableId, DescribedTable] = {}
        self._seen: dict[TableId, DescribedTable] = {}

    def is_captured(self, table: TableId) -> bool:
        return table in self._entries

    def describe(self, found: TableMap) -> DescribedTable | None:
        if not self.is_captured(found.id) or self._is_history(found):
            return None
        made = self._catalog.describe(found)
        self._described[found.id] = self._seen[found.id] = made
        return made

    def _is_history(self, found: TableMap) -> bool:
        """Whether rows come from when the table was system-versioned, which it is no more: old and current ones, told
        apart by the end of their period, the key's last column. The statement that ended it has the table read again.

        Raises:
            ConfigurationError: it is system-versioned.
        """
        periods = {c.name for c in found.columns if _may_be_of_a_period(c)}
        if not found.key or found.key_names[-1] not in periods or len(periods) < 2:
            return False
        now = self._catalog.now(found.id)
        if now is not None and now.is_versioned:
            raise versioned(found.id)
        return now is not None and found.key_names[-1] not in {c.name for c in now.columns}

    def described(self, table: TableId) -> DescribedTable | None:
        if table not in self._entries:
            return None
        if table not in self._described:
            self._described[table] = self._catalog.described(self._entries[table])
        return self._described[table]

    def captured_in(self, schema: str) -> Sequence[TableId]:
        return [table for table in self._entries if table.schema == schema]

    def seen(self, table: TableId) -> DescribedTable | None:
        return self._seen.get(table)

    def now(self, table: TableId) -> Sequence[ServerColumn] | None:
        found = self._catalog.now(table)
        return None if found is None else found.columns

    def is_versioned(self, table: TableId) -> bool:
        found = self._catalog.now(table)
        return found is not None and found.is_versioned

    def is_transactional(self, table: TableId) -> bool:
        entry = self._entries.get(table)
        return entry is None or entry.engine in ENGINES

    def changed(self, table: TableId | None) -> None:
        if table is not None:
            self._seen.pop(table, None)
        if table is None or table in self._entries:
            self._catalog.forget()


def _may_be_of_a_period(column: ServerColumn) -> bool:
    """Whether a column may be the begin or the end of a row's period: a TIMESTAMP(6), or a transaction's number."""
    kind = (column.type_code, column.metadata, column.unsigned)
    return not column.nullable and kind in ((TypeCode.TIMESTAMP, 6, False), (TypeCode.LONGLONG, 0, True))
