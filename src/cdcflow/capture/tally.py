"""What a capture has done since its process began, over all its attempts."""

from __future__ import annotations

import threading
from collections import Counter

from cdcflow.capture.attempt import Attempt

DONE = ("rows_captured", "rows_read", "bytes_appended", "cuts", "syncs")


class Tally:
    """What attempts that ended have done, and what the latest of them knew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.attempts = 0
        self.last_known: dict[str, object] = {}

    def add(self, attempt: Attempt) -> None:
        self.done.update(attempt.counts())
        self.events.update(attempt.events)
        self.last_known = {**attempt.status(), "rows_per_second": 0.0, "held_rows": 0, "held_bytes": 0}
