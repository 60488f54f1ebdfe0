"""Wait for new rows in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cdcflow.log.files.layout import Layout
from cdcflow.log.index.index_files import folder
from cdcflow.log.read.log_reader import LogReader

LOOK_EVERY_S = 0.02
"""How often to poll a folder on this machine. The log is read only if something was written."""
ASK_EVERY_S = 0.5
"""How often to poll a broker or a store."""


def ends(log: LogReader, layout: Layout, after: int, wait: Callable[[float], bool] | None = None) -> Iterator[int]:
    """Yield the last offset of the log each time it has grown; the first time as soon as it is higher than `after`.
    `wait(seconds)` is called between two polls, and ends the iteration by returning True."""
    waited = wait or sleep
    seen: object = None
    while True:
        now = write_marker(layout)
        if now is None or now != seen:
            seen = now
            end = int(log.newest_checkpoint().next_offset) - 1
            if end > after:
                yield end
                after = end
                continue
        if waited(LOOK_EVERY_S if now is not None else ASK_EVERY_S):
            return


def write_marker(layout: Layout) -> object:
    """Return a value that changes when something is written to a log on this machine, or is removed from it; `None` if
    the log is elsewhere."""
    if not layout.log_json.exists():
        return None
    journals = layout.journal_offsets()
    try:
        size = layout.journal(journals[-1]).stat().st_size if journals else 0
    except FileNotFoundError:  # sealed in between
        size = -1
    return (journals, size, *map(_modified_ns, (layout.segments, folder(layout), layout.log_json)))


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
