"""Reads a chunk in slices: short statements with pauses between, so that other sessions never wait for a whole chunk.

    chunk at full pace       ████████████████████
    with a third of the time █──█──█──█──█──█──█─       a slice takes about half a millisecond of the server's time

A limit on the time that a chunk takes is not enough for the commits of an application: each of those that arrive while
the server is busy with the chunk may wait. With slices they wait for one slice at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cdcflow.model.table import TableId

SLICE_S = 0.0004
"""The duration that a slice aims at. The longer it is, the longer a commit waits for the processor; the shorter it is,
the larger is the part of the work that statements cost by themselves."""
SLICE_S_MAX = 0.002
"""The longest duration that a slice aims at. Slices become longer where round trips are long, because otherwise most
time would pass between them."""
FIRST_SIZE = 4
GROWTH_MAX = 2.0
FORGETTING = 1.2
"""Slices follow the shortest round trip measured. At each measurement that value may grow by this factor, because the
way to the server may have changed."""
PAUSE_S_MAX = 1.0


class SlicePace:
    """The sizes of slices, and the pauses between them, for one table.

    The size follows the time that slices take. It is in units of the caller (pages, rows), and is remembered from one
    chunk to the next.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._size = float(FIRST_SIZE)
        self._round_trip_s: float | None = None

    def measure_round_trip(self, ask: Callable[[], object]) -> None:
        """Measure how long the server takes to answer a statement that does nothing."""
        began = self._clock()
        ask()
        took = self._clock() - began
        known = self._round_trip_s
        self._round_trip_s = took if known is None else min(took, known * FORGETTING)

    def slices(self, share: float) -> Slices:
        """Return the slices of a chunk, which take this share of the time."""
        return Slices(self, share, self._clock)

    @property
    def size(self) -> int:
        """The size of the next slice."""
        return max(1, int(self._size))

    def pause_after(self, took_s: float, share: float) -> float:
        """Adapt the size to a slice that took this long, and pause. Return how long the server is idle until the next
        one, in seconds."""
        round_trip_s = self._round_trip_s or 0.0
        busy_s = max(took_s - round_trip_s, 1e-6)
        rest = 1 / share - 1
        aim_s = min(SLICE_S_MAX, max(SLICE_S, round_trip_s / rest if rest else SLICE_S_MAX))
        self._size = max(1.0, self._size * min(GROWTH_MAX, max(1 / GROWTH_MAX, aim_s / busy_s)))
        # The server is idle during a round trip, too.
        pause_s = min(PAUSE_S_MAX, max(0.0, busy_s * rest - round_trip_s))
        if pause_s:
            self._sleep(pause_s)
        return pause_s + min(round_trip_s, busy_s * rest)


class Slices:
    """Yields the sizes of one chunk's slices. Each iteration first pauses for the slice before.

    `idle_s`: how long the server was idle between them so far, in seconds.
    """

    def __init__(self, pace: SlicePace, share: float, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._share = share
        self._clock = clock
        self._began: float | None = None
        self.idle_s = 0.0

    def __iter__(self) -> Slices:
        return self

    def __next__(self) -> int:
        if self._began is not None:
            self.idle_s += self._pace.pause_after(self._clock() - self._began, self._share)
        self._began = self._clock()
        return self._pace.size


class SlicePaces:
    """The paces of all tables. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paces: dict[TableId, SlicePace] = {}

    def of(self, table: TableId) -> SlicePace:
        """Return the pace of a table."""
        with self._lock:
            return self._paces.setdefault(table, SlicePace())
