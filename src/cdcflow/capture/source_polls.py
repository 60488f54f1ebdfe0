"""The loop's periodic requests to the source: a heartbeat, and whether its tables have changed."""

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
    """The list of captured tables has changed; the next attempt uses the new one."""


class SourceLooks:
    """Sends periodic checks as tasks when they are due. Their results are answers of `tasks`.

    `tables` are those captured now; `progress` returns the machine's when a check runs.
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
        self._heartbeat_s = heartbeat_s
        self._tables_look_s = tables_look_s
        self._looked_at_tables = self._beat_at = now_s

    def send_due(self, now_s: float) -> None:
        if now_s - self._beat_at >= self._heartbeat_s:
            self._beat_at = now_s
            self._tasks.call(self._heartbeat)
        if now_s - self._looked_at_tables >= self._tables_look_s:
            self._looked_at_tables = now_s
            self._tasks.call(self._look_at_tables)

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
    """The versions of the rows of tables that were read, are being read, or will be read."""
    read = {t: p for t, p in progress.tables.items() if p.state == "done" or p.active}
    return {t: KnownRows(p.generation, p.row_version) for t, p in read.items()}
