"""The parts that run alongside a capture in its process, and are replaced during the capture when their settings
change.

    other settings ──▶ what differs is prepared ──▶ all of it can run: the old ends, the new begins
                                └─ some of it cannot: what was prepared ends, the old continues, the error is raised

HTTP, notifications, the publisher, retention, OpenTelemetry traces and the control table are such parts. They do not
depend on each other, and the capture does not depend on them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Protocol, Self

from cdcflow.config import Config


class Running(Protocol):
    """A part under some settings: it is prepared, then begun, then ended. It may also be ended when only prepared."""

    def begin(self) -> None:
        """Begin to work; the predecessor has been stopped."""

    def end(self, *, wait: bool) -> None:
        """End the part. With `wait`, return only when it has ended.

        Without `wait` it must not wait for requests: the one that replaces this part may be a request that it is
        answering.
        """


class Component(Protocol):
    """Something that runs alongside the capture."""

    def made_of(self, config: Config) -> object:
        """Return the settings that the part depends on. The part is replaced when this value changes."""

    def prepare(self, config: Config) -> Running | None:
        """Create the part for these settings; `None` if they need none.

        Raises:
            CdcflowError: the part cannot run with them.
        """


class RunningComponents:
    """The parts alongside one capture. Any thread may call `use`; call `close` when the capture has ended.

    `of_standby`: the parts that a standby has as well; all others run only while the daemon is active.
    """

    def __init__(self, parts: Sequence[Component], of_standby: Collection[Component] = ()) -> None:
        self._parts = tuple(parts)
        self._of_standby = {number for number, part in enumerate(self._parts) if part in of_standby}
        self._is_active = True
        self._lock = threading.Lock()
        self._running: dict[int, tuple[object, Running | None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def use(self, config: Config) -> None:
        """Apply these settings to all parts, or to none.

        Raises:
            CdcflowError: a part cannot run with them; those that ran continue.
        """
        with self._lock:
            wanted = [(n, part.made_of(config)) for n, part in enumerate(self._parts) if self._may_run(n)]
            wanted = [(n, made_of) for n, made_of in wanted if n not in self._running or self._running[n][0] != made_of]
            prepared = self._prepare([number for number, _ in wanted], config)
            for number, made_of in wanted:
                before = self._running.get(number, (None, None))[1]
                if before is not None:
                    before.end(wait=False)
                self._running[number] = made_of, prepared[number]
                if (new := prepared[number]) is not None:
                    new.begin()

    def _prepare(self, numbers: Sequence[int], config: Config) -> dict[int, Running | None]:
        prepared: dict[int, Running | None] = {}
        try:
            for number in numbers:
                prepared[number] = self._parts[number].prepare(config)
        except BaseException:
            _end(list(prepared.values()))
            raise
        return prepared

    def set_active(self, active: bool, config: Config) -> None:
        """Begin the parts that only an active daemon has, with these settings; or end them, and return when they have
        ended.

        Raises:
            CdcflowError: as `use`.
        """
        with self._lock:
            self._is_active = active
            stopped = [n for n in sorted(self._running) if not self._may_run(n)]
            _end([self._running.pop(number)[1] for number in stopped])
        self.use(config)

    def _may_run(self, number: int) -> bool:
        return self._is_active or number in self._of_standby

    def close(self) -> None:
        """End all parts, the last one first."""
        with self._lock:
            running = [self._running[number][1] for number in sorted(self._running)]
            self._running = {}
            _end(running)


def _end(running: Sequence[Running | None]) -> None:
    for one in reversed(running):
        if one is not None:
            one.end(wait=True)
