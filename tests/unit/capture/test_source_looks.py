"""When the periodic checks of a source are sent to the threads that also read the backfill's chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.capture.small_source import ITEMS, Small

from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.source_polls import SourceLooks, TablesChanged


class Tasks:
    """Keeps what would run on threads until the test runs it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], Any]] = []

    def call(self, work: Callable[[], Any]) -> None:
        self.waiting.append(work)


def _looks(tasks: Tasks, **seconds: float) -> SourceLooks:
    source: Any = Small()
    given: Any = tasks
    every = {"heartbeat_s": 1e9, "tables_look_s": 1e9} | seconds
    return SourceLooks(source, source.chunks(), given, [ITEMS], Progress, now_s=0.0, **every)


@pytest.mark.parametrize("check", ["heartbeat_s", "tables_look_s"])
def test_a_check_that_is_slower_than_its_interval_does_not_queue(check: str) -> None:
    tasks = Tasks()
    looks = _looks(tasks, **{check: 10.0})
    for now_s in range(0, 60, 5):
        looks.send_due(float(now_s))
    assert len(tasks.waiting) == 1


def test_the_interval_counts_from_the_end_of_a_check() -> None:
    tasks = Tasks()
    looks = _looks(tasks, heartbeat_s=10.0)
    looks.send_due(10.0)
    looks.send_due(25.0)
    tasks.waiting.pop()()
    looks.send_due(34.0)
    assert tasks.waiting == []
    looks.send_due(35.0)
    assert len(tasks.waiting) == 1


def test_a_check_that_fails_is_due_again() -> None:
    tasks = Tasks()
    looks = _looks(tasks, tables_look_s=10.0)
    looks.send_due(10.0)
    looks._source.tables = list  # type: ignore[method-assign]
    with pytest.raises(TablesChanged):
        tasks.waiting.pop()()
    looks.send_due(20.0)
    assert len(tasks.waiting) == 1
