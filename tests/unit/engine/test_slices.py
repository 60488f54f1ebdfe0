"""Slices: about half a millisecond of the server's time each, and together the requested share of the time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdcflow.model.table import TableId
from cdcflow.sources.engine.slices import SLICE_S, SLICE_S_MAX, SlicePace, SlicePaces


class Server:
    """Reads units at a steady speed, over a network. Its clock moves only while it works or waits."""

    def __init__(self, units_per_second: float = 1e6, round_trip_s: float = 0.0) -> None:
        self.now_s = self.busy_s = 0.0
        self.longest_s = 0.0
        self._unit_s = 1 / units_per_second
        self._round_trip_s = round_trip_s
        self.pace = SlicePace(clock=lambda: self.now_s, sleep=self.pass_time)
        self.ask: Callable[[], None] = lambda: self.pass_time(self._round_trip_s)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def read(self, units: int, share: float) -> tuple[float, float]:
        """A chunk; returns how long it took, and how long the server was idle according to the slices."""
        began, done = self.now_s, 0
        self.pace.measure_round_trip(self.ask)
        slices = self.pace.slices(share)
        self.longest_s = 0.0
        while done < units:
            size = min(next(slices), units - done)
            busy_s = size * self._unit_s
            self.pass_time(busy_s + self._round_trip_s)
            self.busy_s += busy_s
            self.longest_s = max(self.longest_s, busy_s)
            done += size
        return self.now_s - began, slices.idle_s


@pytest.mark.parametrize("share", [1 / 2, 1 / 3, 1 / 8])
@pytest.mark.parametrize("units_per_second", [300.0, 1e4, 1e6])
def test_slices_take_their_share_of_the_time(share: float, units_per_second: float) -> None:
    """Units of any size; a unit that takes longer than a slice is read alone, and a long pause follows."""
    server = Server(units_per_second)
    units = int(units_per_second / 10)
    server.read(units, share)
    took, idle_s = server.read(units, share)
    assert 0.1 / took == pytest.approx(share, rel=0.2)
    assert idle_s == pytest.approx(took - 0.1, rel=0.05)
    assert server.longest_s <= max(2 * SLICE_S, 1.01 / units_per_second)


def test_first_slice_is_small_and_the_size_is_remembered() -> None:
    """Rows may be large. A pace outlives its chunks: most of them have only a few slices."""
    server = Server()
    slices = server.pace.slices(1 / 2)
    assert next(slices) == 4
    server.read(100_000, 1 / 2)
    assert next(server.pace.slices(1 / 2)) == pytest.approx(SLICE_S * 1e6, rel=0.01)


def test_round_trips_are_pauses() -> None:
    """The server does nothing for the chunk while a statement is on its way."""
    server = Server(round_trip_s=0.0004)
    server.read(50_000, 1 / 2)
    took, idle_s = server.read(50_000, 1 / 2)
    assert took == pytest.approx(0.1, rel=0.1)
    assert idle_s == pytest.approx(0.05, rel=0.1)


def test_slices_are_longer_over_a_long_way_but_not_much() -> None:
    """Otherwise nearly all time would pass between them; but commits wait for a slice, however far away we are."""
    server = Server(round_trip_s=0.02)
    server.read(50_000, 1 / 2)
    server.read(50_000, 1 / 2)
    assert server.longest_s == pytest.approx(SLICE_S_MAX, rel=0.01)


def test_single_slow_answer_does_not_count_as_a_round_trip() -> None:
    """A server that was busy once would count as idle during each later statement."""
    server = Server(round_trip_s=0.001)
    server.pace.measure_round_trip(server.ask)
    server.pace.measure_round_trip(lambda: server.pass_time(1.0))
    took, _ = server.read(100_000, 1 / 2)
    assert took == pytest.approx(0.2, rel=0.2)


def test_each_table_has_its_own_pace() -> None:
    """Their pages and rows have different sizes."""
    paces, a, b = SlicePaces(), TableId("public", "a"), TableId("public", "b")
    assert paces.of(a) is paces.of(a)
    assert paces.of(a) is not paces.of(b)
