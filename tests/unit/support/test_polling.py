"""The helper with which tests wait."""

from __future__ import annotations

import time
from itertools import count

import pytest
from tests.support.polling import AtIntervals, wait_for, wait_until


def test_the_first_true_value_is_returned() -> None:
    values = iter([None, "", 0, "here", "later"])
    assert wait_until(lambda: next(values), "a value", pause_max_s=0.0) == "here"


def test_what_was_awaited_in_vain_is_named_with_the_last_value_and_more() -> None:
    """A failure on another machine is explained by its message alone."""
    with pytest.raises(AssertionError, match=r"^waited 0 s in vain for the rows: 3\nthe log has 3$"):
        wait_for(lambda: 3, lambda rows: rows == 4, "the rows", patience_s=0.0, more=lambda: "the log has 3")


def test_a_value_that_arrives_in_the_last_pause_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that got no processor meanwhile must not conclude that nothing happened: it checks once more."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + 100.0))
    assert wait_until(lambda: clock[0] > 99, "the clock")


def test_pauses_grow_with_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the tests wait at any time: what they wait for needs the processor."""
    clock, pauses, reads = [0.0], [], count()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    wait_for(lambda: next(reads), lambda number: number == 200, "reads")
    assert pauses[0] == 0.02
    assert pauses[-1] == 0.2
    assert pauses == sorted(pauses)


def test_an_act_is_repeated_at_intervals_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates that a test repeats as fast as it can are never read in peace."""
    clock, acts = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    act = AtIntervals(lambda: acts.append(clock[0]), first_s=1.0, growth=2.0)
    for _ in range(8):
        act()
        clock[0] += 1.0
    assert acts == [100.0, 101.0, 103.0, 107.0]
