"""Writing a state of a log (`changelog.states`): its files first, then what it is, then its name.

.<offset>.tmp/  table by table, state.json ──▶ synced ──▶ renamed to <offset>/ ──▶ older states removed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcflow.changelog.layout import Layout
from cdcflow.changelog.parquet import Parquet
from cdcflow.changelog.sealing import file_name
from cdcflow.changelog.states import State, StateTable, folder, folder_of, listed, opened
from cdcflow.model.table import Table
from cdcflow.sinks.layer import OS_LAYER, DurableFile, FileLayer, remove_tree, storing, syncing

TableRows = tuple[Table, pa.Table]
"""A table's shape, and its rows in the columns of the log."""


def write(
    layout: Layout,
    state: State,
    tables: Iterable[TableRows],
    backfills: Mapping[str, Mapping[str, Any]],
    layer: FileLayer = OS_LAYER,
) -> State:
    """Write a state; what is said of its tables comes from their rows, and from what the log says of their backfills,
    by name. Durable on return. A state that is there stays.

    Raises:
        SinkUnavailable: no room; nothing counts of what was begun.
    """
    room = folder(layout)
    target = folder_of(layout, state.offset)
    beside = room / f".{target.name}.tmp"
    with storing(f"writing the state {target}"):
        if target.exists():
            return opened(layout, state.offset)
        if not room.exists():
            layer.mkdir(room)
        if beside.exists():
            remove_tree(layer, beside)
        layer.mkdir(beside)
        entries = {}
        for shape, rows in tables:
            name = str(shape.id)
            entries[name] = replace(_written(beside, shape, rows, layer), backfill=dict(backfills.get(name, {})))
        made = replace(state, tables=entries)
        manifest = DurableFile(layer, beside / "state.json")
        manifest.write(made.to_json().encode())
        manifest.close()
        for path in (beside, room):
            with syncing(path):
                layer.fsync_dir(path)
        layer.rename(beside, target)
        with syncing(room):
            layer.fsync_dir(room)
    return made


def tidy(layout: Layout, layer: FileLayer = OS_LAYER) -> None:
    """Remove states that nothing needs: those before the newest one that the log's beginning follows on, and what a
    process that was killed left behind."""
    first = layout.log_file().first_offset
    needed = [offset for offset in listed(layout) if offset < first]
    with storing(f"tidying the states {folder(layout)}"):
        for offset in needed[:-1]:
            beside = folder(layout) / f".{offset:020d}.tmp"
            layer.rename(folder_of(layout, offset), beside)
        for path in folder(layout).glob(".*.tmp"):
            remove_tree(layer, path)


def _written(room: Path, shape: Table, rows: pa.Table, layer: FileLayer) -> StateTable:
    name = file_name(shape, 1)
    parquet = Parquet(name, shape.log_schema, DurableFile(layer, room / name), shape.key)
    try:
        for batch in rows.cast(shape.log_schema).to_batches():
            parquet.add(batch)
    except BaseException:
        parquet.give_up()
        raise
    size, sha256 = parquet.close()
    return StateTable(name, rows.num_rows, size, sha256, shape.to_json())


__all__ = ["TableRows", "tidy", "write"]
