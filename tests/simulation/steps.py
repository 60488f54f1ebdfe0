"""The threads of an attempt without any thread: each takes a step when it is called, in an order the caller chooses.

A call that has to wait in the middle (a sync that is durable and has not returned, a chunk of several parts) raises
`Later`; its next step calls it again, and it continues from what it remembers. So the same choices give the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from cdcflow.capture.threads import Threads, Worker
from cdcflow.capture.waker import Waker


class Later(BaseException):
    """This is not done: call it again."""


class StepWorker(Worker):
    """Does its work in `go`. `under_way`: it has begun and waits in the middle."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._asked = 0
        self._done = 0
        self._begun = 0
        self._error: BaseException | None = None
        self.is_stepping = False

    @property
    def under_way(self) -> bool:
        return self._begun > self._done

    def ask(self) -> None:
        self._asked += 1

    def go(self) -> None:
        """One step, if there is something to do."""
        if self.idle or self._error is not None:
            return
        self._begun = self._begun if self.under_way else self._asked
        self.is_stepping = True
        try:
            self._work()
        except Later:
            return
        except Exception as error:  # noqa: BLE001 - raised again by the loop, in `check`
            self._error = error
        else:
            self._done = self._begun
        finally:
            self.is_stepping = False

    def settle(self, seconds: float) -> bool:
        while not self.idle and self._error is None:
            self.go()
        return self._error is None

    def stop(self) -> None:
        """There is no thread to end."""


@dataclass(slots=True)
class _Task:
    """`tell` is called with a function that returns, or raises, the result of `work`."""

    tell: Callable[..., object]
    work: Callable[[], object]
    about: tuple[object, ...]
    outcome: Callable[[], object] | None = None


class StepPool(Executor):
    """Takes what is submitted as `tell(work, …)`. A step does the work; the next one reports its result."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []

    def __len__(self) -> int:
        return len(self._tasks)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        work, *about = args
        self._tasks.append(_Task(fn, work, tuple(about)))
        return Future()

    def go(self, number: int) -> None:
        """One step of one of the tasks."""
        task = self._tasks[number]
        if task.outcome is None:
            try:
                task.outcome = _returning(task.work())
            except Later:
                pass
            except Exception as error:  # noqa: BLE001 - raised again when it is reported
                task.outcome = _raising(error)
        else:
            del self._tasks[number]
            task.tell(task.outcome, *task.about)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._tasks.clear()


def _returning(answer: object) -> Callable[[], object]:
    return lambda: answer


def _raising(error: Exception) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


class Steps(Threads):
    """An attempt's threads: one pool of tasks, and workers by their names."""

    def __init__(self) -> None:
        self.tasks = StepPool()
        self.workers: dict[str, StepWorker] = {}

    def pool(self, name: str, count: int) -> StepPool:
        return self.tasks

    def worker(self, name: str, work: Callable[[], None], nice: int = 0) -> StepWorker:
        self.workers[name] = StepWorker(work)
        return self.workers[name]

    def in_loop(self, name: str) -> bool:
        """Whether the caller was called by the loop, not by this worker."""
        return name not in self.workers or not self.workers[name].is_stepping


class Silent(Waker):
    """A waker that never has to wait: everything happens when the caller does it."""

    def __init__(self) -> None:
        """No sockets."""

    def wake(self) -> None:
        pass

    def wait(self, fileno: int | None, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass
