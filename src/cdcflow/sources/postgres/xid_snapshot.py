"""Which transactions one of PostgreSQL's snapshots sees. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdcflow.model.change import Uint64s

IDS_ABOVE_XMAX = 100_000


@dataclass(frozen=True, slots=True)
class XidSnapshot:
    """PostgreSQL's `pg_current_snapshot()`: 64-bit ids; `in_progress`: the ids between xmin and xmax still running.

    Delivered ids have 32 bits (pgoutput). Each is placed in the epoch that brings it nearest to xmax: the server never
    lets two ids in use be 2^31 apart (hard case W07).
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> XidSnapshot:
        """Parse the function's text: `xmin:xmax:ids`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x))

    def hidden(self, xids: Uint64s) -> Uint64s:
        if not len(xids):
            return xids
        low = xids & np.uint64(0xFFFFFFFF)
        behind = (np.uint64(self.xmax & 0xFFFFFFFF) - low).astype(np.uint32).astype(np.int32).astype(np.int64)
        full = self.xmax - behind
        running = np.isin(full, np.fromiter(self.in_progress, np.int64, len(self.in_progress)))
        return xids[(full >= self.xmax) | running]

    def maybe_hidden(self) -> Uint64s:
        """Return the ids listed as running, and those starting at xmax.

        A transaction that waits for a standby may have the highest id of all, which is then above xmax and in no list.
        """
        running = np.array(sorted(self.in_progress), np.uint64)
        above = np.arange(self.xmax, self.xmax + IDS_ABOVE_XMAX, dtype=np.uint64)
        return np.concatenate([running, above])
