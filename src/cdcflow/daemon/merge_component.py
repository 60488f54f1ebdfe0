"""Merges alongside a capture: a separate process, which the daemon starts, watches and starts again.

    MergeComponent ──▶ MergeSupervisor (a thread) ──▶ the merge process (`merge_child`) ──▶ Java, if Spark merges

A merge must never stop or slow the capture, so it shares nothing with it but the machine, and there it comes last. The
supervisor ends a merge process that has more memory than `merge.memory_max`, sends nothing, or makes no progress, and
starts the next one, after pauses that grow while it fails again and again. Whatever a merge left unfinished, the next
one finishes.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from cdcflow.capture.waker import Waker
from cdcflow.config import Config, FileLog
from cdcflow.daemon.child_process import ChildProcess, list_tree, machine_bytes, memory_bytes
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.running_components import Running
from cdcflow.errors import SinkUnavailable
from cdcflow.log.maintenance import state_files

COMMAND = (sys.executable, "-m", "cdcflow.daemon.merge_child")
STOP_WITHIN_S = 8.0
"""How long a merge may take to reach a commit when the daemon ends, which itself has ten seconds."""
REPLACE_WITHIN_S = 60.0
"""The same when other settings replace it."""
POLL_EVERY_S = 0.5
LIST_EVERY_S = 5.0
"""How often the processes that belong to a merge are listed; their memory is read more often."""
SILENT_MAX_S = 60.0
"""A merge process sends a beat every two seconds; one that does not for this long is ended."""
PATIENCE_MIN_S = 15.0
"""A shorter `merge.progress_timeout` counts as this: a healthy process takes seconds to start, and its beats may be
late."""
PAUSE_MAX_S = 300.0
STEADY_S = 60.0
"""A merge process that ran for this long was no failure from the start: the pauses begin again at a second."""

Cause = Literal["failed", "killed", "memory", "silent", "stuck"]


class MergeComponent:
    """The merges of a daemon whose settings have `merge.every`. `enabled` False: another process merges.

    `seal_soon` is called when a merge process waits for a segment: once for each merge. It must not wait.
    """

    def __init__(self, tell: OnEvent, seal_soon: Callable[[], None] = lambda: None, *, enabled: bool = True) -> None:
        self._tell = tell
        self._seal_soon = seal_soon
        self._enabled = enabled
        self._latest: MergeSupervisor | None = None
        self._ends: Counter[Cause] = Counter()

    def made_of(self, config: Config) -> object:
        if not self._enabled or config.merge.every is None:
            return None
        log = config.log
        if isinstance(log, FileLog):  # a merge does not use these
            log = log.model_copy(update=dict.fromkeys(("retention", "seal", "index", "compact")))
        return config.merge, log, config.service.traces, config.source.kind

    def prepare(self, config: Config) -> Running | None:
        if self.made_of(config) is None:
            return None
        return MergeSupervisor(config, self._tell, self._seal_soon, self._ends, self._replace)

    def _replace(self, new: MergeSupervisor) -> MergeSupervisor | None:
        before, self._latest = self._latest, new
        return before

    def stop_soon(self) -> None:
        """Have a merge end at its next commit. Safe in a signal handler."""
        if self._latest is not None:
            self._latest.stop_soon(STOP_WITHIN_S)

    def notify(self) -> None:
        """The log has a new segment. Any thread may call it; it does not wait."""
        if (latest := self._latest) is not None:
            latest.notify()

    def status(self) -> dict[str, Any] | None:
        """What the merge process does; None if this daemon does not merge."""
        return None if self._latest is None or self._latest.is_ending else self._latest.status()

    def answer(self) -> dict[str, object]:
        """For the commands: whether this daemon may merge, and whether it does."""
        return {"may_merge": self._enabled, "merges": self.status() is not None}


@dataclass(frozen=True, slots=True)
class _End:
    """Why a merge process ended; `kind` is an error's, and `reason` None if only its kind may be shown."""

    cause: Cause
    reason: str | None
    remedy: str | None
    kind: str | None = None


@dataclass(slots=True)
class _Watched:
    """What is known of one merge process. Times are monotonic.

    `heard_at`: when it last sent anything; `moved_at`: anything but a beat. `is_notified`: it will merge what has
    been sealed so far. `end`: None while it may continue.
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


class MergeSupervisor:
    """Runs one merge process after another with the same settings, in a thread."""

    def __init__(
        self,
        config: Config,
        tell: OnEvent,
        seal_soon: Callable[[], None],
        ends: Counter[Cause],
        replace: Callable[[MergeSupervisor], MergeSupervisor | None],
    ) -> None:
        """`ends` counts, over all supervisors of the daemon."""
        self._config = config
        self._tell = tell
        self._seal_soon = seal_soon
        self._replace = replace
        self._bytes_max = config.merge.memory_max or machine_bytes() // 2
        self._patience_s = self._shortest_s = max(PATIENCE_MIN_S, config.merge.progress_timeout)
        self._before: MergeSupervisor | None = None
        self._waker = Waker()
        self._end_by: float | None = None
        self._ends = ends
        self._state: dict[str, Any] = {"state": "starting", "since": _now()}
        self._failing: dict[str, Any] | None = None
        self._has_merged = False
        self._has_news = False
        self._thread = threading.Thread(target=self._run, name="merge", daemon=True)

    # ── for the daemon ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_ending(self) -> bool:
        return self._end_by is not None

    def begin(self) -> None:
        self._before = self._replace(self)
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        self.stop_soon(STOP_WITHIN_S if wait else REPLACE_WITHIN_S)
        if self._thread.ident is None:
            self._waker.close()  # it was only prepared
        elif wait:
            self.join()

    def stop_soon(self, within_s: float) -> None:
        """Have the merge end at its next commit, and end it after this time. Safe in a signal handler."""
        by = time.monotonic() + within_s
        self._end_by = by if self._end_by is None else min(by, self._end_by)
        self._waker.wake()

    def notify(self) -> None:
        self._has_news = True
        self._waker.wake()

    def join(self) -> None:
        """Wait until the last merge process has ended."""
        self._thread.join()

    def status(self) -> dict[str, Any]:
        """`state`: starting, waiting (for a log), merging, idle or restarting. `failing`: None since a merge last
        succeeded. `ends`: how many merge processes ended by themselves or were ended, by cause."""
        return {
            "every_seconds": self._config.merge.every,
            "memory_bytes_max": self._bytes_max,
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
            except Exception as error:  # noqa: BLE001  the capture must not miss its merges because of a fault here
                end = _End("killed", f"{type(error).__name__} in the daemon", None)
            if self.is_ending:
                break
            failures = 1 if time.monotonic() - began >= STEADY_S else failures + 1
            self._report_end(end, min(PAUSE_MAX_S, 2.0 ** (failures - 1)))

    def _run_process(self) -> _End:
        """Start a merge process, and watch it until it has ended. Return why it did."""
        with ChildProcess(COMMAND) as process:
            process.send(self._config.model_dump_json().encode())
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
        """What the merge process has sent, after a short wait; None if it has ended."""
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
        if (merged := line.get("merged")) is not None:
            life.failure = None
            self._note_merge(merged)
        if "ready" in line and not self.is_ending:
            self._seal_soon()
        if (state := line.get("state")) is not None:
            life.is_notified = life.is_notified and state != "merging"
            since = self._state["since"] if self._state["state"] == state else _now()
            known = {name: value for name, value in self._state.items() if name not in ("table", "step")}
            more = {name: line[name] for name in ("table", "step") if name in line}
            self._state = {**known, "state": state, "since": since, **more}

    def _note_merge(self, merged: Mapping[str, Any]) -> None:
        self._patience_s = self._shortest_s
        if merged.get("cut") and not self._has_merged:
            self._has_merged = True
            self._tell("tables are merged", {**merged, "every": self._config.merge.every})
        elif self._failing is not None:
            self._tell("tables are merged again", merged)
        self._failing = None

    def _note_failure(self, cause: str, kind: str | None, reason: str | None, remedy: str | None) -> None:
        known = self._failing or {}
        since = known.get("since", _now())
        self._failing = {"cause": cause, "kind": kind, "reason": reason, "remedy": remedy, "since": since}
        if (known.get("kind"), _gist(known.get("reason"))) != (kind, _gist(reason)):
            self._tell("merge failed", {"kind": kind, "reason": reason, "remedy": remedy})

    def _check(self, life: _Watched) -> None:
        """Decide whether the process must end: it has too much memory, it is silent, or it makes no progress."""
        now = time.monotonic()
        if now - life.listed_at >= LIST_EVERY_S:
            life.pids, life.listed_at = list_tree(life.process.pid), now
        used = memory_bytes(life.pids)
        self._state = {**self._state, "memory_bytes": used}
        if used is not None and used > self._bytes_max:
            life.end = _End("memory", f"it had {_megabytes(used)}, and may have {_megabytes(self._bytes_max)}", _MEMORY)
        elif now - life.heard_at > min(SILENT_MAX_S, self._patience_s):
            silent = f"it sent nothing for {now - life.heard_at:.0f} s: it was stopped, or its machine swaps"
            life.end = _End("silent", silent, None)
        elif self._state["state"] in ("starting", "merging") and now - life.moved_at > self._patience_s:
            what = self._state.get("table") or self._state.get("step") or self._state["state"]
            life.end = _End("stuck", f"it made no progress for {now - life.moved_at:.0f} s ({what})", _STUCK)
            self._patience_s *= 2  # a merge that takes this long is finished some time

    def _report_end(self, end: _End, pause_s: float) -> None:
        """Report why a merge process ended, and wait before the next one."""
        if end.cause != "failed":
            reason = f"the merge process was ended: {end.reason}"
            state_files.write_merge_failure(self._config.log.folder, SinkUnavailable(reason))
            self._note_failure(end.cause, None, reason, end.remedy)
        self._ends[end.cause] += 1  # after its reason: another thread may read both at any time
        self._state = {"state": "restarting", "since": _now(), "retry_at": round(time.time() + pause_s, 3)}
        self._tell("merge process ended", {"cause": end.cause, "next_in_seconds": pause_s})
        until = time.monotonic() + pause_s
        while not self.is_ending and (left := until - time.monotonic()) > 0:
            self._waker.wait(None, left)


_NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f.,:-]*")
_MEMORY = "raise merge.memory_max if the machine has more memory, or merge on another machine: run --no-merge here"
_STUCK = "check what it waits for, such as a store or a cluster; the next try gets twice the time"


def _end_of(life: _Watched, code: int) -> _End:
    """Why a process ended by itself."""
    if code > 0 and (failure := life.failure) is not None:
        return _End("failed", failure.get("reason"), failure.get("remedy"), failure.get("kind"))
    if code > 0:
        return _End("killed", f"exit code {code}; stderr has more", None)
    number = -code or signal.SIGTERM
    why = "; the kernel does this when memory runs out" if number == signal.SIGKILL else ""
    return _End("killed", f"signal {signal.Signals(number).name}{why}", None)


def _gist(reason: str | None) -> str | None:
    """A reason without its numbers: names of files with random parts, ages, counts. They differ each time."""
    return None if reason is None else _NUMBER.sub("#", reason)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _now() -> float:
    return round(time.time(), 3)
