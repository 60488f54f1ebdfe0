"""How tests wait for what another process or thread does, on a machine that may be busy.

A wait that succeeds costs little however patient it is, so that patience has one figure. The pauses grow with the time
that was waited: a quick answer is found at once, and a slow one does not cost the processor that it needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 240.0
"""Hosts of CI have taken four times the usual time, and one that is stopped after a minute has proved nothing."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 0.2
PAUSE_SHARE = 0.1
"""A pause is at most this part of the time that was waited before it."""
TEXT_MAX = 2000

_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T | None],
    what: str,
    *,
    patience_s: float = PATIENCE_S,
    pause_max_s: float = PAUSE_MAX_S,
    more: Callable[[], object] | None = None,
) -> _T:
    """The first true value of a condition.

    Raises:
        AssertionError: it was not true in time; with what was awaited, the last value and the result of `more`.
    """
    found = wait_for(condition, bool, what, patience_s=patience_s, pause_max_s=pause_max_s, more=more)
    assert found is not None
    return found


def wait_for(
    read: Callable[[], _T],
    wished: Callable[[_T], object],
    what: str,
    *,
    patience_s: float = PATIENCE_S,
    pause_max_s: float = PAUSE_MAX_S,
    more: Callable[[], object] | None = None,
) -> _T:
    """The first value for which `wished` is true; an AssertionError as by `wait_until`."""
    began = time.monotonic()
    while not wished(value := read()):
        waited_s = time.monotonic() - began
        if waited_s >= patience_s:
            after = "" if more is None else f"\n{more()}"
            raise AssertionError(f"waited {patience_s:.0f} s in vain for {what}: {_brief(value)}{after}")
        time.sleep(min(max(PAUSE_MIN_S, waited_s * PAUSE_SHARE), pause_max_s))
    return value


class AtIntervals:
    """Executes an act when called, except shortly after the last time.

    A change that a test repeats until the capture has noticed it must not itself be what keeps the capture from it:
    the interval grows until a slow machine keeps up.
    """

    def __init__(self, act: Callable[[], object], first_s: float = 0.1, growth: float = 1.5) -> None:
        self._act = act
        self._interval_s = first_s
        self._growth = growth
        self._due_s = 0.0

    def __call__(self) -> None:
        if time.monotonic() < self._due_s:
            return
        self._act()
        self._due_s = time.monotonic() + self._interval_s
        self._interval_s *= self._growth


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
