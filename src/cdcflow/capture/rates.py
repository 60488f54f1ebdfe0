"""How fast rows arrive: all of them recently, and existing ones while there were some to read."""

from __future__ import annotations

from collections import deque

LEAST_S = 1.0
LOOK_EACH_S = 0.25
RECENT_S = 5


class RecentRate:
    """Rows a second over the last seconds. Used by one thread, readable from any."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=64)

    def is_due(self, now_s: float) -> bool:
        """It is time to record again."""
        return not self._seen or now_s - self._seen[-1][0] >= LOOK_EACH_S

    def record(self, now_s: float, rows: int) -> None:
        """Record the number of rows so far."""
        self._seen.append((now_s, rows))

    def rows_per_second(self, now_s: float) -> float:
        recent = [point for point in list(self._seen) if point[0] >= now_s - RECENT_S]
        if len(recent) < 2:
            return 0.0
        return round((recent[-1][1] - recent[0][1]) / max(recent[-1][0] - recent[0][0], 0.001), 1)


class ReadingRate:
    """Rows a second over the time in which a backfill was under way. Used by one thread, readable from any."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._rows = 0
        self._before: tuple[float, int] | None = None

    def record(self, now_s: float, rows: int, *, is_reading: bool) -> None:
        """Record the number of rows read so far, and whether there are more to read."""
        if self._before is not None and (is_reading or rows > self._before[1]):
            self._seconds += now_s - self._before[0]
            self._rows += rows - self._before[1]
        self._before = now_s, rows

    @property
    def rows_per_second(self) -> float | None:
        """None if reading did not last long enough to measure."""
        return self._rows / self._seconds if self._rows and self._seconds >= LEAST_S else None
