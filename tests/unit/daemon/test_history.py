"""What is plotted: bounded, and never better than the truth."""

from __future__ import annotations

from typing import Any

from cdcflow.daemon.interfaces.history import FIELDS, SampleHistory


def taken(*samples: dict[str, Any], every_s: float = 10, hours: float = 1) -> SampleHistory:
    given = iter(samples)
    history = SampleHistory(lambda: next(given), every_s, hours)
    for number in range(len(samples)):
        history.take(1000.0 + number * every_s)
    return history


def test_numbers_are_read_back_in_their_order_with_their_time() -> None:
    """A plot is read from left to right."""
    points = taken({"lag_bytes": 5}, {"lag_bytes": 7, "lag_seconds": 1.5}).points()
    assert points["time"] == [1000.0, 1010.0]
    assert points["lag_bytes"] == [5.0, 7.0]
    assert points["lag_seconds"] == [None, 1.5]


def test_what_is_unknown_is_a_gap_and_no_zero() -> None:
    """A source that does not answer has no lag of 0; a sampler that fails must not stop."""
    points = taken({"lag_bytes": None}, {"lag_bytes": True}, {}).points()
    assert points["lag_bytes"] == [None, None, None]

    def broken() -> dict[str, Any]:
        raise OSError("no room")

    history = SampleHistory(broken)
    history.take(1.0)
    assert history.points()["lag_bytes"] == [None]


def test_peak_is_kept_when_points_are_drawn_together() -> None:
    """An operator searches for a lag of one minute in an hour without any; of free space the lowest value is kept."""
    samples = [{"lag_bytes": 0, "disk_free_bytes": 9} for _ in range(300)]
    samples[157] = {"lag_bytes": 9000, "disk_free_bytes": 1}
    points = taken(*samples).points(points_max=50)
    assert len(points["time"]) == 50
    assert max(p or 0 for p in points["lag_bytes"]) == 9000
    assert min(p or 0 for p in points["disk_free_bytes"]) == 1


def test_memory_is_bounded_and_the_latest_stay() -> None:
    """A daemon that runs for a year holds as much as one that runs for an hour."""
    points = taken(*({"lag_bytes": n} for n in range(1000))).points(points_max=1000)
    assert len(points["time"]) == 360
    assert points["lag_bytes"] == [float(n) for n in range(640, 1000)]
    assert SampleHistory(dict)._rows.nbytes < 200_000
    assert set(points) == {"time", *FIELDS}
