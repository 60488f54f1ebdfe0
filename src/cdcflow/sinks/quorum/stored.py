"""Fetches the sealed part of a log from the object store, for a machine that continues the log: manifests, not the
rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from cdcflow.errors import ConfigurationError
from cdcflow.log.disk.layer import OS_LAYER, remove_tree, storing, write_file
from cdcflow.log.disk.segment_folders import put_in_place
from cdcflow.log.files.layout import Bounds, Layout, LogFile, Store, widest_segments
from cdcflow.log.format.schema_history import SchemaHistory

FETCHED_AT_ONCE = 8


class StoredPart(Protocol):
    """How much of the log the object store has, as recorded in the log's folder."""

    def offset(self) -> int:
        """Return the offset up to which the store has everything."""
        ...

    def record(self, offset: int) -> None: ...


def complete_from_store(layout: Layout, stored: StoredPart) -> None:
    """Add to the folder the segments that another machine has sealed and uploaded since.

    A segment here that the store has with another manifest is replaced by the store's: another machine has sealed the
    same rows.

    Raises:
        SinkUnavailable, ConfigurationError: the store does not answer, or refuses.
    """
    store = layout.store
    if store is None:
        raise ConfigurationError(
            "a log with peers needs an object store for its segments", remedy="set log.objects", runbook="settings"
        )
    try:
        theirs = LogFile.from_json(store.log_json(), f"{store.name}/log.json")
    except FileNotFoundError:
        return  # nothing was uploaded yet
    found = widest_segments(list(store.segments()))
    known = stored.offset()
    with storing(f"completing the log {layout.root} from {store.name}"):
        layout.segments.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
            list(pool.map(lambda bounds: _complete(layout, store, bounds, known), found))
        _take_shapes(layout, store)
        ours = layout.log_file()
        if theirs.first_offset > ours.first_offset:
            changed = replace(ours, first_offset=theirs.first_offset)
            write_file(OS_LAYER, layout.log_json, changed.to_json().encode())
    if found:
        stored.record(found[-1][1])


def _complete(layout: Layout, store: Store, bounds: Bounds, known: int) -> None:
    target = layout.segment(*bounds)
    manifest = target / "segment.json"
    if manifest.exists() and bounds[1] <= known:
        return
    text = store.manifest(bounds)
    if manifest.exists():
        if manifest.read_bytes() == text:
            return
        remove_tree(OS_LAYER, target)
    _put_manifest(layout, target, text)


def _put_manifest(layout: Layout, target: Path, text: bytes) -> None:
    temporary = layout.segments / f".{target.name}.tmp"
    if temporary.exists():
        remove_tree(OS_LAYER, temporary)
    OS_LAYER.mkdir(temporary)
    write_file(OS_LAYER, temporary / "segment.json", text)
    put_in_place(OS_LAYER, layout, temporary, target)


def _take_shapes(layout: Layout, store: Store) -> None:
    """Take the store's history of shapes if it is longer. Shapes are only ever added, so the longer history contains
    the shorter one."""
    try:
        theirs = store.schemas()
    except FileNotFoundError:
        return
    ours = layout.schemas_json()
    if ours is None or _shapes(theirs) > _shapes(ours):
        write_file(OS_LAYER, layout.schemas, theirs)


def _shapes(text: bytes) -> int:
    return len(SchemaHistory.from_json(text, "schemas.json"))
