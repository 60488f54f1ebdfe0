"""The hours of a day in which rows may be read from a source, by the wall clock of a time zone. Pure.

A wall clock skips an hour in spring and repeats one in autumn. So nothing here adds hours to a local time: an instant
is converted to the wall clock's time, which is compared with the spans. Hours that do not exist on a day are skipped,
and those that occur twice are open twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

DAY_MINUTES = 24 * 60
DAYS_SEARCHED = 9
"""How many days ahead `changes_at` searches. One day is not enough: a span within the hour that spring skips is missing
on that day."""
_SPAN = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")
_EXAMPLE = "such as 22:00-06:00 Europe/Berlin"


@dataclass(frozen=True, slots=True)
class ReadingHours:
    """Spans of a day, as (first, end) in minutes after midnight. The end is exclusive, and less than the first if the
    span lasts beyond midnight."""

    spans: tuple[tuple[int, int], ...]
    zone: tzinfo

    def is_open(self, at: datetime) -> bool:
        """Whether rows may be read at this instant."""
        wall = at.astimezone(self.zone)
        minute = wall.hour * 60 + wall.minute
        return any(_is_within(minute, first, end) for first, end in self.spans)

    def changes_at(self, at: datetime) -> datetime | None:
        """Return the first instant after `at` at which reading becomes allowed or forbidden; None if neither happens in
        the next days."""
        is_open, first = self.is_open(at), at.replace(second=0, microsecond=0)
        for _ in range(DAYS_SEARCHED):
            for minutes in self._candidates(first):
                if self.is_open(first + timedelta(minutes=minutes)) != is_open:
                    return first + timedelta(minutes=minutes)
            first += timedelta(days=1)
        return None

    def _candidates(self, first: datetime) -> Iterable[int]:
        """Return the minutes of the 24 hours after an instant at which the hours may begin or end, in order: each
        minute if the clock is changed within them."""
        wall, later = first.astimezone(self.zone), (first + timedelta(days=1)).astimezone(self.zone)
        if wall.utcoffset() != later.utcoffset():
            return range(1, DAY_MINUTES + 1)
        now = wall.hour * 60 + wall.minute
        return sorted((edge - now - 1) % DAY_MINUTES + 1 for span in self.spans for edge in span)


def _is_within(minute: int, first: int, end: int) -> bool:
    return first <= minute < end if first < end else minute >= first or minute < end


def parse_hours(text: str, zone_of: Callable[[str], tzinfo]) -> ReadingHours:
    """Parse the hours in a text: `22:00-06:00 Europe/Berlin`, or several spans with commas between.

    `zone_of` returns the time zone of a name, or raises ValueError. Raises ValueError if the text has another form.
    """
    spans, _, zone = text.strip().rpartition(" ")
    if not spans or _SPAN.search(zone):
        raise ValueError(f"names no time zone; write hours and a zone, {_EXAMPLE} (UTC is one, too)")
    return ReadingHours(tuple(_span(one) for one in spans.split(",")), zone_of(zone))


def _span(text: str) -> tuple[int, int]:
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'"{text.strip()}" is not a span of hours; write {_EXAMPLE}')
    first, end = (_minute(*found.group(n, n + 1)) for n in (1, 3))
    if first % DAY_MINUTES == end % DAY_MINUTES and (first, end) != (0, DAY_MINUTES):
        raise ValueError(f'"{text.strip()}" begins and ends at the same time; omit hours to read at any time')
    return first, end


def _minute(hours: str, minutes: str) -> int:
    minute = int(hours) * 60 + int(minutes)
    if int(minutes) >= 60 or minute > DAY_MINUTES:
        raise ValueError(f'"{hours}:{minutes}" is not a time of a day')
    return minute


def next_midnight(at: datetime, zone: tzinfo) -> datetime:
    """Return the first instant after `at` that belongs to another day in this zone."""
    wall = at.astimezone(zone)
    return datetime(wall.year, wall.month, wall.day, tzinfo=zone) + timedelta(days=1)
