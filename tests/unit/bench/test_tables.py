"""What the benchmarks of tables compute from their measurements."""

from __future__ import annotations

import numpy as np
import pytest
from bench.harness import Failed
from bench.tablesfreshness import waits


def test_a_row_is_visible_when_the_first_call_that_has_it_ends() -> None:
    """No reader reads between two calls: the wait lasts until the next call has ended."""
    commits = np.array([(1, 1_000_000_000), (2, 2_000_000_000), (3, 2_500_000_000)])
    sights = np.array([(0, 1_500_000_000), (1, 2_000_000_000), (3, 4_000_000_000), (3, 5_000_000_000)])
    assert waits(commits, sights).tolist() == [1.0, 2.0, 1.5]


def test_a_row_that_was_never_seen_prints_no_number() -> None:
    """A reader that stopped early would show only the quick rows."""
    with pytest.raises(Failed, match="row 2"):
        waits(np.array([(1, 10), (2, 20)]), np.array([(1, 15)]))
