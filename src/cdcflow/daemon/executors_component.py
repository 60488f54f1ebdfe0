"""The executors of an active daemon. A standby has none, and a daemon that becomes active does not wait for them.

becomes active ──▶ started in a thread; until they have connected the capture reads by itself
becomes the standby ──▶ ended
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.capture.ports.part_readers import HeldPart, Readers
from cdcflow.config import Config
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.running_components import Running
from cdcflow.errors import CdcflowError, SourceUnavailable

ENDED_WITHIN_S = 10.0
Start = Callable[[], AbstractContextManager[Readers]]


class ExecutorsComponent:
    """Implements `cdcflow.capture.ports.part_readers.Readers` by executors that run while the daemon is active.
    `count`: how many executors; `start` returns a context manager that runs them."""

    def __init__(self, count: int, start: Start, tell: OnEvent) -> None:
        self._count = count
        self._start = start
        self._tell = tell
        self._current: Readers | None = None

    # ── for the daemon ──────────────────────────────────────────────────────────────────────────────────────

    def made_of(self, config: Config) -> object:
        return None  # other settings do not concern executors that run

    def prepare(self, config: Config) -> Running | None:
        return _Started(self._start, self._use, self._tell)

    def _use(self, found: Readers | None) -> None:
        self._current = found

    # ── for the capture ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def count(self) -> int:
        return self._count

    @property
    def unavailable(self) -> bool:
        current = self._current
        return current is None or current.unavailable

    def read(self, chunk: Chunk, part: Any) -> Future[HeldPart]:
        if (current := self._current) is not None:
            return current.read(chunk, part)
        gone: Future[HeldPart] = Future()
        gone.set_exception(SourceUnavailable(f"reading {chunk.table}: the executors were ended"))
        return gone


class _Started:
    """The executors of one period in which the daemon is active."""

    def __init__(self, start: Start, use: Callable[[Readers | None], None], tell: OnEvent) -> None:
        self._start = start
        self._use = use
        self._tell = tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        self._use(None)
        self._stop.set()
        if wait and self._thread.ident is not None:
            self._thread.join(ENDED_WITHIN_S)  # they may be starting, which takes a cluster long

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as around:
                found = around.enter_context(self._start())
                if not self._stop.is_set():
                    self._tell("executors connected", {})
                    self._use(found)
                self._stop.wait()
        except CdcflowError as error:
            self._tell("executors not used", {"reason": str(error).splitlines()[0], "remedy": error.remedy})
