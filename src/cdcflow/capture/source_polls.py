"""The loop's periodic requests to the source: a heartbeat, and a check whether its tables have changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from cdcflow.capture.interleave.messages import Input, KnownRows, SnapshotTaken
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.source import Source
from cdcflow.capture.source_tasks import SourceTasks
from cdcflow.errors import RightMissing, SourceUnavailable
from cdcflow.model.table import Table, TableId


class TablesChanged(Exception):
    """Ends an attempt because the list of captured tables has changed; the next attempt uses the new list."""


class _Check:
    """A periodic check. `every_s`: the interval between the end of one run and the beginning of the next.

    Checks that take longer than their interval must not queue: the backfill's chunks would wait for all of them.
    """

    def __init__(self, every_s: float, now_s: float, check: Callable[[], Input | None]) -> None:
        self._every_s = every_s
        self._since_s = now_s
        self._check = check
        self._is_waiting = False

    def becomes_due(self, now_s: float) -> bool:
        """Whether the check is to run now. It is not due again before `run` has ended and the interval has passed."""
        if self._is_waiting:
            self._since_s = now_s
            return False
        if now_s - self._since_s < self._every_s:
            return False
        self._since_s = now_s
        self._is_waiting = True
        return True

    def run(self) -> Input | None:
        try:
            return self._check()
        finally:
            self._is_waiting = False


class SourceLooks:
    """Sends periodic checks as tasks when they are due. Their results are among the answers of `tasks`.

    `tables`: the tables captured now; `progress` returns the machine's progress when a check runs.
    """

    def __init__(
        self,
        source: Source,
        chunks: ChunkSource,
        tasks: SourceTasks,
        tables: Sequence[Table],
        progress: Callable[[], Progress],
        *,
        heartbeat_s: float,
        tables_look_s: float,
        now_s: float,
    ) -> None:
        self._source = source
        self._chunks = chunks
        self._tasks = tasks
        self._tables = tables
        self._progress = progress
        self._checks = [
            _Check(heartbeat_s, now_s, self._heartbeat),
            _Check(tables_look_s, now_s, self._look_at_tables),
        ]

    def send_due(self, now_s: float) -> None:
        for check in self._checks:
            if check.becomes_due(now_s):
                self._tasks.call(check.run)

    def _heartbeat(self) -> Input | None:
        with contextlib.suppress(SourceUnavailable, RightMissing):  # the stream notices too, and reports it better
            self._chunks.heartbeat()
            return SnapshotTaken(self._chunks.snapshot())
        return None

    def _look_at_tables(self) -> Input | None:
        with contextlib.suppress(SourceUnavailable, RightMissing):
            now = {(t.id, t.incarnation) for t in self._source.tables()}
            if now != {(t.id, t.incarnation) for t in self._tables}:
                raise TablesChanged
            return self._source.compare_rows(known_rows(self._progress()))
        return None


def known_rows(progress: Progress) -> dict[TableId, KnownRows]:
    """Return the row versions of the tables that were read, are being read, or will be read."""
    read = {t: p for t, p in progress.tables.items() if p.state == "done" or p.active}
    return {t: KnownRows(p.generation, p.row_version) for t, p in read.items()}
