"""Checkpoints of Delta tables that are written while merges run, so that no commit waits for them.

    version 49    50            51    52            each a commit
                  └ due ──▶ a thread writes the checkpoint of 50 ──▶ a table opened later begins there

Tables that are merged together reach their intervals in the same merge, which would then write all of their
checkpoints. A checkpoint repeats the contents of commits. So a process that dies before it has written one has lost
nothing: the next one that is due has all of it.
"""

from __future__ import annotations

from cdcflow.tables.local.deltalog import DeltaLog


class DueCheckpoints:
    """Implements `cdcflow.tables.port.Later`. Several threads may use it; only one at a time writes."""

    def __init__(self) -> None:
        self._due: dict[str, DeltaLog] = {}
        self._written: dict[str, tuple[str, int]] = {}

    @property
    def is_due(self) -> bool:
        return bool(self._due)

    def do_next(self) -> None:
        """Write the checkpoint that has been due for the longest time."""
        location = list(self._due)[0]  # noqa: RUF015  another thread may add one
        log = self._due.pop(location)
        table = log.metadata["id"]
        if (version := log.write_later()) >= 0:
            self._written[location] = table, version

    def follow(self, log: DeltaLog) -> None:
        """Make the checkpoints of a table's log due here instead of writing them at once, and make the log begin at the
        latest one."""
        log.on_checkpoint = self._note
        table, version = self._written.get(log.location, ("", -1))
        if log.version >= 0 and log.metadata["id"] == table:
            log.begin_at(version)

    def _note(self, log: DeltaLog) -> None:
        self._due[log.location] = log.copy()
