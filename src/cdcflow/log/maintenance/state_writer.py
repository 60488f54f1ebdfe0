"""Write a state of a log (`log.files.states`): its tables' files first, its manifest next, its name last.

.<offset>.tmp/ table by table, state.json ──▶ synced ──▶ renamed to <offset>/ ──▶ older states removed
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcflow.errors import InvariantViolated
from cdcflow.log.disk.layer import OS_LAYER, DurableFile, FileLayer, remove_tree, storing, syncing
from cdcflow.log.files.layout import Layout, state_name
from cdcflow.log.files.parquet import Parquet
from cdcflow.log.files.segment_writer import file_name
from cdcflow.log.files.states import LogState, StateTable, folder, folder_of, open_state, state_offsets
from cdcflow.log.workers import AwayLog
from cdcflow.model.table import Table


def write(
    layout: Layout,
    state: LogState,
    tables: Callable[[Path], Iterable[StateTable]],
    backfills: Mapping[str, Mapping[str, Any]],
    layer: FileLayer = OS_LAYER,
) -> LogState:
    """Write a state. `tables` writes the tables' files into a directory and yields their entries (see `put`).

    The facts that the log records of the tables' backfills, by table name, are added to the entries. Durable on return.
    If the state exists already, it stays.

    Raises:
        SinkUnavailable: no room; nothing of what was begun counts.
    """
    room = folder(layout)
    target = folder_of(layout, state.offset)
    temporary = room / f".{target.name}.tmp"
    with storing(f"writing the state {target}"):
        if target.exists():
            return open_state(layout, state.offset)
        if not room.exists():
            layer.mkdir(room)
        if temporary.exists():
            remove_tree(layer, temporary)
        layer.mkdir(temporary)
        entries = {str(one.table.id): one for one in tables(temporary)}
        for left in {path.name for path in temporary.iterdir()} - {one.file for one in entries.values()}:
            layer.unlink(temporary / left)  # left by a worker that died
        known = {name: replace(one, backfill=dict(backfills.get(name, {}))) for name, one in entries.items()}
        made = replace(state, tables=known)
        manifest = DurableFile(layer, temporary / "state.json")
        manifest.write(made.to_json().encode())
        manifest.close()
        for path in (temporary, room):
            with syncing(path):
                layer.fsync_dir(path)
        layer.rename(temporary, target)
        with syncing(room):
            layer.fsync_dir(room)
    return made


def tidy(layout: Layout, layer: FileLayer = OS_LAYER) -> None:
    """Remove the states before the log's first offset, except the latest of them: only that one is needed.

    Also remove files that a killed process left.
    """
    first = layout.log_file().first_offset
    needed = [offset for offset in state_offsets(layout) if offset < first]
    with storing(f"tidying the states {folder(layout)}"):
        for offset in needed[:-1]:
            temporary = folder(layout) / f".{offset:020d}.tmp"
            layer.rename(folder_of(layout, offset), temporary)
        for path in folder(layout).glob(".*.tmp"):
            remove_tree(layer, path)


def put(room: Path, shape: Table, rows: pa.Table, layer: FileLayer = OS_LAYER) -> StateTable:
    """Write a table's rows (in the columns of the log) into a directory, and return the table's entry. Durable except
    for the file's name."""
    name = file_name(shape, 1)
    temporary = room / f".{secrets.token_hex(4)}.tmp"  # another process may do the same
    parquet = Parquet(name, shape.log_schema, DurableFile(layer, temporary), shape.key)
    try:
        for batch in rows.cast(shape.log_schema).to_batches():
            parquet.add(batch)
    except BaseException:
        parquet.give_up()
        raise
    size, sha256 = parquet.close()
    layer.rename(temporary, room / name)
    return StateTable(name, rows.num_rows, size, sha256, shape.to_json())


def name_before_move(offset: int, table: StateTable) -> str:
    """Return the name that a table's file has in a store before it is moved to the state's directory.

    Two different contents of one table have two names.
    """
    return f"states/{state_name(offset)}/.{table.sha256[:16]}-{table.file}"


def take(away: AwayLog, offset: int, table: StateTable, room: Path, layer: FileLayer = OS_LAYER) -> None:
    """Move a table's file from a store into a directory. Durable except for the file's name.

    Raises:
        InvariantViolated: its content is not what was uploaded.
    """
    name, temporary = name_before_move(offset, table), room / f".{secrets.token_hex(4)}.tmp"
    if away.take(name, temporary) != table.sha256:
        raise InvariantViolated(f"reading {name}: its content differs from what was uploaded", runbook="log-damaged")
    opened = layer.open(temporary)
    try:
        with syncing(temporary):
            layer.fsync(opened)
    finally:
        layer.close(opened)
    layer.rename(temporary, room / table.file)
