"""The threads of an attempt, run by hand: one step of one of them at a time, in an order that the caller chooses.

A `Fiber` has a thread of its own, but that thread runs only while somebody waits in `step`. So what pauses in the
middle (a chunk of several parts, a sync between its fsync and its return) can stay there while anything else happens,
and the same choices give the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from cdcflow.pipeline.threads import Threads, Worker


class Killed(BaseException):
    """The process has ended in the middle of this."""


class Fiber:
    """A function on its way. `paused`: it waits for the next `step`."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._mine = threading.Lock()
        self._theirs = threading.Lock()
        self._mine.acquire()
        self._theirs.acquire()
        self._thread: threading.Thread | None = None
        self._killed = False
        self.done = False

    @property
    def paused(self) -> bool:
        return self._thread is not None and not self.done

    def step(self) -> None:
        """Let it run until it pauses or ends."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._mine.release()
        self._theirs.acquire()

    def pause(self) -> None:
        """For the function itself: let others run until the next step."""
        self._theirs.release()
        self._mine.acquire()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """End it where it is."""
        if self.paused:
            self._killed = True
            self.step()
        self.done = True

    def _run(self) -> None:
        try:
            self._work()
        except Killed:
            pass
        finally:
            self.done = True
            self._theirs.release()


class StepWorker(Worker):
    """Does its work in `go`."""

    def __init__(self, work: Callable[[], None], settle: Callable[[], None]) -> None:
        self._work = work
        self._settle = settle
        self._asked = 0
        self._done = 0
        self._error: BaseException | None = None

    def ask(self) -> None:
        self._asked += 1

    def go(self) -> None:
        asked = self._asked
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - raised again by the loop, in `check`
            self._error = error
        else:
            self._done = asked

    def settle(self, seconds: float) -> bool:
        self._settle()
        return self.idle and self._error is None

    def stop(self) -> None:
        """There is no thread to end."""


class StepPool(Executor):
    """Keeps what is submitted as fibers that have not begun."""

    def __init__(self) -> None:
        self.fibers: list[Fiber] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.fibers.append(Fiber(lambda: fn(*args, **kwargs)))
        return Future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for fiber in self.fibers:
            fiber.kill()
        self.fibers.clear()


class Steps(Threads):
    """An attempt's threads. `pause`, called from anywhere inside of them, gives the turn back."""

    def __init__(self) -> None:
        self.tasks = StepPool()
        self.workers: dict[str, StepWorker] = {}
        self._under_way: dict[str, Fiber] = {}
        self._running: Fiber | None = None

    def pool(self, name: str, count: int) -> StepPool:
        return self.tasks

    def worker(self, name: str, work: Callable[[], None], nice: int = 0) -> StepWorker:
        self.workers[name] = StepWorker(work, lambda: self._settle(name))
        return self.workers[name]

    def pause(self) -> None:
        """Let others run; in the loop itself nothing happens."""
        if self._running is not None:
            self._running.pause()

    def task(self, number: int) -> None:
        """One step of one of the tasks."""
        fiber = self.tasks.fibers[number]
        self._step(fiber)
        if fiber.done:
            self.tasks.fibers.remove(fiber)

    def work(self, name: str) -> None:
        """One step of a worker that has something to do."""
        worker = self.workers[name]
        if name not in self._under_way and not worker.idle:
            self._under_way[name] = Fiber(worker.go)
        if (fiber := self._under_way.get(name)) is not None:
            self._step(fiber)
            if fiber.done:
                del self._under_way[name]

    def kill(self) -> None:
        """The process ends."""
        self.tasks.shutdown()
        for fiber in self._under_way.values():
            fiber.kill()
        self._under_way.clear()

    def _settle(self, name: str) -> None:
        worker = self.workers[name]
        while not worker.idle:
            self.work(name)
            worker.check()

    def _step(self, fiber: Fiber) -> None:
        outer, self._running = self._running, fiber
        try:
            fiber.step()
        finally:
            self._running = outer
