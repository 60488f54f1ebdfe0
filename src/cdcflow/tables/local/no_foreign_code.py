"""Refuse Python classes that a table's properties name, and that PyIceberg would import.

Otherwise any writer of a table's properties could have code executed by each merge and each reader. `py-io-impl` is
ignored, because files are reached through `iceberg_files` alone. A table with `write.py-location-provider.impl` is left
to Spark, which does not know that property: without that class it is unknown where the table's files belong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from cdcflow.tables.local.iceberg_files import TableIO
from cdcflow.tables.local.table_buckets import BUCKETS
from cdcflow.tables.port import HandOver

LOCATIONS = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL

if TYPE_CHECKING:
    Base = Catalog
else:
    Base = object


class NoForeignCode(Base):
    """A mixin for catalogs that imports no class of a table's properties. It must precede PyIceberg's class among a
    catalog's bases."""

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table. Raises HandOver if the table's properties name a class that assigns the locations of
        its files."""
        found = super().load_table(identifier)  # type: ignore[safe-super]  # the next base has it
        if LOCATIONS in found.metadata.properties:
            raise HandOver(f"its property {LOCATIONS} names a Python class, which cdcflow does not import")
        return found

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return TableIO({BUCKETS: self.properties[BUCKETS]})  # whatever the table's properties name
