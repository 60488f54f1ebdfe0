"""Tables of catalogs that name a metadata file. The file is read once; after a commit by this process it is not read at
all.

If a catalog names another file than the known one, another process has made a commit: that file is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from cdcflow.tables.local.iceberg_metadata import KnownMetadata, with_updates

if TYPE_CHECKING:
    Base = MetastoreCatalog
else:
    Base = object


class TablesReadOnce(Base):
    """A mixin for catalogs that keeps the metadata of tables. It must precede PyIceberg's class among a catalog's
    bases."""

    def __init__(self, name: str, known: KnownMetadata | None = None, **properties: Any) -> None:
        """`known`: the metadata that is shared with catalogs for other threads."""
        self.known = KnownMetadata() if known is None else known
        super().__init__(name, **properties)

    def known_table(
        self, name: Identifier, location: str | None, previous: str | None, read: Callable[[], Table]
    ) -> Table:
        """Return a table whose metadata is at a location; `read` is called only if the metadata is not known.
        `previous`: the location of the metadata before the latest commit."""
        known = None if location is None else self.known.find(location)
        if location is None or known is None:
            found = read()
            self.known.add(found.metadata_location, found.metadata, previous)
            return found
        return Table(name, known, location, self._load_file_io(known.properties, location), self)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if current_table is None:
            return super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        before = current_table.metadata_location
        metadata = with_updates(current_table.metadata, updates, before)
        places = load_location_provider(metadata.location, metadata.properties)
        location = places.new_table_metadata_file_location(self._parse_metadata_version(before) + 1)
        return StagedTable(
            table_identifier, metadata, location, self._load_file_io(metadata.properties, location), self
        )

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        done = super().commit_table(table, requirements, updates)  # type: ignore[safe-super]  # the next base has it
        self.known.add(done.metadata_location, done.metadata, table.metadata_location)
        return done
