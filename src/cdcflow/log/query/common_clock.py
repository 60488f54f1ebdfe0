"""The progress of several logs: the commit clock that each has reached, and which one holds the others back.

An idle source advances its clock by heartbeats, so a clock that does not advance means that its source is not being
read: the daemon is down, or cannot reach it. cdcflow assumes nothing about such a log. The other logs wait for it, and
messages name it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from cdcflow.log.read.moments import time_text

SILENT_AFTER_S = 60.0
"""A log is called silent if its commit clock is older than this, by this machine's time. Heartbeats are sent every 10
s unless the settings change that, and a reader's own clock may differ from the sources'."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The progress of one log: it has every transaction of its source up to `commit_clock` (µs since 1970 UTC; 0: it
    has no cut yet), and they end at `offset`."""

    log: str
    commit_clock: int
    offset: int

    @property
    def text(self) -> str:
        """The commit clock as readable text."""
        return time_text(self.commit_clock) if self.commit_clock else "no time yet"


@dataclass(frozen=True, slots=True)
class Common:
    """The common progress of several logs. `logs`: their progress, keyed by name; `now`: when they were read (µs since
    1970, this machine's clock); `silent_after`: see `SILENT_AFTER_S`, in µs."""

    logs: Mapping[str, Reached]
    now: int
    silent_after: int

    @property
    def commit_clock(self) -> int:
        """The clock that every log has reached (µs since 1970 UTC): everything up to it is final. 0: a log has no cut
        yet."""
        return self.held_back_by.commit_clock

    @property
    def held_back_by(self) -> Reached:
        """The log with the lowest commit clock."""
        return min(self.logs.values(), key=lambda one: (one.commit_clock, one.log))

    @property
    def behind(self) -> int:
        """How far the log of `held_back_by` lags the one with the highest clock, in µs."""
        return max(one.commit_clock for one in self.logs.values()) - self.commit_clock

    @property
    def silent(self) -> tuple[Reached, ...]:
        """The logs whose clock has not advanced for longer than the limit, the oldest first."""
        found = (one for one in self.logs.values() if self.now - one.commit_clock > self.silent_after)
        return tuple(sorted(found, key=lambda one: (one.commit_clock, one.log)))

    @property
    def text(self) -> str:
        """A sentence that names the log that holds the others back, since when and how far."""
        held = self.held_back_by
        if not self.behind:
            return f"all logs have reached {held.text}"
        since = f"log {held.log} holds the others back: it has reached {held.text}, a lag of {self.behind / 1e6:.1f} s"
        names = ", ".join(one.log for one in self.silent)
        return f"{since}; silent: {names}" if names else since


def now_us() -> int:
    """This machine's time in µs since 1970."""
    return time.time_ns() // 1000


__all__ = ["SILENT_AFTER_S", "Common", "Reached", "now_us"]
