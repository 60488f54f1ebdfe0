"""For a topic that lacks a row, or has one twice, no number is printed."""

from __future__ import annotations

import numpy as np
import pytest
from bench import tokafka
from bench.brokers import check
from bench.harness import Failed, Outcome


def test_keys_may_come_in_any_order() -> None:
    """Partitions keep the order of each key, not that of the keys."""
    check(np.array([3, 1, 2]), "orders", 3)


@pytest.mark.parametrize("found", [[1, 2], [1, 2, 2], [1, 2, 3, 3], [0, 1, 2], [1, 2, 3, 4], []])
def test_topic_without_a_row_or_with_one_twice_fails_the_run(found: list[int]) -> None:
    """A system that is quick because it loses rows must not appear quick."""
    with pytest.raises(Failed, match="not the keys 1 to 3"):
        check(np.array(found, np.int64), "orders", 3)


def test_processes_side_by_side_count_from_the_first_begin_to_the_last_end() -> None:
    """The slower of the two determines the time, both determine the cost."""
    first = Outcome(seconds=4, rows=10, cpu_s=1, rss_bytes=100, found={"ended_ns": 5_000_000_000})
    second = Outcome(seconds=6, rows=10, cpu_s=2, rss_bytes=200, found={"ended_ns": 8_000_000_000})
    both = tokafka.as_one([first, second])
    assert (both.seconds, both.cpu_s, both.rss_bytes, both.rows) == (7, 3, 300, 10)
