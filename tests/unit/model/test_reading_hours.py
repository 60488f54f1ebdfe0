"""The hours in which rows are read, by a wall clock that is changed twice a year."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcflow.model.reading_hours import ReadingHours, next_midnight, parse_hours

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = parse_hours("22:00-06:00 Europe/Berlin", ZoneInfo)
ZONES = [BERLIN, ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("America/Santiago"), UTC]
MINUTES = st.integers(0, 24 * 60 - 1)
INSTANTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)).map(lambda t: t.replace(tzinfo=UTC))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def open_minutes(hours: ReadingHours, first: datetime, last: datetime) -> int:
    """How many minutes it is open between two instants, counted one by one."""
    count = int((last - first) / timedelta(minutes=1))
    return sum(hours.is_open(first + timedelta(minutes=n)) for n in range(count))


@pytest.mark.parametrize(
    ("noon", "minutes"),
    [("2026-03-28T12:00", 7 * 60), ("2026-10-24T12:00", 9 * 60), ("2026-06-10T12:00", 8 * 60)],
    ids=["night of spring", "night of autumn", "other night"],
)
def test_night_lasts_as_long_as_the_clock_on_the_wall_says(noon: str, minutes: int) -> None:
    """From 22:00 to 06:00 are seven hours where the clock skips one, and nine where it repeats one: a backfill that
    reads until 07:00 meets the first customers of the day."""
    first = utc(noon)
    assert open_minutes(NIGHT, first, first + timedelta(days=1)) == minutes


def test_night_ends_at_six_local_time_on_both_days_of_change() -> None:
    """In UTC that is 04:00 after the change of spring, and 05:00 after that of autumn."""
    assert NIGHT.changes_at(utc("2026-03-28T23:00")) == utc("2026-03-29T04:00")
    assert NIGHT.changes_at(utc("2026-10-24T23:00")) == utc("2026-10-25T05:00")
    assert NIGHT.changes_at(utc("2026-10-25T12:00")) == utc("2026-10-25T21:00")


def test_span_within_the_skipped_hour_waits_for_the_next_day() -> None:
    """02:15 does not exist in the night of spring."""
    hours = parse_hours("02:15-02:45 Europe/Berlin", ZoneInfo)
    assert hours.changes_at(utc("2026-03-28T12:00")) == utc("2026-03-30T00:15")


def test_span_that_begins_in_the_skipped_hour_opens_when_the_clock_has_passed_it() -> None:
    """02:30 does not exist, and at 03:00 the span from 02:30 to 04:00 is under way."""
    hours = parse_hours("02:30-04:00 Europe/Berlin", ZoneInfo)
    assert hours.changes_at(utc("2026-03-28T12:00")) == utc("2026-03-29T01:00")


def test_span_in_the_repeated_hour_is_open_twice() -> None:
    """02:15 occurs twice in the night of autumn; both are that time by the clock."""
    hours = parse_hours("02:15-02:45 Europe/Berlin", ZoneInfo)
    assert open_minutes(hours, utc("2026-10-24T12:00"), utc("2026-10-25T12:00")) == 60


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(ZONES), st.lists(st.tuples(MINUTES, MINUTES), min_size=1, max_size=3), INSTANTS)
def test_next_change_is_the_first_one(zone: ZoneInfo, spans: list[tuple[int, int]], at: datetime) -> None:
    """What status prints as the time at which reading resumes is that time: not a minute earlier, not one later."""
    hours = ReadingHours(tuple(span for span in spans if span[0] != span[1]), zone)
    before, change = hours.is_open(at), hours.changes_at(at)
    if change is None:
        assert open_minutes(hours, at, at + timedelta(days=2)) in (0, 2 * 24 * 60)
        return
    assert change > at
    assert hours.is_open(change) != before
    minutes = int((change - at) / timedelta(minutes=1))
    assert all(hours.is_open(at + timedelta(minutes=n)) == before for n in range(minutes))


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(ZONES), INSTANTS)
def test_next_midnight_begins_another_date(zone: ZoneInfo, at: datetime) -> None:
    """A day's budget is whole again then, also in zones whose clock is changed at midnight."""
    midnight = next_midnight(at, zone)
    assert midnight > at
    date = at.astimezone(zone).date()
    assert midnight.astimezone(zone).date() > date
    assert (midnight.astimezone(UTC) - timedelta(seconds=1)).astimezone(zone).date() == date


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("22:00-06:00", "time zone"),
        ("Europe/Berlin", "time zone"),
        ("22-06 Europe/Berlin", "not a span"),
        ("22:00-22:00 UTC", "same time"),
        ("22:60-23:00 UTC", "not a time"),
        ("22:00-25:00 UTC", "not a time"),
        ("22:00-06:00 Nowhere", "unknown"),
        ("", "time zone"),
    ],
)
def test_text_that_names_no_hours_is_refused(text: str, why: str) -> None:
    """A misspelled text must not mean any time, nor none."""

    def zone_of(name: str) -> ZoneInfo:
        if name == "Nowhere":
            raise ValueError("unknown")
        return ZoneInfo(name)

    with pytest.raises(ValueError, match=why):
        parse_hours(text, zone_of)


def test_several_spans_are_read() -> None:
    """A lunch break counts as well as a night."""
    hours = parse_hours("12:00-13:00, 22:00-24:00 UTC", lambda name: UTC)
    assert [hours.is_open(utc(f"2026-05-01T{time}")) for time in ("11:59", "12:00", "13:00", "23:59")] == [
        False,
        True,
        False,
        True,
    ]
