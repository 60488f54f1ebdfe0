"""Work that a separate process does for a daemon, which starts it, watches it and starts it again.

    component ──▶ Supervisor (a thread) ──▶ the process (`supervised_process`) ──▶ what that starts, such as Java

Such work must never stop or slow the capture, so it shares nothing with it but the machine, where it has the lowest
priority. The supervisor ends a process that has too much memory, sends nothing, or makes no progress, and starts the
next one, after pauses that grow while it fails again and again. Work that a process left unfinished is finished by the
next one.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from cdcflow.capture.waker import Waker
from cdcflow.daemon.child_process import ChildProcess, list_tree, memory_bytes
from cdcflow.daemon.events import OnEvent

STOP_WITHIN_S = 8.0
"""How long a process may take to reach a commit when the daemon ends, which itself has ten seconds."""
REPLACE_WITHIN_S = 60.0
"""How long a process may take to reach a commit when other settings replace it."""
POLL_EVERY_S = 0.5
LIST_EVERY_S = 5.0
"""How often the processes that belong to the work are listed; their memory is read more often."""
SILENT_MAX_S = 60.0
"""A process that has sent no beat for this long is ended. It should send one every two seconds."""
PATIENCE_MIN_S = 15.0
"""The minimum of `progress_timeout`: a healthy process takes seconds to start, and its beats may be late."""
PAUSE_MAX_S = 300.0
STEADY_S = 60.0
"""If a process ran for this long before it failed, the pauses before restarts begin at one second again."""

Cause = Literal["failed", "killed", "memory", "silent", "stuck"]


@dataclass(frozen=True, slots=True)
class SupervisedWork:
    """The facts about a supervised process that its supervisor needs.

    `name`: the work in events and reasons. `command` starts the process, and `first_line` is the first line that it
    gets. `busy`: the states in which it must make progress. `memory_remedy`, `stuck_remedy`: the remedies if it had too
    much memory, or made no progress. `about`: fields of each of its events.
    """

    name: str
    command: tuple[str, ...]
    first_line: bytes
    memory_bytes_max: int
    progress_timeout_s: float
    busy: frozenset[str]
    memory_remedy: str
    stuck_remedy: str
    about: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a process, with its cause. `kind`: the kind of the error, if an error ended it. `reason` None: the
    error's text must not be shown, only its kind."""

    cause: Cause
    reason: str | None
    remedy: str | None
    kind: str | None = None


@dataclass(slots=True)
class _Watched:
    """The observations of one process. Times are monotonic.

    `heard_at`: when it last sent anything; `moved_at`: when it last sent anything but a beat. `is_notified`: it knows
    of all news so far. `end`: `None` while it may continue.
    """

    process: ChildProcess
    pids: tuple[int, ...]
    began: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)
    moved_at: float = field(default_factory=time.monotonic)
    listed_at: float = field(default_factory=time.monotonic)
    is_notified: bool = False
    failure: Mapping[str, Any] | None = None
    end: _End | None = None


class Supervisor(ABC):
    """Runs one process after another for the same work, in a thread.

    `begin`, `end` and `status` are for the daemon; a subclass interprets the lines that report success.
    """

    def __init__(self, work: SupervisedWork, tell: OnEvent, ends: Counter[Cause]) -> None:
        """`ends` counts the ends of processes, by cause, over all supervisors of this work in the daemon."""
        self._work = work
        self._tell_event = tell
        self._patience_s = self._shortest_s = max(PATIENCE_MIN_S, work.progress_timeout_s)
        self._before: Self | None = None
        self._waker = Waker()
        self._end_by: float | None = None
        self._ends = ends
        self._state: dict[str, Any] = {"state": "starting", "since": _now()}
        self._failing: dict[str, Any] | None = None
        self._has_news = False
        self._thread = threading.Thread(target=self._run, name=work.name, daemon=True)

    # ── what the work is ────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _take_line(self, line: Mapping[str, Any]) -> bool:
        """Handle one line of the process. Return whether it reports that the work was done."""

    @abstractmethod
    def _write_failure(self, reason: str) -> None:
        """Store the reason why the supervisor ended the process, where other processes find it."""

    # ── for the daemon ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_ending(self) -> bool:
        return self._end_by is not None

    def begin_after(self, before: Self | None) -> None:
        """Start the first process as soon as the last one of `before` has ended."""
        self._before = before
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        self.stop_soon(STOP_WITHIN_S if wait else REPLACE_WITHIN_S)
        if self._thread.ident is None:
            self._waker.close()  # its process was never started
        elif wait:
            self.join()

    def stop_soon(self, within_s: float) -> None:
        """Make the work end at its next commit, and end the process after this time. Safe in a signal handler."""
        by = time.monotonic() + within_s
        self._end_by = by if self._end_by is None else min(by, self._end_by)
        self._waker.wake()

    def notify(self) -> None:
        self._has_news = True
        self._waker.wake()

    def join(self) -> None:
        """Wait until the last process has ended."""
        self._thread.join()

    def status(self) -> dict[str, Any]:
        """Return the status. `state`: starting, restarting, or one that the process reports. `failing`: `None` if the
        work has not failed since it last succeeded. `ends`: how many processes ended by themselves or were ended, by
        cause."""
        return {
            "memory_bytes_max": self._work.memory_bytes_max,
            "progress_timeout_seconds": self._patience_s,
            "ends": {cause: self._ends[cause] for cause in get_args(Cause)},
            "failing": self._failing,
            **self._state,
        }

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        with contextlib.closing(self._waker):
            self._run_processes()

    def _run_processes(self) -> None:
        if self._before is not None:
            self._before.join()
            self._before = None
        failures = 0
        while not self.is_ending:
            began = time.monotonic()
            try:
                end = self._run_process()
            except OSError as error:  # no memory, or too many processes
                end = _End("killed", f"it cannot be started or read: {error.strerror}", None)
            except Exception as error:  # noqa: BLE001  the daemon must not miss the work because of a fault here
                end = _End("killed", f"{type(error).__name__} in the daemon", None)
            if self.is_ending:
                break
            failures = 1 if time.monotonic() - began >= STEADY_S else failures + 1
            self._report_end(end, min(PAUSE_MAX_S, 2.0 ** (failures - 1)))

    def _run_process(self) -> _End:
        """Start a process, and watch it until it has ended. Return its end with the reason."""
        with ChildProcess(self._work.command) as process:
            process.send(self._work.first_line)
            life = _Watched(process, (process.pid,))
            self._state = {"state": "starting", "since": _now(), "pid": process.pid}
            is_asked = False
            while (lines := self._next(process)) is not None:
                for line in lines:
                    self._take(life, json.loads(line))
                if self._has_news and not life.is_notified:
                    self._has_news, life.is_notified = False, True
                    process.send(b"news")
                if self._end_by is not None and not is_asked:
                    process.terminate()
                    is_asked = True
                elif self._end_by is None and life.end is None:
                    self._check(life)
                if life.end is not None or (self._end_by is not None and time.monotonic() >= self._end_by):
                    process.kill()
            code = process.wait()
        return life.end or _end_of(life, code)

    def _next(self, process: ChildProcess) -> list[bytes] | None:
        """Return the lines that the process has sent, after a short wait; `None` if it has ended."""
        self._waker.wait(process.output, POLL_EVERY_S)
        return process.lines()

    def _take(self, life: _Watched, line: Mapping[str, Any]) -> None:
        life.heard_at = time.monotonic()
        if "beat" in line:
            return
        life.moved_at = life.heard_at
        if "event" in line:
            self._tell(str(line["event"]), line.get("fields") or {})
        if (failure := line.get("failure")) is not None and not self.is_ending:
            life.failure = failure
            self._note_failure("failed", failure.get("kind"), failure.get("reason"), failure.get("remedy"))
        if self._take_line(line):
            life.failure = self._failing = None
            self._patience_s = self._shortest_s
        if (state := line.get("state")) is not None:
            life.is_notified = life.is_notified and state not in self._work.busy
            since = self._state["since"] if self._state["state"] == state else _now()
            known = {name: value for name, value in self._state.items() if name not in ("table", "step")}
            more = {name: line[name] for name in ("table", "step") if name in line}
            self._state = {**known, "state": state, "since": since, **more}

    def _tell(self, event: str, fields: Mapping[str, object]) -> None:
        self._tell_event(event, {**self._work.about, **fields})

    def _note_failure(self, cause: str, kind: str | None, reason: str | None, remedy: str | None) -> None:
        known = self._failing or {}
        since = known.get("since", _now())
        self._failing = {"cause": cause, "kind": kind, "reason": reason, "remedy": remedy, "since": since}
        if (known.get("kind"), gist(known.get("reason"))) != (kind, gist(reason)):
            self._tell(f"{self._work.name} failed", {"kind": kind, "reason": reason, "remedy": remedy})

    def _check(self, life: _Watched) -> None:
        """Decide whether the process must end: it has too much memory, it is silent, or it makes no progress."""
        now = time.monotonic()
        if now - life.listed_at >= LIST_EVERY_S:
            life.pids, life.listed_at = list_tree(life.process.pid), now
        used, limit = memory_bytes(life.pids), self._work.memory_bytes_max
        self._state = {**self._state, "memory_bytes": used}
        if used is not None and used > limit:
            had = f"it had {_megabytes(used)}, and may have {_megabytes(limit)}"
            life.end = _End("memory", had, self._work.memory_remedy)
        elif now - life.heard_at > min(SILENT_MAX_S, self._patience_s):
            silent = f"it sent nothing for {now - life.heard_at:.0f} s: it was stopped, or its machine swaps"
            life.end = _End("silent", silent, None)
        elif self._state["state"] in self._work.busy and now - life.moved_at > self._patience_s:
            what = self._state.get("table") or self._state.get("step") or self._state["state"]
            stuck = f"it made no progress for {now - life.moved_at:.0f} s ({what})"
            life.end = _End("stuck", stuck, self._work.stuck_remedy)
            self._patience_s *= 2  # the next process gets more time, so that long work can end

    def _report_end(self, end: _End, pause_s: float) -> None:
        """Report why a process ended, and wait before the next one."""
        name = self._work.name
        if end.cause != "failed":
            reason = f"the {name} process was ended: {end.reason}"
            self._write_failure(reason)
            self._note_failure(end.cause, None, reason, end.remedy)
        self._ends[end.cause] += 1  # set after the reason: another thread may read both at any time
        self._state = {"state": "restarting", "since": _now(), "retry_at": round(time.time() + pause_s, 3)}
        self._tell(f"{name} process ended", {"cause": end.cause, "next_in_seconds": pause_s})
        until = time.monotonic() + pause_s
        while not self.is_ending and (left := until - time.monotonic()) > 0:
            self._waker.wait(None, left)


_NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f.,:-]*")


def _end_of(life: _Watched, code: int) -> _End:
    """Return the end of a process that ended by itself, with the reason."""
    if code > 0 and (failure := life.failure) is not None:
        return _End("failed", failure.get("reason"), failure.get("remedy"), failure.get("kind"))
    if code > 0:
        return _End("killed", f"exit code {code}; stderr has more", None)
    number = -code or signal.SIGTERM
    why = "; the kernel does this when memory runs out" if number == signal.SIGKILL else ""
    return _End("killed", f"signal {signal.Signals(number).name}{why}", None)


def gist(reason: str | None) -> str | None:
    """Return a reason without its numbers (names of files with random parts, ages, counts), because they differ each
    time."""
    return None if reason is None else _NUMBER.sub("#", reason)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _now() -> float:
    return round(time.time(), 3)
