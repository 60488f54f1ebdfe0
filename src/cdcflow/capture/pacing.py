"""Decides how fast rows may be read from a source, by measurements, limits, and the clock. Pure.

    hours, day's budget ─▶ closed: no range of a table is read until then; single rows still are
    gauges, commits ─────▶ above the limit: nothing is read; near it: windows take a smaller share of the time
    what is unknown ─────▶ nothing is read, with the remedy

The strictest limit counts. Commits have no gauge: `CommitPace` follows them one by one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from cdcflow.capture.interleave.limits import ReadingPace
from cdcflow.model.reading_hours import ReadingHours, next_midnight
from cdcflow.model.source_load import DayBudget, DayUse, Gauge, LoadLimits, ReadingLimits, SourceLoad

NEAR = 0.75
"""Above this part of a limit, windows take a smaller share of the time."""
SHARE_MIN = 1 / 64
"""The smallest share of the time for reading; if even that is too much, nothing is read."""
BASE_COMMITS_MIN, BASE_COMMITS_KEPT = 300, 2_000
"""How many commits are measured before the first window, while nothing is read, and how many of the latest are
remembered."""
SLOW_ALLOWED = 0.01
"""The part of commits that may be slow: the limit on commits is a limit on their 99th percentile."""
STEP = math.log(2) / 2
SHARE_FIRST = 1 / 2

Limit = Literal[
    "hours", "rows_per_day", "bytes_per_day", "time_per_day", "commit_latency_ratio", "measurement",
    "replica_lag", "log_budget_used", "lock_waits", "history_list_length", "cpu_used",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """A limit that slows reading. `share`: the share of the time that windows may take; 0: nothing is read.

    `until`: when the limit stops applying; None: as soon as the source is less busy. `spares_keys`: single rows are
    still read. `is_unmeasured`: something that has a limit cannot be measured.
    """

    limit: Limit
    text: str
    share: float = 0.0
    until: datetime | None = None
    spares_keys: bool = False
    is_unmeasured: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The pace of reading, and the reasons if it is not the full one."""

    pace: ReadingPace
    reasons: tuple[Reason, ...] = ()

    @property
    def state(self) -> Literal["free", "slowed", "held"]:
        if self.pace.all_held or self.pace.ranges_held:
            return "held"
        return "slowed" if self.pace.share < 1 else "free"

    @property
    def until(self) -> datetime | None:
        """When reading can continue at the earliest; None if reading is not stopped, or if the end depends on the
        source's load."""
        held = [reason for reason in self.reasons if reason.share == 0]
        times = [reason.until for reason in held if reason.until is not None]
        return max(times) if held and len(times) == len(held) else None


def decide(
    limits: ReadingLimits, load: SourceLoad, commits: CommitPace | None, used: DayUse, now: datetime
) -> Decision:
    """Return the pace of reading. `commits`: None if they have no limit. `used`: how much was read on the
    latest day."""
    reasons = (*_of_time(limits, used, now), *_of_load(limits.load, load), *_of_commits(commits))
    share = min((r.share for r in reasons if r.share > 0), default=1.0)
    pace = ReadingPace(
        share=share,
        ranges_held=any(r.share == 0 for r in reasons),
        all_held=any(r.share == 0 and not r.spares_keys for r in reasons),
        rows_max=None if limits.day.rows is None else max(0, limits.day.rows - _today(limits.day, used, now).rows),
    )
    return Decision(pace, reasons)


# ── hours and budgets ───────────────────────────────────────────────────────────────────────────────────────


def _of_time(limits: ReadingLimits, used: DayUse, now: datetime) -> Iterator[Reason]:
    if limits.hours is not None and not limits.hours.is_open(now):
        opens = limits.hours.changes_at(now)
        yield Reason("hours", "outside of source.backfill.hours", until=opens, spares_keys=True)
    yield from _of_day(limits.day, _today(limits.day, used, now), limits.hours, now)


def day_of(budget: DayBudget, now: datetime) -> str:
    """The date of the budget's day."""
    return now.astimezone(budget.zone).date().isoformat()


def _today(budget: DayBudget, used: DayUse, now: datetime) -> DayUse:
    today = day_of(budget, now)
    return used if used.day == today else DayUse(today)


def _of_day(budget: DayBudget, used: DayUse, hours: ReadingHours | None, now: datetime) -> Iterator[Reason]:
    until = next_midnight(now, budget.zone)
    if hours is not None and not hours.is_open(until):
        until = hours.changes_at(until) or until
    for limit, spent, most, unit in (
        ("rows_per_day", used.rows, budget.rows, "rows"),
        ("bytes_per_day", used.bytes, budget.bytes, "bytes"),
        ("time_per_day", used.seconds, budget.seconds, "seconds of reading"),
    ):
        if most is not None and spent >= most:
            text = f"{spent:,.0f} {unit} were read today, of {most:,.0f} in source.backfill.per_day"
            yield Reason(limit, text, until=until, spares_keys=True)  # type: ignore[arg-type]


# ── load ────────────────────────────────────────────────────────────────────────────────────────────────────

_NAMES: dict[Gauge, tuple[str, str]] = {
    "replica_lag": ("the slowest replica lags by", " s"),
    "log_budget_used": ("the used part of the log's budget is", ""),
    "lock_waits": ("sessions that wait for a lock:", ""),
    "history_list_length": ("the length of InnoDB's history list is", ""),
    "cpu_used": ("the used part of the server's processors is", ""),
}


def _of_load(limits: LoadLimits, load: SourceLoad) -> Iterator[Reason]:
    for gauge in limits.gauges:
        value, limit = load.values.get(gauge), limits.of(gauge)
        assert limit is not None  # noqa: S101  `gauges` are those with a limit
        if value is None:
            text = load.unknown.get(gauge, "the source was not measured yet")
            yield Reason(gauge, text, is_unmeasured=gauge in load.unknown)
        elif (share := share_near(value, limit)) < 1:
            name, unit = _NAMES[gauge]
            text = f"{name} {value:,.4g}{unit}, and source.backfill.limits.{gauge} is {limit:,.4g}{unit}"
            yield Reason(gauge, text, share)


def share_near(value: float, limit: float) -> float:
    """Return the share of the time for windows: 1 up to `NEAR` of a limit, `SHARE_MIN` at it, 0 above it."""
    if value > limit:
        return 0.0
    over = value - NEAR * limit
    if over <= 0:
        return 1.0
    return max(SHARE_MIN, 1 - over / (limit - NEAR * limit))


# ── commits ─────────────────────────────────────────────────────────────────────────────────────────────────


class CommitPace:
    """Follows the duration of small commits, and sets the share of windows so that one commit in a hundred is slow.

    A commit is slow if it takes longer than `ratio` times the 99th percentile of commits while nothing is read. Two
    slow ones halve the share, and 198 others double it. So the share stays the same where just one of a hundred is
    slow, which is where the 99th percentile is at its limit. No window of samples and no average is needed, and a
    single outlier costs two seconds. With larger steps the share would follow the noise of a percentile of a few
    hundred commits.
    """

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self._base: deque[float] = deque(maxlen=BASE_COMMITS_KEPT)
        self._log_share = math.log(SHARE_FIRST)
        self._threshold: float | None = None

    def add_base(self, seconds: float) -> None:
        """Count a commit that took this long while nothing was read, neither then nor just before."""
        self._base.append(seconds)
        if len(self._base) % 20 == 0 or self._threshold is None:
            self._threshold = self.ratio * percentile(self._base) if self.is_known else None

    def add(self, seconds: float) -> None:
        """Count a commit that took this long, and change the share of windows accordingly."""
        if self._threshold is None:
            return
        slow = seconds > self._threshold
        change = STEP * (SLOW_ALLOWED - slow) / (1 - SLOW_ALLOWED)
        self._log_share = min(0.0, max(math.log(SHARE_MIN), self._log_share + change))

    @property
    def is_known(self) -> bool:
        """Whether enough commits were measured while nothing was read."""
        return len(self._base) >= BASE_COMMITS_MIN

    @property
    def base_count(self) -> int:
        return len(self._base)

    @property
    def threshold_s(self) -> float | None:
        """The duration in seconds above which a commit is slow; None if it is unknown so far."""
        return self._threshold

    @property
    def share(self) -> float:
        return math.exp(self._log_share)


def percentile(values: deque[float]) -> float:
    """Return the 99th percentile of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * (1 - SLOW_ALLOWED)) - 1)]


def _of_commits(commits: CommitPace | None) -> Iterator[Reason]:
    if commits is None:
        return
    if (slow_s := commits.threshold_s) is None:
        text = f"commits are measured before anything is read: {commits.base_count} of {BASE_COMMITS_MIN}"
        yield Reason("commit_latency_ratio", text)
    elif commits.share < 1:
        text = f"more than one of a hundred commits took longer than {slow_s * 1000:.1f} ms, which is "
        text += f"{commits.ratio:g} times as long as while nothing is read"
        yield Reason("commit_latency_ratio", text, commits.share)
