"""A backlog is decoded in a thread of its own, while the loop encodes and writes what came before.

    the thread   turn ──▶ answer ──▶ answer …      a turn: receive, cut, decode; never more than `ANSWERS_MAX` wait
    the loop             take ──▶ encode, write ──▶ take …

For one change at a time a second thread is only a delay: two hand-overs, and a wait for the interpreter. So the loop
does the turns by itself, and hands them over while `goes_on` says that much is coming. Whose turn it is, is always
clear: from `start` on the thread's, until it has ended and its last answer is taken. What the turns work on therefore
needs no lock.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

ANSWERS_MAX: Final = 2
"""So many wait to be taken at most: each may hold some megabytes."""

T = TypeVar("T")


class DecodeAhead(Generic[T]):
    """Does turns in another thread while `goes_on`. All but `active` and `ready` belong to one thread, the loop's."""

    def __init__(self, turn: Callable[[], T], goes_on: Callable[[], bool]) -> None:
        self._turn = turn
        self._goes_on = goes_on
        self._changed = threading.Condition()
        self._answers: deque[T] = deque()
        self._error: BaseException | None = None
        self._running = self._closed = False
        self._thread: ThreadPoolExecutor | None = None
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    @property
    def active(self) -> bool:
        """The turns are the thread's, or it left something to be taken."""
        return self._running or self.ready

    @property
    def ready(self) -> bool:
        """`take` gives or raises something."""
        return bool(self._answers) or self._error is not None

    def fileno(self) -> int:
        """Readable when something can be taken, and when the thread has ended. For as long as it is `active`."""
        return self._near.fileno()

    def poll(self) -> T | None:
        """A turn's answer, from whoever does the turns now; None: the thread has none yet."""
        if self.active:
            return self.take()
        answer = self._turn()
        if self._goes_on():
            self.start()
        return answer

    def start(self) -> None:
        """Hand the turns over. Not while it is `active`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "cdcflow-decode")
        self._running = True
        self._thread.submit(self._run)

    def take(self) -> T | None:
        """The next answer; None: there is none yet. A turn's error is raised once the answers before it are taken."""
        with self._changed:
            with contextlib.suppress(BlockingIOError):
                self._near.recv(64)
            if self._answers:
                self._changed.notify()
                return self._answers.popleft()
            error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def close(self) -> None:
        """End the thread after the turn under way, and forget what was not taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.shutdown()
        self._answers.clear()
        self._error = None
        self._near.close()
        self._far.close()

    def _run(self) -> None:
        try:
            while self._put(self._turn()):
                pass
        except BaseException as error:  # noqa: BLE001 - raised again by `take`, in the loop's thread
            self._error = error
        self._running = False
        self._ring()

    def _put(self, answer: T) -> bool:
        """Leave an answer; whether another turn is wanted, once there is room for what it gives."""
        with self._changed:
            self._answers.append(answer)
            self._ring()
            self._changed.wait_for(lambda: self._closed or len(self._answers) < ANSWERS_MAX)
            return not self._closed and self._goes_on()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it rings already
            self._far.send(b"!")
