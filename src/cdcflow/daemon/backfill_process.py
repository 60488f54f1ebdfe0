"""A backfill by this process: it captures until the tables are read, and shows their progress."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from cdcflow import wiring
from cdcflow.capture.ports.part_readers import Readers
from cdcflow.config import Config
from cdcflow.daemon import daemon
from cdcflow.daemon.events import event_lines
from cdcflow.daemon.interfaces.control_socket import user_name
from cdcflow.daemon.lean import end_loading

LOOK_EVERY_S = 0.5
Tables = Mapping[str, Mapping[str, Any]]


class ReadingProgress(Protocol):
    """Shows the progress of tables that are being read, from each new status."""

    def show(self, tables: Tables, *, last: bool = False) -> None: ...
    def explain(self, reading: Mapping[str, Any]) -> None:
        """Show the pace of reading, and the reasons for it."""


def capture_tables(
    settings: Config,
    tables: Sequence[str],
    readers: Readers | None,
    progress_shown: Callable[[], AbstractContextManager[ReadingProgress]],
) -> Tables:
    """Capture until `tables` (empty: all) are read, and return their final states."""
    seen: dict[str, Mapping[str, Any]] = {}
    over = threading.Event()
    lines = event_lines(as_json=False, file=sys.stderr)

    def tell(event: str, fields: Mapping[str, object]) -> None:
        if "interrupted" in event:
            lines(event, fields)

    by = f"command line, {user_name(os.getuid())}"
    capture = wiring.capture(
        settings, backfill=tables, once=True, wait=False, asked_by=by, on_event=tell, readers=readers
    )
    end_loading()

    def look() -> None:
        with progress_shown() as progress:
            while not over.wait(LOOK_EVERY_S):
                status = capture.status()
                reading, now = status.get("reading"), status.get("tables")
                if isinstance(reading, dict):
                    progress.explain(reading)
                if isinstance(now, dict):
                    seen.update({n: f for n, f in now.items() if not tables or n in tables})
                    progress.show(seen)
            seen.update(_in_log(settings, tables))
            progress.show(seen, last=True)

    looking = threading.Thread(target=look, name="progress")
    looking.start()
    try:
        daemon.run(settings, capture, tell)
    finally:
        over.set()
        looking.join()
    return seen


def _in_log(settings: Config, tables: Sequence[str]) -> Tables:
    """Return the tables' entries at the log's latest cut."""
    reader = wiring.log_reader(settings)
    found = reader.newest_checkpoint().progress.get("tables", {}) if reader.exists() else {}
    return {n: f for n, f in found.items() if not tables or n in tables} if isinstance(found, dict) else {}
