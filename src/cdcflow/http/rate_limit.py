"""Limit how many requests each caller may send: a bucket for each, which refills steadily.

A caller is a token's name, or the address of a client without a valid token. Requests above the limit are refused with
429 and `Retry-After`, before any work is done for them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

BURST_MIN = 10.0
"""The minimum number of requests that a caller may send at once: the page sends some when it is opened."""
CALLERS_MAX = 10_000
"""The maximum number of callers that are remembered: a client can use any number of addresses in IPv6."""


class RateLimit:
    """The buckets of one server. Safe to use from any thread. Without `per_second` there is no limit."""

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._burst = max(BURST_MIN, per_second or 0.0)
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def wait_s(self, caller: str) -> int:
        """Return 0 if the caller may send this request, and count it; otherwise return after how many seconds the
        caller may send one."""
        if self._per_second is None:
            return 0
        with self._lock:
            now = self._clock()
            left, at = self._buckets.pop(caller, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._per_second)
            refused = left < 1.0
            if len(self._buckets) >= CALLERS_MAX:
                del self._buckets[next(iter(self._buckets))]  # the one that sent nothing for longest
            self._buckets[caller] = (left if refused else left - 1.0, now)
        return math.ceil((1.0 - left) / self._per_second) if refused else 0
