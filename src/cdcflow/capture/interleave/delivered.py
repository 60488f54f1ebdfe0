"""Remembers which transactions the stream has delivered that a chunk's snapshot might not see yet.

A commit reaches the source's log, and cdcflow, before other sessions see its rows: for microseconds on a quiet server,
and on a server with a synchronous standby for as long as the standby makes the commit wait (hard case W01). The id of
such a transaction is remembered here until some snapshot has seen it. Every later snapshot sees it too, so it can be
forgotten then.

"Later" is the hazard: a chunk's snapshot that is already taken but not yet answered is not later. So a snapshot is only
recorded at first. It is applied by `forget`, which the machine calls while no chunk is under way.
"""

from __future__ import annotations

import numpy as np

from cdcflow.capture.interleave.messages import Visibility
from cdcflow.model.change import Uint64s


class Delivered:
    """Ids of delivered transactions, oldest first. `count_max`: a snapshot is requested when more than this many are
    remembered."""

    def __init__(self, ids: Uint64s, count_max: int) -> None:
        self._parts = [ids]
        self._count = len(ids)
        self._count_max = count_max
        self._snapshot_at = count_max
        self._snapshots: list[tuple[Visibility, ...]] = []

    def __len__(self) -> int:
        return self._count

    def add(self, ids: Uint64s) -> None:
        self._parts.append(ids)
        self._count += len(ids)

    def ids(self) -> Uint64s:
        """Return all remembered ids, as an array that does not change later."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def record_snapshot(self, *visibilities: Visibility) -> None:
        """Record that a snapshot was taken, for `forget`.

        With several visibilities, only ids that all of them see count as seen: a visibility may be only an upper bound
        of what the snapshot sees.
        """
        if visibilities:
            self._snapshots.append(visibilities)

    def forget(self) -> None:
        """Drop the ids that any recorded snapshot has seen. Call it only while no chunk is under way."""
        if not self._snapshots:
            return
        ids = self.ids()
        for snapshot in self._snapshots:
            ids = _hidden_ids(snapshot, ids)
        self._parts, self._count, self._snapshots = [ids], len(ids), []
        self._snapshot_at = max(self._count_max, 2 * self._count)

    def wants_snapshot(self) -> bool:
        """Whether to take a snapshot in order to forget ids: true once more than `count_max` are remembered, and again
        each time their number has doubled."""
        if self._count <= self._snapshot_at:
            return False
        self._snapshot_at = 2 * self._count
        return True


def _hidden_ids(snapshot: tuple[Visibility, ...], ids: Uint64s) -> Uint64s:
    """Return those of these ids that some part of the snapshot does not see."""
    if len(snapshot) == 1:
        return snapshot[0].hidden(ids)
    return ids[np.isin(ids, np.concatenate([visibility.hidden(ids) for visibility in snapshot]))]
