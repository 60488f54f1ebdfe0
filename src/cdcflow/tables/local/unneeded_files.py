"""Files of an Iceberg table that no snapshot needs: those of expired snapshots, and those that no commit ever named.

    before the expiry   v3 ── list ── manifests ── files         v7 ── list ── manifests ── files
                        └─ only these are removed ─┘                   └─ whatever these name stays ─┘

PyIceberg removes no files. A file is removed only if no snapshot that the table still has names it, and not if the
table has `gc.enabled=false`. A process that is killed here leaves files that the search for abandoned ones finds later:
those in the table's own folders that no snapshot names, and that are older than any commit takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from cdcflow.tables.local.iceberg_files import TableIO

ABANDONED_S = 3 * 86_400.0
"""The age, in seconds, at which a file that no snapshot names counts as abandoned: no unfinished commit is that old.
"""

_FOLDERS = ("data", "metadata")
_SUFFIXES = (".parquet", ".avro", ".orc", ".metadata.json")


def may_remove(metadata: TableMetadata) -> bool:
    return metadata.properties.get("gc.enabled", "true").lower() != "false"


def files_of_expired(before: TableMetadata, after: TableMetadata, io: TableIO) -> list[str]:
    """Return the files that were needed only by snapshots which `before` has and `after` has not."""
    kept_ids = {snapshot.snapshot_id for snapshot in after.snapshots}
    gone = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id not in kept_ids]
    if not gone:
        return []
    kept = _manifests(after.snapshots, io)
    only_gone = {path: found for path, found in _manifests(gone, io).items() if path not in kept}
    files = set(_files(only_gone.values(), io, live=False))
    if files:
        files -= set(_files(kept.values(), io, live=True))
    lists = {snapshot.manifest_list for snapshot in gone} - {snapshot.manifest_list for snapshot in after.snapshots}
    return [*sorted(files), *sorted(only_gone), *sorted(lists), *sorted(_statistics(before) - _statistics(after))]


def abandoned_files(metadata: TableMetadata, location: str, io: TableIO, before: float) -> list[str]:
    """Return files in the table's folders that were written before a time, in seconds since 1970, and that no snapshot
    names. `location`: that of the current metadata.

    Return no files if a manifest or a data file that snapshots name is outside of these folders.
    """
    there = dict(_entries(metadata, io))
    old = [place for place, written in there.items() if written < before and place.endswith(_SUFFIXES)]
    if not old:
        return []
    manifests = _manifests(metadata.snapshots, io)
    files = set(_files(manifests.values(), io, live=False))
    needed = {*manifests, *_files(manifests.values(), io, live=True)}
    if not set(map(_plain, needed)) <= set(map(_plain, there)):
        return []  # a writer names places in another way, and by names alone needed files would seem abandoned
    lists = {snapshot.manifest_list for snapshot in metadata.snapshots}
    logged = {entry.metadata_file for entry in metadata.metadata_log}
    known = set(map(_plain, {location, *logged, *lists, *manifests, *files, *_statistics(metadata)}))
    return [place for place in old if _plain(place) not in known]


def _entries(metadata: TableMetadata, io: TableIO) -> Iterator[tuple[str, float]]:
    for name in _FOLDERS:
        place = f"{metadata.location.rstrip('/')}/{name}"
        for entry in io.folder(place).entries():
            yield f"{place}/{entry.name}", entry.modified


def _plain(location: str) -> str:
    """Return a location without its scheme, which differs between writers."""
    scheme, colon, rest = location.partition(":")
    return rest.lstrip("/") if colon and scheme.isalnum() else location.lstrip("/")


def _manifests(snapshots: Iterable[Snapshot], io: TableIO) -> dict[str, ManifestFile]:
    return {found.manifest_path: found for snapshot in snapshots for found in snapshot.manifests(io)}


def _files(manifests: Iterable[ManifestFile], io: TableIO, *, live: bool) -> Iterator[str]:
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=live):
            yield entry.data_file.file_path


def _statistics(metadata: TableMetadata) -> set[str]:
    found: list[Any] = [*metadata.statistics, *metadata.partition_statistics]
    return {one.statistics_path for one in found}
