"""The members of a fleet as `cdcflow fleet` sees them: their latest reports, and which of them have become silent.

Whether a member still reports is judged by the changes of its report that this process has seen, so no machine's clock
needs to be right. Only the first time that a report is seen, its own time decides: then it may be an old one. If that
time is in the future, it proves nothing, and the member is not shown as one that reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cdcflow.fleet.report import MemberReport

SILENT_AFTER_S = 30.0
INTERVALS = 3
"""A member is silent after this many of its intervals, and after `SILENT_AFTER_S` at least."""


@dataclass(frozen=True, slots=True)
class UnknownMember:
    """A pipeline without a known report: its report cannot be read, or it has never answered."""

    name: str
    reason: str


Found = MemberReport | UnknownMember


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a pipeline. `report`: its latest one; `None` if none could be read, and `problem` is the reason.

    `reported_at`: when it last reported, in seconds since 1970 by this machine's clock, as far as that is known; 0:
    never. `is_silent`: it no longer reports, or it is not known that it does. `clock_ahead_s`: how far its clock is
    ahead of this machine's (negative: it is slow), if that is more than its reports can explain; otherwise 0.
    """

    name: str
    report: MemberReport | None
    reported_at: float
    is_silent: bool
    problem: str | None = None
    clock_ahead_s: float = 0.0

    @property
    def reports(self) -> bool:
        """Whether the member's process runs, as far as is known."""
        return self.report is not None and not self.is_silent and not self.report.ended


@dataclass(slots=True)
class _Sighting:
    found: Found
    changed_at: float
    changed_clock: float
    changes: int = 0
    ahead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outage:
    """A register that cannot be read, or a member that does not answer. `since`: in seconds since 1970."""

    place: str
    since: float
    reason: str


class Members:
    """The known facts about all members. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._seen: dict[str, dict[str, _Sighting]] = {}
        self._outages: dict[str, Outage] = {}

    def note(self, place: str, found: Mapping[str, Found]) -> None:
        """Record that a place was read and has these reports, keyed by their names there."""
        now, clock = self._monotonic(), self._clock()
        with self._lock:
            before = self._seen.get(place, {})
            self._seen[place] = {key: _sighting(before.get(key), one, now, clock) for key, one in found.items()}
            self._outages.pop(place, None)

    def note_failure(self, place: str, reason: str, name: str | None = None) -> None:
        """Record that a place could not be read. What was known of its members stays, and they become silent. `name`:
        the pipeline there, if the place has only one."""
        with self._lock:
            if name is not None and place not in self._seen:
                unknown = UnknownMember(name, reason)
                self._seen[place] = {name: _sighting(None, unknown, self._monotonic(), self._clock())}
            known = self._outages.get(place)
            self._outages[place] = Outage(place, self._clock() if known is None else known.since, reason)

    def outages(self) -> list[Outage]:
        with self._lock:
            return sorted(self._outages.values(), key=lambda one: one.place)

    def current(self) -> list[Member]:
        """Return all members as of now."""
        now, clock = self._monotonic(), self._clock()
        with self._lock:
            return [_member(one, now, clock) for place in self._seen.values() for one in place.values()]


def silent_after_s(report: MemberReport) -> float:
    """Return how many seconds a member may publish nothing before it counts as silent."""
    return max(SILENT_AFTER_S, INTERVALS * report.every_s)


def _sighting(before: _Sighting | None, found: Found, now: float, clock: float) -> _Sighting:
    if before is not None and before.found == found:
        return before
    changes = 0 if before is None else before.changes + 1
    ahead_s = found.at - clock if isinstance(found, MemberReport) else 0.0
    return _Sighting(found, now, clock, changes, ahead_s)


def _member(one: _Sighting, now: float, clock: float) -> Member:
    found = one.found
    if isinstance(found, UnknownMember):
        return Member(found.name, None, 0.0, is_silent=True, problem=found.reason)
    allowed_s = silent_after_s(found)
    age_s = clock - found.at
    has_changed = one.changes > 0
    silent = now - one.changed_at > allowed_s or (not has_changed and abs(age_s) > allowed_s)
    reported_at = one.changed_clock if has_changed else min(found.at, clock)
    ahead_s = one.ahead_s if abs(one.ahead_s) > allowed_s and (has_changed or one.ahead_s > 0) else 0.0
    return Member(found.name, found, reported_at, silent, clock_ahead_s=ahead_s)
