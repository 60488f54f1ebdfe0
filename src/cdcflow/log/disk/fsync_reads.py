"""Sync to disk the part of a log that a reader can see.

Readers see a cut before its writer has synced it. Before a reader does something irreversible (sends a message, hands
out a cursor), it syncs the log itself; if the writer was quicker, that costs nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from cdcflow.log.files.layout import Layout


def settle(layout: Layout) -> None:
    """Sync the unsealed part of a log on this machine. The sealed part is durable.

    Raises:
        OSError: the disk fails.
    """
    for folder in (layout.spools, layout.journals):
        _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    with suppress(FileNotFoundError):
        for path in sorted(folder.iterdir()):
            with suppress(FileNotFoundError):
                _sync(path)
        _sync(folder)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
