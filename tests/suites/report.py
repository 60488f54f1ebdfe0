"""The requested run over a suite, and what it found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.suites.follower import Follower


@dataclass(frozen=True, slots=True)
class Wanted:
    """`mode`: one of `follower.MODES`; None: drawn from the seed. `tests`: files' names; empty: all. `release`: the
    major version of the server; None: the one that the other tests use."""

    seconds: float
    seed: int
    mode: str | None = None
    tests: frozenset[str] = frozenset()
    release: str | None = None


@dataclass
class Report:
    """The result of one server's suite, printed as it comes."""

    server: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def passed(self, name: str, detail: str) -> None:
        print(f"  {self.server} {name}: {detail}", flush=True)

    def failed(self, name: str, why: str) -> None:
        self.failures.append(f"{name}: {why}")
        print(f"── {self.server} {name}: {why}", flush=True)

    def take(self, follower: Follower) -> None:
        """Count what a follower compared and why its daemon stopped, and print the stops."""
        for stop in follower.outcome.stops:
            print(f"     stop: {stop[:400]}", flush=True)
        self.counts["stops"] += len(follower.outcome.stops)
        self.counts["tables compared"] += follower.compared
        self.counts["tables read after cascades"] += follower.read_after_cascades
        self.counts["tables read again"] += len(follower.read_again)
        follower.outcome.stops.clear()
        follower.compared = follower.read_after_cascades = 0

    def summary(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"{self.server}: {counted}; {len(self.failures)} failed"


__all__ = ["Report", "Wanted"]
