"""How fast existing rows were read while there was something to read."""

from __future__ import annotations

LEAST_S = 1.0


class ReadingRate:
    """Rows a second over the time in which a backfill was under way. Used by one thread, asked by any."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._rows = 0
        self._before: tuple[float, int] | None = None

    def seen(self, now_s: float, rows: int, *, is_reading: bool) -> None:
        """So many rows were read by now, and whether there are more to read."""
        if self._before is not None and (is_reading or rows > self._before[1]):
            self._seconds += now_s - self._before[0]
            self._rows += rows - self._before[1]
        self._before = now_s, rows

    @property
    def rows_per_second(self) -> float | None:
        """None: nothing was read for long enough to tell."""
        return self._rows / self._seconds if self._rows and self._seconds >= LEAST_S else None
