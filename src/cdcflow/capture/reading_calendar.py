"""Estimates how long a backfill takes if it may read only at some hours, or a limited amount in a day. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from cdcflow.model.reading_hours import next_midnight
from cdcflow.model.source_load import ReadingLimits

STEPS_MAX = 400
"""How many openings, closings and midnights are simulated one by one. A longer backfill is extrapolated from them."""


@dataclass(frozen=True, slots=True)
class ReadingCalendar:
    """When rows may be read according to `limits`, by their hours and their day's budget, starting `now` with nothing
    read today.

    It ignores limits on the source's load, because how busy the source will be is unknown.
    """

    limits: ReadingLimits
    now: datetime

    @property
    def begins_at(self) -> datetime | None:
        """When reading begins; None: now."""
        hours = self.limits.hours
        return None if hours is None or hours.is_open(self.now) else hours.changes_at(self.now)

    def elapsed_s(self, seconds: float, rows: int, size: int | None) -> float:
        """Return the seconds from now until `rows` rows of `size` bytes in all (None: unknown), which take `seconds` of
        reading, are read."""
        per_day_s = self._seconds_per_day(seconds, rows, size)
        left_s, at, of_today_s = seconds, self.now, per_day_s
        for _ in range(STEPS_MAX):
            if left_s <= 0:
                return (at - self.now).total_seconds()
            midnight = next_midnight(at, self.limits.day.zone).astimezone(UTC)
            is_open, changes = self._hours(at)
            until = min(changes or midnight, midnight)
            if is_open:
                read_s = min(left_s, of_today_s, (until - at).total_seconds())
                left_s, of_today_s = left_s - read_s, of_today_s - read_s
                if left_s <= 0:
                    return (at - self.now).total_seconds() + read_s
            at = midnight if of_today_s <= 0 else until
            of_today_s = per_day_s if at == midnight else of_today_s
        return (at - self.now).total_seconds() * seconds / max(seconds - left_s, 1e-9)

    def _hours(self, at: datetime) -> tuple[bool, datetime | None]:
        hours = self.limits.hours
        return (True, None) if hours is None else (hours.is_open(at), hours.changes_at(at))

    def _seconds_per_day(self, seconds: float, rows: int, size: int | None) -> float:
        """Return after how many seconds of reading a day's budget is used up; infinite if the day has no budget."""
        day = self.limits.day
        lasts = [math.inf if day.seconds is None else day.seconds]
        lasts += [seconds * day.rows / rows] if day.rows is not None and rows else []
        lasts += [seconds * day.bytes / size] if day.bytes is not None and size else []
        return min(lasts)
