"""The captured tables as the stream asks for them (`row_events.Tables`): fixed when the source was prepared.

A table that is made later belongs to the capture from the next attempt on, which reads its rows as well; until then
its changes are left out, for they are in what is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.catalog import ENGINES, Catalog, CatalogTable
from cdcflow.sources.mysql.shapes import DescribedTable
from cdcflow.sources.mysql.table_map import TableMap


class CapturedTables:
    """Implements `row_events.Tables`. Used by the stream's thread; `catalog` may be shared."""

    def __init__(self, catalog: Catalog, tables: Iterable[CatalogTable]) -> None:
        self._catalog = catalog
        self._entries = {t.id: t for t in tables}
        self._described: dict[TableId, DescribedTable] = {}

    def is_captured(self, table: TableId) -> bool:
        return table in self._entries

    def describe(self, found: TableMap) -> DescribedTable | None:
        if not self.is_captured(found.id):
            return None
        made = self._catalog.describe(found)
        self._described[found.id] = made
        return made

    def described(self, table: TableId) -> DescribedTable | None:
        if table not in self._entries:
            return None
        if table not in self._described:
            self._described[table] = self._catalog.described(self._entries[table])
        return self._described[table]

    def captured_in(self, schema: str) -> Sequence[TableId]:
        return [table for table in self._entries if table.schema == schema]

    def gained(self, table: TableId) -> bool:
        known = self.described(table)
        try:
            now = self._catalog.look_up(table)
        except ConfigurationError:  # it is gone again, or not to be captured any more: what comes says which
            return False
        return known is not None and not {c.name for c in now.columns} <= {c.name for c in known.columns}

    def is_transactional(self, table: TableId) -> bool:
        entry = self._entries.get(table)
        return entry is None or entry.engine in ENGINES

    def changed(self, table: TableId | None) -> None:
        if table is None or table in self._entries:
            self._catalog.forget()
