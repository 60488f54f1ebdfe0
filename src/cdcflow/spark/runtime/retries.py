"""Repeat an attempt after a temporary failure, for a bounded time: another merge is running, or a store or broker is
unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import structlog

from cdcflow.errors import SinkUnavailable

FIRST_PAUSE_S, PAUSE_S_MAX = 1.0, 30.0
_STOP_LOOK_S = 0.2

_log = structlog.get_logger()
_Result = TypeVar("_Result")


def retried(attempt: Callable[[], _Result], timeout_s: float, is_wanted: Callable[[], bool] = lambda: True) -> _Result:
    """Return what `attempt` returns. After SinkUnavailable it is repeated, with pauses that grow from 1 s to 30 s.

    Raises:
        SinkUnavailable: the next attempt would begin later than `timeout_s` after the first one, or `is_wanted`
            returned False during a pause.
    """
    began = time.monotonic()
    for pause_s in _pauses():
        try:
            return attempt()
        except SinkUnavailable as error:
            resumes = time.monotonic() + pause_s
            if resumes > began + timeout_s:
                raise
            _log.warning("put off", reason=str(error).splitlines()[0], retry_in_s=pause_s)
            while (left := resumes - time.monotonic()) > 0:
                if not is_wanted():
                    raise
                time.sleep(min(left, _STOP_LOOK_S))
    raise AssertionError("pauses never end")


def _pauses() -> Iterator[float]:
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
