"""The metadata of Iceberg tables, which has every snapshot that a table keeps: changed and read without copying them
all.

PyIceberg copies all of the metadata for each change, and parses it whenever a table is loaded, so the cost of a commit
would grow with the number of commits before it. PyIceberg's models cannot be changed, so they are shared here; a
metadata file never changes either.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)

SNAPSHOTS_MAX = 10_000
"""The maximum number of snapshots in the metadata that is kept, over all tables. A snapshot takes some 4 KB."""


def with_updates(base: TableMetadata, updates: tuple[TableUpdate, ...], location: str | None = None) -> TableMetadata:
    """Return metadata with updates, as PyIceberg's `update_table_metadata` does. `location`: that of `base`, which the
    result then lists among the earlier ones."""
    context = _TableMetadataUpdateContext()
    found = base
    for update in updates:
        found = _apply_table_update(update, found, context)
    if context.has_changes():
        if location is not None:
            found = _update_table_metadata_log(found, location, base.last_updated_ms)
        if found.last_updated_ms == base.last_updated_ms:
            found = found.model_copy(update={"last_updated_ms": int(time.time() * 1000)})
    found.spec().check_compatible(found.schema())
    found.sort_order().check_compatible(found.schema())
    return found


class KnownMetadata:
    """The latest metadata of each table, by the location of its file. May be used from several threads."""

    def __init__(self) -> None:
        self._by_location: OrderedDict[str, TableMetadata] = OrderedDict()
        self._snapshots = 0
        self._lock = threading.Lock()

    def find(self, location: str) -> TableMetadata | None:
        """Return the metadata in a file; `None` if it has to be read."""
        with self._lock:
            found = self._by_location.get(location)
            if found is not None:
                self._by_location.move_to_end(location)
            return found

    def add(self, location: str, metadata: TableMetadata, instead_of: str | None = None) -> None:
        """Record the metadata in a file. `instead_of`: the file that it replaces, whose metadata is forgotten."""
        with self._lock:
            self._forget(location)
            self._forget(instead_of)
            self._by_location[location] = metadata
            self._snapshots += len(metadata.snapshots)
            while self._snapshots > SNAPSHOTS_MAX:
                self._forget(next(iter(self._by_location)))

    def _forget(self, location: str | None) -> None:
        gone = None if location is None else self._by_location.pop(location, None)
        self._snapshots -= 0 if gone is None else len(gone.snapshots)
