"""The data of the page's plots: a few numbers of the status, in memory.

They are sampled every ten seconds and kept for six hours, in a ring of fixed size (about 120 kB), so that a daemon that
runs for a year holds no more than one that runs for a day.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

EVERY_S = 10.0
HOURS = 6
FIELDS = ("lag_bytes", "lag_seconds", "rows_per_second", "retained_bytes", "held_rows", "disk_free_bytes")
_LOWEST = frozenset({"disk_free_bytes"})

Sample = Callable[[], Mapping[str, Any]]


class SampleHistory:
    """The numbers of `sample` over time. `start` samples them until `close`; any thread may read them."""

    def __init__(self, sample: Sample, every_s: float = EVERY_S, hours: float = HOURS) -> None:
        self._sample = sample
        self._every_s = every_s
        self._rows = np.full((math.ceil(hours * 3600 / every_s), 1 + len(FIELDS)), np.nan)
        self._taken = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="history", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def take(self, now: float) -> None:
        """Record the numbers at `now`, in seconds since 1970. Those that are unavailable are missing."""
        try:
            found: Mapping[str, Any] = self._sample()
        except Exception:  # noqa: BLE001 - a number that is missing in a plot is no reason to stop anything
            found = {}
        row = [now, *(_number(found.get(name)) for name in FIELDS)]
        with self._lock:
            self._rows[self._taken % len(self._rows)] = row
            self._taken += 1

    def points(self, points_max: int = 240) -> dict[str, list[float | None]]:
        """Times (seconds since 1970) and numbers, oldest first: at most `points_max`, each the worst of its interval.

        The worst is the highest number, for free space the lowest. It is None where the value was unknown.
        """
        with self._lock:
            count = min(self._taken, len(self._rows))
            rows = np.roll(self._rows, -self._taken, axis=0)[len(self._rows) - count :]
        step = max(1, -(-count // points_max))
        stretches = [rows[at : at + step] for at in range(0, count, step)]
        found: dict[str, list[float | None]] = {"time": [float(part[-1, 0]) for part in stretches]}
        for column, name in enumerate(FIELDS, start=1):
            worst = min if name in _LOWEST else max
            found[name] = [_worst(part[:, column].tolist(), worst) for part in stretches]
        return found

    def _run(self) -> None:
        while not self._closed.is_set():
            self.take(time.time())
            self._closed.wait(self._every_s)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _worst(values: Sequence[float], worst: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return worst(known) if known else None
