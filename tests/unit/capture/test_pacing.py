"""The pace of reading, from limits, measurements and the clock."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcflow.capture.pacing import (
    BASE_COMMITS_MIN,
    NEAR,
    SHARE_MIN,
    CommitPace,
    decide,
    share_near,
)
from cdcflow.capture.reading_calendar import ReadingCalendar
from cdcflow.model.reading_hours import ReadingHours, parse_hours
from cdcflow.model.source_load import GAUGES, DayBudget, DayUse, Gauge, LoadLimits, ReadingLimits, SourceLoad

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NIGHT = parse_hours("22:00-06:00 Europe/Berlin", ZoneInfo)
VALUES = st.floats(0, 1e6, allow_nan=False)
POSITIVE = st.floats(1e-3, 1e6, allow_nan=False)
NOTHING = SourceLoad()


def limited(**limits: float) -> ReadingLimits:
    return ReadingLimits(LoadLimits(**limits))


@given(POSITIVE, st.lists(VALUES, min_size=2, max_size=10))
def test_busier_source_is_never_read_faster(limit: float, values: list[float]) -> None:
    """Otherwise a source that becomes busier would be read more."""
    shares = [share_near(value, limit) for value in sorted(values)]
    assert shares == sorted(shares, reverse=True)
    for value, share in zip(sorted(values), shares, strict=True):
        assert (share == 0) == (value > limit)
        assert share == 1 or value > NEAR * limit * 0.999
        assert share == 0 or share >= SHARE_MIN


@given(st.dictionaries(st.sampled_from(GAUGES), POSITIVE), st.dictionaries(st.sampled_from(GAUGES), VALUES))
def test_strictest_limit_counts_and_each_reason_is_reported(
    limits: dict[Gauge, float], values: dict[Gauge, float]
) -> None:
    """What has a limit and was not measured holds the reading: unknown is not within the limit."""
    found = decide(limited(**limits), SourceLoad(values), None, DayUse(), NOON)
    shares = {gauge: share_near(values[gauge], limit) if gauge in values else 0.0 for gauge, limit in limits.items()}
    assert found.pace.all_held == (0.0 in shares.values())
    assert found.pace.share == min((s for s in shares.values() if s > 0), default=1.0)
    assert {reason.limit for reason in found.reasons} == {gauge for gauge, share in shares.items() if share < 1}
    assert found.state == ("held" if 0.0 in shares.values() else "slowed" if found.reasons else "free")


def test_outside_of_the_hours_only_single_rows_are_read() -> None:
    """A table whose last rows are read by key is whole only with them, and they are few."""
    found = decide(ReadingLimits(hours=NIGHT), NOTHING, None, DayUse(), NOON)
    assert (found.pace.ranges_held, found.pace.all_held) == (True, False)
    assert found.until == datetime(2026, 6, 1, 20, tzinfo=UTC)
    assert decide(ReadingLimits(hours=NIGHT), NOTHING, None, DayUse(), NOON + timedelta(hours=9)).state == "free"


@settings(max_examples=50)
@given(st.integers(1, 1000), st.integers(0, 1200), st.integers(0, 47))
def test_budget_of_a_day_is_kept_and_begins_again_at_midnight(rows: int, used: int, hours: int) -> None:
    """What was read yesterday counts for nothing, and never is more offered than the budget has left."""
    limits, now = ReadingLimits(day=DayBudget(rows=rows)), NOON + timedelta(hours=hours)
    found = decide(limits, NOTHING, None, DayUse("2026-06-01", used), now)
    left = rows if now.date() > NOON.date() else max(0, rows - used)
    assert found.pace.rows_max == left
    assert found.pace.ranges_held == (left == 0)
    if left == 0:
        assert found.until == datetime(2026, 6, 2, tzinfo=UTC)


def test_used_up_budget_waits_for_the_hours_that_follow_its_midnight() -> None:
    """Reading resumes where both allow it: at midnight, if the night has begun, otherwise with the hours."""
    noon = parse_hours("12:00-13:00 UTC", ZoneInfo)
    limits = ReadingLimits(hours=noon, day=DayBudget(bytes=10))
    found = decide(limits, NOTHING, None, DayUse("2026-06-01", 1, 10), NOON + timedelta(minutes=30))
    assert found.until == datetime(2026, 6, 2, 12, tzinfo=UTC)
    limits = ReadingLimits(hours=NIGHT, day=DayBudget(seconds=10, zone=NIGHT.zone))
    found = decide(limits, NOTHING, None, DayUse("2026-06-01", 1, 1, 10.0), NOON + timedelta(hours=9))
    assert found.until == datetime(2026, 6, 1, 22, tzinfo=UTC)


def test_no_time_is_promised_where_it_depends_on_the_source() -> None:
    """Until when a replica lags is unknown."""
    limits = ReadingLimits(LoadLimits(replica_lag=1.0), NIGHT)
    assert decide(limits, SourceLoad({"replica_lag": 5.0}), None, DayUse(), NOON).until is None


def test_nothing_is_read_before_commits_without_reading_were_measured() -> None:
    """A limit that is a ratio means nothing before there is something to compare with."""
    pace = CommitPace(1.1)
    for _ in range(BASE_COMMITS_MIN - 1):
        pace.add_base(0.001)
        assert decide(limited(commit_latency_ratio=1.1), NOTHING, pace, DayUse(), NOON).pace.all_held
    pace.add_base(0.001)
    found = decide(limited(commit_latency_ratio=1.1), NOTHING, pace, DayUse(), NOON)
    assert not found.pace.all_held
    assert 0 < found.pace.share < 1


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 32), st.floats(0.02, 0.2))
def test_share_settles_where_one_commit_in_a_hundred_is_slow(seed: int, slow_while_reading: float) -> None:
    """That is what a limit on the 99th percentile means. Commits here are slow with a chance that grows with the share
    of the time in which rows are read."""
    rng = random.Random(seed)
    pace = CommitPace(1.1)
    for _ in range(BASE_COMMITS_MIN):
        pace.add_base(rng.uniform(0.001, 0.002))
    assert pace.threshold_s is not None
    slow = 0
    for number in range(15_000):
        is_slow = rng.random() < slow_while_reading * pace.share
        pace.add(0.01 if is_slow else 0.001)
        slow += is_slow if number >= 3_000 else 0
    assert 0.006 < slow / 12_000 < 0.014


def test_share_returns_to_the_whole_when_reading_slows_no_commit() -> None:
    """A quiet source is read at full speed, whatever its commits were like before."""
    pace = CommitPace(1.1)
    for _ in range(BASE_COMMITS_MIN):
        pace.add_base(0.001)
    for _ in range(20):
        pace.add(0.1)
    assert pace.share == pytest.approx(SHARE_MIN)
    for _ in range(99 * 20 + 1):
        pace.add(0.001)
    assert pace.share == 1.0


def calendar_of(**limits: Any) -> ReadingCalendar:
    return ReadingCalendar(ReadingLimits(**limits), NOON)


def test_backfill_without_hours_and_budget_takes_as_long_as_it_reads() -> None:
    """The estimate of most plans must not change."""
    assert calendar_of(day=DayBudget(rows=10)).elapsed_s(3600.0, 10, 100) == 3600
    assert calendar_of().elapsed_s(2 * 86_400.0, 10, None) == 2 * 86_400


def test_backfill_at_night_waits_for_the_night_and_pauses_each_day() -> None:
    """At noon UTC in June the night in Berlin begins after eight hours, and has eight: ten hours of reading end on the
    second night."""
    calendar = calendar_of(hours=NIGHT)
    assert calendar.begins_at == NOON + timedelta(hours=8)
    assert calendar.elapsed_s(3600.0, 1, 1) == 9 * 3600
    assert calendar.elapsed_s(10 * 3600.0, 1, 1) == (8 + 24 + 2) * 3600


def test_budget_of_a_day_is_used_from_midnight_to_midnight() -> None:
    """Of 2,500 rows at a row a second, 1,000 a day: the last 500 follow the second midnight."""
    calendar = calendar_of(day=DayBudget(rows=1_000))
    assert calendar.elapsed_s(2_500.0, 2_500, None) == (12 + 24) * 3600 + 500
    assert calendar_of(day=DayBudget(bytes=1_000)).elapsed_s(2_500.0, 1, 2_500) == (12 + 24) * 3600 + 500
    assert calendar_of(day=DayBudget(seconds=1_000.0)).elapsed_s(2_500.0, 1, 1) == (12 + 24) * 3600 + 500


@settings(max_examples=20, deadline=None)
@given(st.floats(1, 1e7), st.floats(1, 1e7), st.integers(1, 24 * 60 - 1))
def test_more_to_read_never_ends_earlier(first: float, second: float, minutes: int) -> None:
    """Also beyond what is followed day by day."""
    calendar = calendar_of(hours=ReadingHours(((0, minutes),), UTC))
    less, more = sorted((first, second))
    assert calendar.elapsed_s(less, 1, 1) <= calendar.elapsed_s(more, 1, 1) * 1.01
    assert calendar.elapsed_s(less, 1, 1) >= less * 0.999
