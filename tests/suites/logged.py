"""What a log has of each table, read once: a suite is compared many times, and its log only grows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.table import Table, TableId
from cdcflow.testing.folded import Logged, changes_of, current


class LogSoFar:
    """The rows of a log that were read already, and what came out of them."""

    def __init__(self) -> None:
        self._changes: dict[TableId, Logged] = defaultdict(list)
        self._read = 0
        self._folded: dict[TableId, tuple[object, Table, list[dict[str, Any]]]] = {}

    def read(self, log: LogReader) -> Progress:
        """Read what was added since the last call: the rows up to a checkpoint, whose progress is the answer."""
        checkpoint = log.newest_checkpoint()
        newest = self._read
        for table, _version, rows in log.read_rows(self._read + 1, checkpoint.next_offset - 1):
            for change in changes_of(table, rows):
                self._changes[table.id].append((table, change))
                newest = max(newest, change.offset)
        self._read = newest
        return Progress.from_json(checkpoint.progress)

    def has(self, table: TableId) -> bool:
        return bool(self._changes.get(table))

    def current(
        self, table: TableId, progress: TableProgress, *, anew: bool = False
    ) -> tuple[Table, list[dict[str, Any]]]:
        """A table's latest shape and its rows by column name. `anew`: since the latest backfill began.

        Raises:
            Unmergeable: the shapes are such that only a new table can hold them.
        """
        changes = self._changes[table]
        seen = (len(changes), progress.state, progress.since, anew)
        known = self._folded.get(table)
        if known is None or known[0] != seen:
            changes.sort(key=lambda pair: pair[1].offset)
            known = (seen, *current(changes, progress, since_backfill=anew))
            self._folded[table] = known
        return known[1], known[2]


__all__ = ["LogSoFar"]
