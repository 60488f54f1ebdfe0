"""Handle signals of a long-running command: stop at the next cut, end immediately, reload the settings file."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.exit_codes import TOO_SLOW_TO_STOP

STOP_WITHIN_S = 10.0
SLICE_S = 0.5
START_BROKEN_OFF_WITHIN_S = 2.0
"""How long a start may take to end. A library that waits for a server's first answer cannot always be interrupted,
and nothing is lost when the process ends at once."""


@contextlib.contextmanager
def obeying_signals(
    stop: Callable[[], None],
    tell: OnEvent,
    is_starting: Callable[[], bool] = lambda: False,
    hang_up: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Handle signals during the block: SIGTERM and SIGINT call `stop`, which stops at a cut; a second one, or ten
    seconds, end the process at once. SIGHUP calls `hang_up`.

    Ending at once is safe: what was not durable counts as never read, exactly as after a crash. While `is_starting`,
    two seconds are enough, and the exit code is 0.
    """
    asked = threading.Event()

    def obey(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()
        stop()
        _after(STOP_WITHIN_S, _give_up, tell)
        _after(START_BROKEN_OFF_WITHIN_S, _give_up_starting, tell, is_starting)

    def obey_hang_up(number: int, frame: FrameType | None) -> None:
        if hang_up is not None:
            hang_up()

    before = {number: signal.signal(number, obey) for number in (signal.SIGTERM, signal.SIGINT)}
    if hang_up is not None:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, obey_hang_up)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for(event: threading.Event, seconds: float | None = None) -> bool:
    """Wait for an event in the main thread (`None`: indefinitely), and handle signals. Return whether the event was
    set.

    It waits in slices: a signal that arrives just before the thread sleeps does not wake it, and Python would handle
    the signal only when something else does.
    """
    until = None if seconds is None else time.monotonic() + seconds
    while not event.is_set():
        left = SLICE_S if until is None else min(SLICE_S, until - time.monotonic())
        if left <= 0:
            return False
        event.wait(left)
    return True


def again_and_again(act: Callable[[], None], pause_s: float) -> None:
    """Call `act` every `pause_s` seconds, measured between beginnings, until SIGTERM or SIGINT.

    A running call is finished. A second signal ends the process at once: whatever is then left unfinished, the next
    process finishes.
    """
    with stopping() as stop:
        while not stop.is_set():
            began = time.monotonic()
            act()
            wait_for(stop, pause_s - (time.monotonic() - began))


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set."""
    stop = threading.Event()

    def obey(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, obey) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _after(seconds: float, act: Callable[..., None], *given: object) -> None:
    timer = threading.Timer(seconds, act, given)
    timer.daemon = True
    timer.start()


def _give_up_starting(tell: OnEvent, is_starting: Callable[[], bool]) -> None:
    if is_starting():
        tell("start broken off", {})
        os._exit(0)


def _give_up(tell: OnEvent) -> None:
    tell("capture did not stop in time", {"seconds": STOP_WITHIN_S})
    os._exit(TOO_SLOW_TO_STOP)
