"""Files and names of a warehouse in a folder, made durable.

    data, vectors, manifests ─▶ commit ─▶ fsync of all, and of their folders ─▶ cut published ─▶ the log may expire

Only what was synced outlives a power cut. Until then the log has it, too: so everything that a cut shows is synced
before the cut is published, and the cut before the log's retention is told of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from cdcflow.errors import HistoryLost

WRITTEN_BEFORE_S = 7200.0
"""A commit's files may have been written so long before it."""


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
    """Make a folder, with those above it; their names are durable."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_table(folder: Path, since: float) -> None:
    """Make durable what was written in a table's folder, and that its folder is there. `since`, in seconds since 1970:
    nothing that was committed earlier is to be synced (0.0: everything is).

    A file that a concurrent writer removes meanwhile is none of the table's, or an upkeep's to remove.
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


def torn(table: str, version: int) -> HistoryLost:
    """The error of a table with a version that misses files which were never durable."""
    return HistoryLost(
        f"version {version} of table {table} names files that are missing or end early, as a power cut leaves them",
        remedy="move the table's folder away, run `cdcflow backfill` for the table, then `cdcflow merge`",
        runbook="table-torn",
    )


__all__ = ["make_folder", "sync_file", "sync_folder", "sync_table", "torn"]
