"""Manifests of Iceberg tables, each read once by a process: neither a manifest nor a list of them ever changes.

PyIceberg itself decodes all of them, in Python, once to plan and three more times for each commit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.delete_file_index import PATH_FIELD_ID
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

from cdcflow.tables.local import iceberg_avro
from cdcflow.tables.port import HandOver

BYTES_MAX = 4 << 20
"""How many bytes of manifests, as stored in files, are kept; decoded they take some ten times as much memory."""
DELETES = "it has deletes that only Spark reads"

_FIRST, _LAST = b"", b"\xff"
"""Bounds of paths for a manifest without bounds: every path of a data file is between them."""

_LISTED_BYTES = 200
"""How many bytes one entry in a list of manifests counts."""
_Found = TypeVar("_Found")


class KnownManifests:
    """The manifests that were used last, by location. May be used from several threads; callers must not change the
    results."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, snapshot: Snapshot | None, io: FileIO) -> Sequence[ManifestFile]:
        """Return the manifests of a snapshot."""
        if snapshot is None:
            return ()
        return self._find(
            snapshot.manifest_list,
            lambda: iceberg_avro.read_list(snapshot.manifest_list, io),
            lambda found: _LISTED_BYTES * len(found),
        )

    def entries(self, manifest: ManifestFile, io: FileIO) -> Sequence[ManifestEntry]:
        """Return the entries of a manifest that do not remove a file."""
        return self._find(
            manifest.manifest_path,
            lambda: iceberg_avro.read_living(manifest, io),
            lambda _: manifest.manifest_length,
        )

    def plan(self, snapshot: Snapshot | None, io: FileIO) -> list[FileScanTask]:
        """Return the data files of a snapshot, each with its delete files, like a scan without a filter.

        Raises:
            HandOver: the snapshot has deletes that PyIceberg does not read.
        """
        files: list[ManifestEntry] = []
        deletes = _DeleteFiles()
        for entry in self._all_entries(self.of(snapshot, io), io):
            match entry.data_file.content:
                case _ if entry.data_file.record_count == 0:
                    continue
                case DataFileContent.DATA:
                    files.append(entry)
                case DataFileContent.POSITION_DELETES:
                    deletes.add(entry)
                case _:
                    raise HandOver(DELETES)
        return [FileScanTask(entry.data_file, deletes.of(entry)) for entry in files]

    def _all_entries(self, manifests: Sequence[ManifestFile], io: FileIO) -> Iterable[ManifestEntry]:
        with self._lock:
            missing = [manifest for manifest in manifests if manifest.manifest_path not in self._known]
        read = {}
        if len(missing) > 1:  # at the same time, which matters in a store
            found = ExecutorFactory.get_or_create().map(lambda manifest: self.entries(manifest, io), missing)
            read = dict(zip((manifest.manifest_path for manifest in missing), found, strict=True))
        for manifest in manifests:
            yield from read.get(manifest.manifest_path) or self.entries(manifest, io)

    def _find(self, location: str, read: Callable[[], _Found], size: Callable[[_Found], int]) -> _Found:
        with self._lock:
            known = self._known.get(location)
            if known is not None:
                self._known.move_to_end(location)
                return known[1]  # type: ignore[no-any-return]  # each location is of one kind
        found = read()
        with self._lock:
            if location not in self._known:
                self._known[location] = size(found), found
                self._bytes += size(found)
            while self._bytes > BYTES_MAX:
                _, (freed, _) = self._known.popitem(last=False)
                self._bytes -= freed
        return found


class _DeleteFiles:
    """Position delete files, by the data files that they may list. PyIceberg would evaluate an expression for each pair
    of a data file and a delete file."""

    def __init__(self) -> None:
        self._of_path: dict[bytes, list[ManifestEntry]] = {}
        self._of_partition: dict[Hashable, list[tuple[bytes, bytes, ManifestEntry]]] = {}

    def add(self, entry: ManifestEntry) -> None:
        delete = entry.data_file
        first = (delete.lower_bounds or {}).get(PATH_FIELD_ID, _FIRST)
        last = (delete.upper_bounds or {}).get(PATH_FIELD_ID, _LAST)
        if first == last:
            self._of_path.setdefault(first, []).append(entry)
        else:
            self._of_partition.setdefault((delete.spec_id, delete.partition), []).append((first, last, entry))

    def of(self, data: ManifestEntry) -> set[DataFile]:
        """Return the delete files that may list rows of a data file."""
        file = data.data_file
        path = file.file_path.encode()
        shared = self._of_partition.get((file.spec_id, file.partition), ())
        found = [*self._of_path.get(path, ()), *(entry for first, last, entry in shared if first <= path <= last)]
        return {entry.data_file for entry in found if (entry.sequence_number or 0) >= (data.sequence_number or 0)}
