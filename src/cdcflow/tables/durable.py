"""Make files and names durable in a warehouse that is a folder.

    data, vectors, manifests ─▶ commit ─▶ fsync of all, and of their folders ─▶ cut published ─▶ the log may expire

Only synced files survive a power cut. Until they are synced, the log has the rows too. So cdcflow syncs everything that
a cut shows before it publishes the cut, and publishes the cut before it reports it to the log's retention.
"""

from __future__ import annotations

import os
from pathlib import Path

from cdcflow.errors import HistoryLost

WRITTEN_BEFORE_S = 7200.0
"""How long before its commit a file may have been written."""


def sync_file(path: Path) -> None:
    """Make a file's content durable."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    sync_file(folder)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; their names are durable on return."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_table(folder: Path, since: float) -> None:
    """Make durable what was written in a table's folder, and the folder's existence.

    `since`, in seconds since 1970: files written before it need not be synced (0.0: sync everything). A file that
    another writer removes during the sync either does not belong to the table, or was removed by maintenance.
    """
    least = since - WRITTEN_BEFORE_S
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            try:
                if path.stat().st_mtime >= least:
                    sync_file(path)
            except FileNotFoundError:
                continue
        if os.path.isdir(place):
            sync_folder(Path(place))
    for above in list(folder.parents)[:2]:
        sync_folder(above)


def torn_error(table: str, version: int) -> HistoryLost:
    """Return the error for a table version that lacks files because they were never made durable."""
    return HistoryLost(
        f"version {version} of table {table} names files that are missing or end early, as a power cut leaves them",
        remedy="move the table's folder away, run `cdcflow backfill` for the table, then `cdcflow merge`",
        runbook="table-torn",
    )
