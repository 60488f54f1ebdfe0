"""A publisher that kills itself with SIGKILL at a named point: `publisher.py CONFIG [POINT COUNT]`.

The points are steps of a group. Without one it publishes the log's rows, and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from cdcflow.daemon.lean import without_luxuries

if __name__ == "__main__":
    without_luxuries()  # pandas takes a third of a start

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.publish.producer import TableProducer

POINTS = {
    "before begin": ("begin", "before"),
    "after begin": ("begin", "after"),
    "after messages": ("send", "after"),
    "before commit": ("commit", "before"),
    "during commit": ("commit", "during"),
    "after commit": ("commit", "after"),
}
SOON_S = 0.002


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(method: Callable[..., Any], when: str, count: int) -> Callable[..., Any]:
    """The same method, which ends the process at its `count`-th call."""
    calls = 0

    def wrapped(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < count:
            return method(*arguments)
        if when == "before":
            die()
        if when == "during":
            threading.Timer(SOON_S, die).start()
        found = method(*arguments)
        die()
        return found

    return wrapped


def main() -> None:
    config = load(sys.argv[1])
    if len(sys.argv) > 2:
        name, when = POINTS[sys.argv[2]]
        setattr(TableProducer, name, deadly(getattr(TableProducer, name), when, int(sys.argv[3])))
    wiring.publisher(config, lambda event, fields: None).run(once=True)


if __name__ == "__main__":
    main()
