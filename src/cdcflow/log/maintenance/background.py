"""A thread that periodically does some work for a log during a capture. Its errors do not end the capture."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from cdcflow.errors import CdcflowError
from cdcflow.log.thread_priority import lower_thread_priority

OnEvent = Callable[[str, Mapping[str, object]], None]


class BackgroundTask(ABC):
    """Calls `step` every `every_s` seconds between entering and leaving its context; leaving waits a second at most.

    The reason of an error is reported as the event `put_off`. The same reason is not reported again until a step has
    succeeded or failed for a different reason.
    """

    put_off = ""

    def __init__(self, name: str, on_event: OnEvent, every_s: float, niceness: int = 0) -> None:
        """`niceness`: above 0, the thread runs only on otherwise idle processors (Linux: each thread has its own
        priority)."""
        self._tell = on_event
        self._every_s = every_s
        self._niceness = niceness
        self._said = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def step(self) -> None:
        """Do the work that is due."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        if self._niceness:
            lower_thread_priority(self._niceness)
        while not self._closing.wait(self._every_s):
            try:
                self.step()
            except CdcflowError as error:
                self._say(self.put_off, str(error).splitlines()[0])
            except Exception as error:  # noqa: BLE001  it never ends a capture; its text may hold values
                self._say(self.put_off, type(error).__name__)

    def _say(self, event: str, reason: str, cause: str = "") -> None:
        """Report a reason, unless it was reported already. `cause`: a short form of the reason by which repetitions are
        recognized, if the reason has figures that keep changing."""
        if (cause or reason) != self._said:
            self._said = cause or reason
            self._tell(event, {"reason": reason})

    def _is_well(self) -> None:
        """Record that the last report no longer holds."""
        self._said = ""
