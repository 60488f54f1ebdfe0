"""Logs whose process has ended, as far as one process can simulate that."""

from __future__ import annotations

import os

from cdcflow.sinks.files.log import FileLog


def gone(log: FileLog) -> None:
    """Nothing more is written, the lock is free, and none of its files stays open."""
    for journal in log._journals:
        opened, journal._fd = journal._fd, -1
        if opened >= 0:
            os.close(opened)
    log._lease.release()
