"""The threads of an attempt: a pool for requests to the source, and workers for repeated tasks.

An attempt gets both, and its clock, from outside: a simulation runs the same attempt step by step, in an order
determined by a seed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

Clock = Callable[[], float]
"""A monotonic clock's seconds."""


class Threads:
    """Creates the threads for an attempt's work outside the loop."""

    def pool(self, name: str, count: int) -> Executor:
        return ThreadPoolExecutor(count, thread_name_prefix=name)

    def worker(self, name: str, work: Callable[[], None], nice: int = 0) -> Worker:
        return Worker(name, work, nice)


class Worker:
    """A thread that runs one function again whenever it was requested since the last run began.

    If the function raises an error, the thread ends, and `check` raises that error.

    `nice`: by how much the thread's priority is lowered, as in nice(1); Linux only.
    """

    def __init__(self, name: str, work: Callable[[], None], nice: int = 0) -> None:
        self._work = work
        self._nice = nice
        self._turn = threading.Condition()
        self._asked = 0
        self._done = 0
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self) -> None:
        with self._turn:
            self._asked += 1
            self._turn.notify_all()

    @property
    def idle(self) -> bool:
        """Whether every requested run is finished."""
        return self._done == self._asked

    @property
    def behind(self) -> int:
        """The number of requests that arrived after the latest finished run had begun."""
        return self._asked - self._done

    def check(self) -> None:
        """Raise, in the caller's thread, the error that ended the thread."""
        if self._error is not None:
            raise self._error

    def settle(self, seconds: float) -> bool:
        """Wait until every requested run is finished; False if it took longer, or the thread has ended with an
        error."""
        with self._turn:
            asked = self._asked
            self._turn.wait_for(lambda: self._done >= asked or self._error is not None, seconds)
            return self._done >= asked and self._error is None

    def stop(self) -> None:
        """Let the work under way finish, and end the thread."""
        with self._turn:
            self._stopping = True
            self._turn.notify_all()
        self._thread.join()

    def _run(self) -> None:
        if self._nice and sys.platform == "linux":  # elsewhere a thread has no separate priority
            with contextlib.suppress(OSError):
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + self._nice)
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._asked > self._done or self._stopping)
                if self._stopping:
                    return
                asked = self._asked
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001 - raised again by the loop's thread, in `check`
                with self._turn:
                    self._error = error
                    self._turn.notify_all()
                return
            with self._turn:
                self._done = asked
                self._turn.notify_all()
