"""The budget for the log that a source keeps: how much of it is used, and how soon to check again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

LEVELS = (50, 80, 95, 100)
"""Percent of a budget at which operators are warned; at the last one the budget is used up."""
BURST_BYTES_PER_S = 400 << 20
"""The fastest that a server is assumed to write its log. The next check comes before this rate could exceed the
budget."""
CHECK_MIN_S, CHECK_MAX_S = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class LogBudget:
    """How much log a source may keep for cdcflow, in bytes, and how old its oldest part may be, in seconds (`None`:
    unbounded)."""

    bytes: int | None = None
    age_s: float | None = None

    def __bool__(self) -> bool:
        return self.bytes is not None or self.age_s is not None

    def tightest(self, other: LogBudget) -> LogBudget:
        """The tighter bound of both, for bytes and for age."""
        sizes = [size for size in (self.bytes, other.bytes) if size is not None]
        ages = [age for age in (self.age_s, other.age_s) if age is not None]
        return LogBudget(min(sizes, default=None), min(ages, default=None))

    def share(self, kept: KeptLog) -> float:
        """Return the used part of the budget: 1.0 at a bound. Of the two bounds, the nearer one counts."""
        shares = [
            used / bound
            for used, bound in ((kept.bytes, self.bytes), (kept.age_s, self.age_s))
            if used is not None and bound is not None
        ]
        return max(shares, default=0.0)

    def check_after_s(self, kept: KeptLog) -> float:
        """Return the seconds after which to measure again, so that a burst in between does not pass the budget
        by much."""
        waits = [CHECK_MAX_S]
        if self.bytes is not None:
            waits.append((self.bytes - (kept.bytes or 0)) / BURST_BYTES_PER_S)
        if self.age_s is not None:
            waits.append(self.age_s - (kept.age_s or 0))
        return max(CHECK_MIN_S, min(waits))


@dataclass(frozen=True, slots=True)
class LogLimit:
    """A setting of cdcflow or of the server that limits the log that a source keeps, to bytes or to an age."""

    name: str
    bytes: int | None = None
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class KeptLog:
    """Log that a source keeps for cdcflow, and the server's own limit on it.

    `age_s`: the age of its oldest part. None: unknown, or the server keeps nothing.
    """

    bytes: int | None
    age_s: float | None = None
    limit: LogBudget = field(default_factory=LogBudget)


def level_of(share: float) -> int:
    """Return the highest of `LEVELS` that a used part of a budget has reached; 0 below the first."""
    return max((level for level in LEVELS if share * 100 >= level), default=0)
