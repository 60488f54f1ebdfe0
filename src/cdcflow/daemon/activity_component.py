"""Records the states of a capture over time, in the log's folder, for `cdcflow timeline`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cdcflow.config import Config
from cdcflow.daemon.running_components import Running
from cdcflow.log.maintenance.activity import TEXT_CHARACTERS_MAX, ActivitySpan, note

EVERY_S = 10.0
POLL_S = 1.0
"""How often the state is read; it is written when it has changed, and every `EVERY_S`."""
SEEN_WITHIN_S = 60.0
"""If a daemon was not seen for this long, it did not run, or could not work. The next state then begins a new span.
"""


class ActivityComponent:
    """Records the state of an active daemon, which it gets from `status`."""

    def __init__(self, status: Callable[[], Mapping[str, Any]], every_s: float = EVERY_S) -> None:
        self._status = status
        self._every_s = every_s

    def made_of(self, config: Config) -> object:
        return None  # other settings cannot move the log

    def prepare(self, config: Config) -> Running | None:
        return ActivityThread(config, self._status, self._every_s)


class ActivityThread:
    """Records the daemon's states in a thread, and once more when the daemon ends."""

    def __init__(self, config: Config, status: Callable[[], Mapping[str, Any]], every_s: float) -> None:
        self._folder = config.log.folder
        self._status = status
        self._every_s = every_s
        self._began = f"{time.time():.3f}"
        self._state: tuple[str, str] | None = None
        self._seen_at = time.time()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="activity", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        self._stop.set()
        self._record(ended=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._record()
            self._stop.wait(min(POLL_S, self._every_s))

    def _record(self, *, ended: bool = False) -> None:
        """Record the span of the state that lasted until now, and begin that of the current one. `ended`: the daemon
        ends."""
        with self._lock:
            now, state = time.time(), self._current()
            if ended and state[0] != "halted":
                state = "stopped", ""
            if not ended and state == self._state and now - self._seen_at < self._every_s:
                return
            if self._state is not None and now - self._seen_at < SEEN_WITHIN_S:
                self._note(self._state, self._seen_at, now)
            if state != self._state or ended:
                self._note(state, now, now, ended=ended)
            self._state, self._seen_at = state, now

    def _current(self) -> tuple[str, str]:
        status = self._status()
        state, reason = str(status.get("state")), str(status.get("reason") or "").split("\n")[0]
        return ("starting", "") if reason == "starting" else (state, reason)

    def _note(self, state: tuple[str, str], begin: float, end: float, *, ended: bool = False) -> None:
        span = ActivitySpan(begin, end, state[0], self._began, reason=state[1][:TEXT_CHARACTERS_MAX], ended=ended)
        note(self._folder, "capture", span, joins_within_s=SEEN_WITHIN_S)
