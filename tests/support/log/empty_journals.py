"""A log whose last journal holds no rows: a starting daemon replaces it by a new one of the same name."""

from __future__ import annotations

from pathlib import Path

from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import Writer, orders


def write_log(root: Path, identity: SourceIdentity) -> Path:
    """Two rows in a closed journal, a cut without rows in the next one; the log is closed. Returns its folder."""
    log = FileLog.open(root, identity)
    writer = Writer.of(log)
    writer.put(orders(1, 2))
    log.roll()
    writer.put()
    log.close()
    return root


__all__ = ["write_log"]
