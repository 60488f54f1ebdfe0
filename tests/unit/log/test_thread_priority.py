"""A thread's priority is lowered for it and for the threads that it starts, not for its process."""

from __future__ import annotations

import os
import threading

from cdcflow.log.thread_priority import has_lower_priority, lower_thread_priority

LOWEST = 19


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_priority_is_lowered_for_one_thread_and_those_that_it_starts() -> None:
    found: list[tuple[int, bool]] = []
    before = niceness()

    def look() -> None:
        found.append((niceness(), has_lower_priority()))

    def work() -> None:
        look()
        lower_thread_priority(LOWEST)
        look()
        started = threading.Thread(target=look)
        started.start()
        started.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    look()
    assert found == [(before, False), (LOWEST, True), (LOWEST, False), (before, False)]
