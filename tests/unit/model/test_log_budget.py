"""How much of the budget for a source's log is used, and when to check again."""

from __future__ import annotations

import pytest

from cdcflow.model.log_budget import BURST_BYTES_PER_S, CHECK_MAX_S, CHECK_MIN_S, KeptLog, LogBudget, level_of

GIB = 1 << 30


@pytest.mark.parametrize(
    ("budget", "kept", "share"),
    [
        (LogBudget(100), KeptLog(50), 0.5),
        (LogBudget(100), KeptLog(None), 0.0),
        (LogBudget(100, 60.0), KeptLog(50, 54.0), 0.9),
        (LogBudget(None, 60.0), KeptLog(5000, None), 0.0),
        (LogBudget(), KeptLog(5000, 54.0), 0.0),
        (LogBudget(100), KeptLog(150), 1.5),
    ],
)
def test_used_part_is_that_of_the_nearer_bound(budget: LogBudget, kept: KeptLog, share: float) -> None:
    """A budget of bytes and of age ends at the one that comes first."""
    assert budget.share(kept) == pytest.approx(share)


def test_server_limit_counts_where_it_is_tighter() -> None:
    """A warning that follows only the settings would arrive after the server has acted."""
    assert LogBudget(100, 60.0).tightest(LogBudget(80)) == LogBudget(80, 60.0)
    assert LogBudget(None, 60.0).tightest(LogBudget(80, 90.0)) == LogBudget(80, 60.0)
    assert not LogBudget().tightest(LogBudget())


@pytest.mark.parametrize(
    ("share", "level"), [(0.0, 0), (0.499, 0), (0.5, 50), (0.81, 80), (0.949, 80), (0.95, 95), (1.0, 100), (7.0, 100)]
)
def test_levels_begin_at_their_percentage(share: float, level: int) -> None:
    """Warnings at 50, 80 and 95 % leave time to act."""
    assert level_of(share) == level


def test_next_check_comes_before_a_burst_can_pass_the_budget() -> None:
    """The source keeps at most the budget and a segment, however fast its log grows in between."""
    budget = LogBudget(20 * GIB)
    assert budget.check_after_s(KeptLog(0)) == CHECK_MAX_S
    wait_s = budget.check_after_s(KeptLog(19 * GIB))
    assert wait_s * BURST_BYTES_PER_S <= GIB
    assert budget.check_after_s(KeptLog(21 * GIB)) == CHECK_MIN_S
    assert LogBudget(None, 60.0).check_after_s(KeptLog(0, 58.0)) == pytest.approx(2.0)
