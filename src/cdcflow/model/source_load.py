"""How busy a source is, and how busy it may be while rows are read from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, tzinfo
from typing import Literal

from cdcflow.model.reading_hours import ReadingHours

Gauge = Literal["replica_lag", "log_budget_used", "lock_waits", "history_list_length", "cpu_used"]
GAUGES: tuple[Gauge, ...] = ("replica_lag", "log_budget_used", "lock_waits", "history_list_length", "cpu_used")


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """The limits of the gauges of a source. A gauge without a limit (`None`) is not measured.

    `commit_latency_ratio`: the limit on how long the slowest of a hundred commits takes while rows are read, as a
    multiple of its time without reading; `replica_lag` in seconds, `log_budget_used` and `cpu_used` from 0 to 1,
    `lock_waits` in sessions, `history_list_length` in transactions.
    """

    commit_latency_ratio: float | None = None
    replica_lag: float | None = None
    log_budget_used: float | None = None
    lock_waits: float | None = None
    history_list_length: float | None = None
    cpu_used: float | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) is not None for f in fields(self))

    def of(self, gauge: Gauge) -> float | None:
        found: float | None = getattr(self, gauge)
        return found

    @property
    def gauges(self) -> tuple[Gauge, ...]:
        """The gauges to measure, apart from commits."""
        return tuple(gauge for gauge in GAUGES if self.of(gauge) is not None)


@dataclass(frozen=True, slots=True)
class DayBudget:
    """How much may be read in a day; `None` is unlimited. Days begin at midnight in `zone`."""

    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    zone: tzinfo = UTC

    def __bool__(self) -> bool:
        return (self.rows, self.bytes, self.seconds) != (None, None, None)


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """When and how rows may be read from a source: by backfills, repairs and comparisons."""

    load: LoadLimits = field(default_factory=LoadLimits)
    hours: ReadingHours | None = None
    day: DayBudget = field(default_factory=DayBudget)

    def __bool__(self) -> bool:
        return bool(self.load or self.day) or self.hours is not None


@dataclass(frozen=True, slots=True)
class DayUse:
    """How much was read on a day: its date (ISO), rows, bytes, and seconds of reading."""

    day: str = ""
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __add__(self, more: DayUse) -> DayUse:
        """Return the total of both, if they are of one day; otherwise the use of the later day."""
        if self.day != more.day:
            return more
        return DayUse(self.day, self.rows + more.rows, self.bytes + more.bytes, self.seconds + more.seconds)


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """The measured gauges of a source, in the units of `LoadLimits`. `unknown`: why a gauge could not be measured, with
    a remedy."""

    values: Mapping[Gauge, float] = field(default_factory=dict)
    unknown: Mapping[Gauge, str] = field(default_factory=dict)

    def __or__(self, other: SourceLoad) -> SourceLoad:
        return SourceLoad({**self.values, **other.values}, {**self.unknown, **other.unknown})
