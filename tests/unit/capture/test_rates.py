"""How fast existing rows were read while a backfill ran."""

from __future__ import annotations

from cdcflow.capture.attempt import ReadingRate


def test_only_the_time_of_reading_counts() -> None:
    """A daemon that reads for a minute and then streams for a week still knows how fast it read."""
    rate = ReadingRate()
    rate.record(0.0, 0, is_reading=True)
    rate.record(2.0, 1000, is_reading=True)
    rate.record(4.0, 2000, is_reading=False)
    rate.record(1000.0, 2000, is_reading=False)
    assert rate.rows_per_second == 500.0


def test_too_short_a_time_gives_no_rate() -> None:
    """One second is the minimum; before it is over the rate is unknown."""
    rate = ReadingRate()
    assert rate.rows_per_second is None
    rate.record(0.0, 0, is_reading=True)
    rate.record(0.5, 1000, is_reading=True)
    assert rate.rows_per_second is None
