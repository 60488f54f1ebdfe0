"""Backfills that a running daemon does: requesting one, and waiting until its tables are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from cdcflow.config import Config
from cdcflow.daemon.backfill_process import LOOK_EVERY_S, ReadingProgress, Tables
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import SourceUnavailable

SETTLED = ("done", "failed", "cancelled")


def request_backfill(settings: Config, tables: Sequence[str]) -> list[str]:
    """Have the daemon read tables (empty: all) again, and return their names.

    Raises:
        SourceUnavailable: the daemon ended.
    """
    answer = ask(settings.log.folder, {"op": "backfill", "tables": list(tables)})
    if answer is None:
        raise SourceUnavailable(
            "the daemon ended before it answered", remedy="run the same command again", runbook="no-daemon"
        )
    return [str(name) for name in answer["tables"]]


def wait_until_read(
    settings: Config,
    ordered: Sequence[str],
    before: Tables,
    progress_shown: Callable[[], AbstractContextManager[ReadingProgress]],
) -> Tables:
    """Wait until a backfill later than those in `before` has ended for each table. Return the tables' final entries.

    Raises:
        SourceUnavailable: the daemon ended.
    """
    with progress_shown() as progress:
        while True:
            status = ask(settings.log.folder, {"op": "status"})
            if status is None:
                raise SourceUnavailable(
                    "the daemon ended while it read the tables; what was read is kept",
                    remedy="start `cdcflow run` again: it continues where it was",
                    runbook="no-daemon",
                )
            now = {name: status.get("tables", {}).get(name, {}) for name in ordered}
            newer = [
                fields.get("generation", 0) > before.get(name, {}).get("generation", 0) for name, fields in now.items()
            ]
            settled = all(newer) and all(fields.get("state") in SETTLED for fields in now.values())
            progress.show(now, last=settled)
            progress.explain(status.get("reading") or {})
            if settled:
                return now
            time.sleep(LOOK_EVERY_S)
