"""Decodes a backlog in a separate thread, while the loop encodes and writes the changes before.

    the thread   turn ──▶ answer ──▶ answer …      a turn: receive, cut, decode; at most `ANSWERS_MAX` answers wait
    the loop             take ──▶ encode, write ──▶ take …

For one change at a time a second thread only adds delay: two hand-overs, and a wait for the interpreter lock. So the
loop does the turns itself, and leaves them to the thread while `goes_on` reports that much more is to arrive. At any
time only one of the two does the turns: after `start` it is the thread, until it has ended and its last answer is
taken. Therefore the data that the turns work on needs no lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from cdcflow.sources.engine.descriptors import WakeDescriptor

ANSWERS_MAX: Final = 2
"""At most this many answers wait to be taken: each may hold some megabytes."""

T = TypeVar("T")


class DecodeAhead(Generic[T]):
    """Runs turns of receiving and decoding in another thread while `goes_on` returns true.

    Call all methods except `active` and `ready` in the loop's thread.
    """

    def __init__(self, turn: Callable[[], T], goes_on: Callable[[], bool]) -> None:
        self._turn = turn
        self._goes_on = goes_on
        self._changed = threading.Condition()
        self._answers: deque[T] = deque()
        self._error: BaseException | None = None
        self._running = self._closed = False
        self._thread: ThreadPoolExecutor | None = None
        self._descriptor = WakeDescriptor()

    @property
    def active(self) -> bool:
        """Whether the thread does the turns, or an answer or error of it remains to be taken."""
        return self._running or self.ready

    @property
    def ready(self) -> bool:
        """Whether `take` returns an answer or raises an error at once."""
        return bool(self._answers) or self._error is not None

    def fileno(self) -> int:
        """Return a descriptor that is readable if an answer can be taken, or the thread has ended. Valid while
        `active`."""
        return self._descriptor.fileno()

    def poll(self) -> T | None:
        """Return the next answer: from the thread if it is running, otherwise from a turn in the caller's thread.

        None if the thread has no answer yet.
        """
        if self.active:
            return self.take()
        answer = self._turn()
        if self._goes_on():
            self.start()
        return answer

    def start(self) -> None:
        """Let the thread do the turns. Call it only while it is not `active`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "cdcflow-decode")
        self._running = True
        self._thread.submit(self._run)

    def take(self) -> T | None:
        """Return the next answer, or None if none is ready. A turn's error is raised once the answers before it are
        taken."""
        with self._changed:
            self._descriptor.drain()
            if self._answers:
                self._changed.notify()
                return self._answers.popleft()
            error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def close(self) -> None:
        """End the thread after its current turn, and discard the answers that were not taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.shutdown()
        self._answers.clear()
        self._error = None
        self._descriptor.close()

    def _run(self) -> None:
        try:
            while self._put(self._turn()):
                pass
        except BaseException as error:  # noqa: BLE001 - raised again by `take`, in the loop's thread
            self._error = error
        self._running = False
        self._descriptor.wake()

    def _put(self, answer: T) -> bool:
        """Queue an answer, and wait until the queue has room for the next. Return whether to do another turn."""
        with self._changed:
            self._answers.append(answer)
            self._descriptor.wake()
            self._changed.wait_for(lambda: self._closed or len(self._answers) < ANSWERS_MAX)
            return not self._closed and self._goes_on()
