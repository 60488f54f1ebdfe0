"""Count what processes have read of a source today, in a file of the log's folder: for a budget that survives restarts.

The log does not depend on it: if the file is lost, a day's budget begins again. Each process adds what it has read
since it last did, about once a second, so a killed process loses no more than that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from cdcflow.model.source_load import DayUse

NAME = "reading.json"


class FileLedger:
    """Implements `capture.governor.DayLedger` for all processes of this machine that read for one log."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._known = DayUse()

    def add(self, use: DayUse) -> DayUse:
        """Add this use to its day, and return the day's new total. If the folder cannot be written, only this process
        counts it."""
        self._known = self._known + use
        with contextlib.suppress(OSError), self._lock_file() as file:
            file_total = _read(file) + use
            if use.rows or use.seconds:
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(asdict(file_total)).encode(), 0)
                os.fsync(file)
            self._known = file_total
        return self._known

    @contextlib.contextmanager
    def _lock_file(self) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _read(file: int) -> DayUse:
    try:
        found = json.loads(os.pread(file, 1 << 12, 0))
        return DayUse(str(found["day"]), int(found["rows"]), int(found["bytes"]), float(found["seconds"]))
    except (ValueError, KeyError, TypeError):
        return DayUse()
