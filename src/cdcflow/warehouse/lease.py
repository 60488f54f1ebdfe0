"""One merge at a time in a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdcflow.errors import SinkUnavailable
from cdcflow.warehouse.paths import LEASE


@contextmanager
def folder_lease(warehouse: Path) -> Iterator[None]:
    """One merge a warehouse at a time (hard case G13). The lock goes when the process goes, whatever happens to it.

    Raises:
        SinkUnavailable: another merge works there.
    """
    warehouse.mkdir(parents=True, exist_ok=True)
    with (warehouse / LEASE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SinkUnavailable(
                f"merging into {warehouse}: another merge works there",
                remedy="try again when it is done",
                runbook="busy",
            ) from None
        yield


__all__ = ["folder_lease"]
