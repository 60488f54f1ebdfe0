"""What the bench `fresh` computes from its measurements."""

from __future__ import annotations

import numpy as np
import pytest
from bench.freshrun import TABLES, Run, highest_rate, waits
from bench.harness import Failed

RATES = (100, 300, 1_000, 2_000, 3_000)


def ran(p99: float, late_s: float = 0.0) -> Run:
    return Run(np.arange(60.0), np.full(60, p99), [], 1.0, 0.0, late_s)


@pytest.mark.parametrize(("begin", "expected"), [(100, 1_000), (1_000, 1_000), (3_000, 1_000)])
def test_the_highest_rate_is_found_from_below_and_from_above(begin: int, expected: int) -> None:
    """A slow party is not asked for what it can never do, and a quick one is not underrated."""
    asked: list[tuple[float, float]] = []

    def measure(rate: float, seconds: float) -> Run:
        asked.append((rate, seconds))
        return ran(1.0 if rate <= 1_000 else 9.0)

    assert highest_rate(measure, RATES, begin, 60, 600)[0] == expected
    assert asked[-1] == (expected, 600)
    assert max(rate for rate, _ in asked) <= max(begin, 2_000)


def test_a_rate_that_holds_for_a_minute_only_does_not_count() -> None:
    """Neither does one that the source did not have, nor one that a party never brought to its tables."""

    def measure(rate: float, seconds: float) -> Run:
        if rate >= 2_000:
            raise Failed("never seen")
        return ran(1.0, late_s=5.0 if rate >= 1_000 else 0.0) if seconds == 60 or rate < 300 else ran(9.0)

    assert highest_rate(measure, RATES, 2_000, 60, 600)[0] == 100
    assert highest_rate(lambda rate, seconds: ran(9.0), RATES, 300, 60, 600) == (0.0, None)


def test_each_table_counts_and_a_late_reader_waits_for_its_next_version() -> None:
    """A transaction is seen with the first version that has a later one, too."""
    commits = np.array([(1, 1_000_000_000), (2, 2_000_000_000)])
    sights = np.array([(table, 2, 3_000_000_000 + table) for table in range(TABLES)])
    at, took = waits(commits, sights)
    assert at.tolist() == [1.0, 2.0] * TABLES
    assert took[:2].tolist() == [2.0, 1.0]
    with pytest.raises(Failed, match="table 4"):
        waits(commits, sights[:-1])
