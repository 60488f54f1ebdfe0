"""The parts of every supervised process of a daemon: its lines to the daemon, its priority, and its end.

    cdcflow run ── stdin: its settings in one line, then a line for each new segment ──▶ this process
                ◀─ stdout: what this process does, one JSON object per line ─────────

Settings and what they contain never appear in arguments or in the environment. The output of libraries goes to stderr,
so that stdout holds nothing but these objects:

    {"beat": true}                        every two seconds, from a thread that does nothing else
    {"state": "merging", "table": …}      what it does from now on
    {"event": …, "fields": {…}}           an event for the daemon's own lines
    {"failure": {…}}                      the work failed or was postponed: kind, reason, remedy

and one that reports that the work was done (`merge_child`, `delivery_child`). The end of stdin is the end of the
daemon.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, MutableMapping
from io import RawIOBase
from typing import Any, BinaryIO

BEAT_EVERY_S = 2.0
REPEAT_AFTER_S = 600.0
"""How long the same event is not sent again: each merge reports every table that it excludes."""
_SENT_MAX = 1000
NICENESS = 5
"""With this niceness the capture gets three quarters of a processor that both processes need."""
_PR_SET_PDEATHSIG = 1


class Stopped(BaseException):
    """Raised to end work before its next table, because the process has been asked to stop.

    It is not a subclass of Exception: work on many tables excludes a table that ends with an error, and continues.
    """


class Reports:
    """Lines to the daemon. Any thread may write one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def send(self, **fields: object) -> None:
        line = json.dumps(fields, default=str).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # the daemon has ended, and `_follow_daemon` ends this process
            self._file.write(line)
            self._file.flush()


Work = Callable[[Any, Reports, threading.Event, threading.Event], int]
"""A function that does the work and returns the exit code. It gets the first line as JSON, the lines to the daemon,
an event that is set when it must stop, and one that is set when the log has a new segment."""


def run_supervised(work: Work, routine: Collection[str] = ()) -> None:
    """Do the work until SIGTERM, or until the daemon has ended. `routine`: events that are not sent."""
    lower_priority()
    reports = Reports(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    end_with_parent()
    threading.Thread(target=_beat, args=(reports,), name="beat", daemon=True).start()
    daemon = os.fdopen(0, "rb", buffering=0, closefd=False)
    text = daemon.readline()
    news = threading.Event()
    threading.Thread(target=_follow_daemon, args=(daemon, news), name="follow-daemon", daemon=True).start()
    reports.send(state="starting")
    from cdcflow.daemon.signals import stopping

    with stopping() as stop:
        _report_events(reports, routine)
        sys.exit(work(json.loads(text), reports, stop, news))


def attempt(act: Callable[[], None], failed: Callable[[Exception], None]) -> int | None:
    """Do the work once, and report its failure. Return the exit code if the process must end, otherwise `None`."""
    from cdcflow.config.places import naming_paths
    from cdcflow.daemon.exit_codes import exit_code
    from cdcflow.errors import SinkUnavailable, SourceUnavailable

    try:
        with naming_paths():
            act()
    except Stopped:
        return 0
    except (SinkUnavailable, SourceUnavailable) as error:
        failed(error)
    except Exception as error:  # noqa: BLE001  the daemon reports it, and starts another process
        failed(error)
        return exit_code(error)
    return None


def lower_priority() -> None:
    """Give this process a lower priority than the capture and the other processes of this machine, and make the kernel
    end it first when memory runs out."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    for path, value in (("/proc/self/autogroup", str(NICENESS)), ("/proc/self/oom_score_adj", "500")):
        # A session has its own share of the processors, and niceness counts only inside of it: sched(7).
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write(value)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # its threads never preempt one that captures when they wake up
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def failure_fields(error: Exception) -> dict[str, object]:
    """Return why the work ended. For an error that is not cdcflow's only the type is included: its text may hold a
    row's values."""
    from cdcflow.errors import CdcflowError

    found: dict[str, object] = {"kind": type(error).__name__}
    if isinstance(error, CdcflowError):
        found |= {"reason": str(error).splitlines()[0], "remedy": error.remedy}
    return found


def _report_events(reports: Reports, routine: Collection[str]) -> None:
    """Send the events that cdcflow logs in this process to the daemon, which writes them like its own."""
    import structlog

    sent: dict[str, float] = {}

    def forward(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        name, now = str(event.pop("event")), time.monotonic()
        content = repr((name, sorted(event.items())))
        if name not in routine and now - sent.get(content, float("-inf")) >= REPEAT_AFTER_S:
            sent[content] = now
            reports.send(event=name, fields=event)
            while len(sent) > _SENT_MAX:
                del sent[next(iter(sent))]
        raise structlog.DropEvent

    structlog.configure(processors=[forward])


def _beat(reports: Reports) -> None:
    while True:
        reports.send(beat=True)
        time.sleep(BEAT_EVERY_S)


def end_with_parent() -> None:
    """Make the kernel end this process with its parent, also while it is stopped."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _follow_daemon(stream: RawIOBase, news: threading.Event) -> None:
    """Pass on news from the daemon. When the daemon has ended, however that happened, end this process, and Spark if it
    runs."""
    while stream.readline():
        news.set()
    os.killpg(0, signal.SIGKILL)
