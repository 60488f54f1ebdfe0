"""Visibility on a standby: what a snapshot sees, as bounds in the log that the standby replays. Pure.

A standby's `pg_current_snapshot()` does not list the transactions that still run at the primary (hard case W06), so ids
prove nothing. But one process replays the log record by record, so commits become visible in the order of the log, and
a snapshot is a place in it:

    log   ──[commit]──[commit]──[commit]──[record in replay]──▶
                               │                            │
                             seen                         unseen

    seen     the end of the replayed log, read before the snapshot: commits that begin before it are visible
    unseen   the same, read after the snapshot, and one record more: commits that begin there or later are not

One record more, because a commit is visible shortly before the server counts its record as replayed
(`xact_redo_commit`, then `ApplyWalRecord`). Only if the standby had received nothing after the replayed end, and
receives its log from a server, was no record in replay. A commit is delivered only after it was replayed, so
transactions that the stream has delivered are visible; but a pool may have connections to several standbys, so this is
checked as well.

The stream's transaction ids do not contain a place in the log. `DeliveredCommits` remembers the place of each commit
for as long as a fence may need it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import Int64s, Uint64s
from cdcflow.sources.engine.fences_in_use import FencesInUse
from cdcflow.sources.postgres.lsn import Lsn

NONE_HIDDEN = np.empty(0, np.uint64)
"""No transaction is hidden. What an earlier run delivered is visible, because a start waits until the standby has
replayed it."""
PAGE_BYTES_MIN = 1024
PAGE_HEADER_BYTES_MAX = 40
"""The size of the smallest page of the log, and of the longest header that a page begins with (`SizeOfXLogLongPHD`)."""


class ReplayVisibility:
    """Sees each commit whose record begins before `bound`, and none that begins there or later. `commits`: None in a
    process that has no stream."""

    __slots__ = ("__weakref__", "bound", "commits")

    def __init__(self, bound: Lsn, commits: DeliveredCommits | None = None) -> None:
        self.bound = bound
        self.commits = commits

    def hidden(self, xids: Uint64s) -> Uint64s:
        if self.commits is None:
            raise TypeError("asked in a process that has no stream")
        return self.commits.since(self.bound, xids)

    def maybe_hidden(self) -> Uint64s:
        return NONE_HIDDEN


class DeliveredCommits(FencesInUse[ReplayVisibility]):
    """Remembers where the commit record of each delivered transaction begins, while a fence may need it. Thread-safe.

    `position`: where the stream began; a transaction that ends before it is not remembered.
    """

    def __init__(self, position: Lsn) -> None:
        super().__init__()
        self._forgotten = position.value
        self._parts: list[tuple[Uint64s, Int64s]] = []

    def __len__(self) -> int:
        return sum(len(xids) for xids, _ in self._parts)

    def add(self, xids: Uint64s, begins: Int64s) -> None:
        """Remember transactions that were delivered, in the order of the log."""
        if len(xids):
            with self._lock:
                self._parts.append((xids, begins))

    @property
    def end(self) -> Lsn:
        """A bound after every commit that was delivered."""
        with self._lock:
            last = int(self._parts[-1][1][-1]) if self._parts else -1
            return Lsn(max(self._forgotten, last + 1))

    def fence(self, bound: Lsn) -> ReplayVisibility:
        """Return a fence at a bound that was read within a `look`.

        Raises:
            SourceUnavailable: the server has not even replayed all of the delivered transactions that are already
                forgotten.
        """
        with self._lock:
            if bound.value < self._forgotten:
                raise not_replayed(bound, Lsn(self._forgotten))
            return self._use(ReplayVisibility(bound, self))

    def since(self, bound: Lsn, xids: Uint64s) -> Uint64s:
        """Return those of these transactions whose commit begins at this bound or later."""
        late: list[Uint64s] = []
        with self._lock:
            for known, begins in reversed(self._parts):
                first = int(np.searchsorted(begins, bound.value))
                late.append(known[first:])
                if first:
                    break
        return xids[np.isin(xids, np.concatenate(late))] if late else xids[:0]

    def _forget(self, fences: Sequence[ReplayVisibility]) -> None:
        bound = min(fence.bound for fence in fences).value
        while self._parts and self._parts[0][1][-1] < bound:
            self._forgotten = max(self._forgotten, int(self._parts.pop(0)[1][-1]) + 1)


def not_replayed(replayed: Lsn, needed: Lsn) -> SourceUnavailable:
    """Return the error for a standby that shows an earlier state than the one that the change log has."""
    return SourceUnavailable(
        f"the standby has replayed its log up to {replayed}, and the change log has it up to {needed}",
        remedy="nothing: cdcflow waits until the standby has replayed it. If it does not get there, look for "
        "pg_is_wal_replay_paused(), and for a source.url that leads to several standbys",
        runbook="standby-not-replayed",
    )


def unseen_from(replayed: Lsn, received: Lsn | None, *, is_receiving: bool) -> Lsn:
    """Return a position such that no commit at or after it is visible to a snapshot.

    `replayed` was read after the snapshot, `received` after that (None: unknown), and `is_receiving` last: whether the
    standby receives its log from a server.
    """
    if is_receiving and received is not None and received <= replayed:
        return replayed
    header = 0 if replayed.value % PAGE_BYTES_MIN else PAGE_HEADER_BYTES_MAX
    return replayed + header + 1
