"""Having on disk what can be read of a log.

Readers see a cut before its writer has synced it. What cannot be taken back (a message, a cursor that somebody stores)
is synced by its reader first; where the writer was quicker, that costs nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from cdcflow.changelog.layout import Layout


def settle(layout: Layout) -> None:
    """Sync what is not sealed of a log on this machine. What is sealed is durable.

    Raises:
        OSError: the disk does not take it.
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


__all__ = ["settle"]
