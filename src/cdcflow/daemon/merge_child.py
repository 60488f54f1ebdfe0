"""The merge process of `cdcflow run`: it merges again and again, apart from the capture, with a lower priority.

    cdcflow run ── stdin: its settings in one line, then a line for each new segment ──▶ this process
                ◀─ stdout: what this process does, one JSON object per line ─────────

Settings and what they contain never appear in arguments or in the environment. What libraries print goes to stderr, so
that stdout holds nothing but these objects:

    {"beat": true}                        every two seconds, from a thread that does nothing else
    {"state": "merging", "table": …}      what it does from now on: starting, waiting, merging, idle
    {"event": …, "fields": {…}}           an event for the daemon's own lines
    {"merged": {…}}                       a merge succeeded
    {"failure": {…}}                      a merge failed or was postponed: kind, reason, remedy
    {"ready": true}                       it waits, or will soon: a merge begins with the next segment

A merge begins when there is a new segment, and `merge.every` has passed since the previous one began. When it is ready
for one the daemon seals what it has captured, so rows wait for the merge and not for `seal.age_max`, and no segment is
sealed for a merge that could not use it yet. If the interval has passed already, it is ready when its tables are done:
the segment is sealed while the cut is published. A merge ends at a commit: when this process must stop, no merge of a
further table begins. The end of stdin is the end of the daemon.
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
from collections.abc import MutableMapping
from io import RawIOBase
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:  # the priority is lowered before anything heavy is imported
    from cdcflow.config import Config
    from cdcflow.daemon.merge_process import Merge
    from cdcflow.tables.job.reports import MergeProgress, MergeReport

BEAT_EVERY_S = 2.0
IDLE_MAX_S = 30.0
"""A merge without news is due after this time: for tables that were excluded, and for maintenance."""
NO_LOG_EVERY_S = 0.5
"""How often it checks for the log of a daemon that has only begun."""
REPEAT_AFTER_S = 600.0
"""A table that is excluded from each cut is an event of each merge."""
_SENT_MAX = 1000
NICENESS = 5
"""Of a processor that both need, the capture gets three quarters."""
_PR_SET_PDEATHSIG = 1
_ROUTINE = frozenset(("table merged", "cut published"))
"""Events of every merge: status and metrics show them, and the daemon's lines would consist of them."""


class Stopped(BaseException):
    """A merge that ends before its next table, because the process has been asked to stop.

    No error: a merge excludes a table that ends with an error, and continues.
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


def main() -> None:
    """Merge until SIGTERM, or until the daemon has ended."""
    lower_priority()
    reports = Reports(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    _end_with_parent()
    threading.Thread(target=_beat, args=(reports,), name="beat", daemon=True).start()
    daemon = os.fdopen(0, "rb", buffering=0, closefd=False)
    text = daemon.readline()
    news = threading.Event()
    threading.Thread(target=_follow_daemon, args=(daemon, news), name="follow-daemon", daemon=True).start()
    reports.send(state="starting")
    from cdcflow.config import Config
    from cdcflow.daemon.signals import stopping

    with stopping() as stop:
        _report_events(reports)
        sys.exit(MergeLoop(Config.model_validate(json.loads(text)), reports, stop, news).run())


def lower_priority() -> None:
    """Let the capture, and whatever else this machine does, go first, and the kernel end this process first when memory
    runs out."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    for path, value in (("/proc/self/autogroup", str(NICENESS)), ("/proc/self/oom_score_adj", "500")):
        # A session has its own share of the processors, and niceness counts only inside of it: sched(7).
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write(value)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # its threads never preempt one that captures when they wake up
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class MergeLoop:
    """Merges at most at the interval in the settings, until `stop`. `news`: set when the log has a new segment."""

    def __init__(self, settings: Config, reports: Reports, stop: threading.Event, news: threading.Event) -> None:
        from cdcflow.config import FileLog

        self._settings = settings
        self._reports = reports
        self._stop = stop
        self._news = news
        self._every_s = settings.merge.every or 0.0
        # A merge of a topic seals it itself, and one that reads a store sees segments when they are uploaded.
        self._reads_segments = isinstance(settings.log, FileLog)
        idle_s = IDLE_MAX_S if isinstance(settings.log, FileLog) and settings.log.objects is None else 0.0
        self._idle_s = max(self._every_s, idle_s)
        self._merge: Merge | None = None
        self._began = 0.0
        self._has_asked = False

    def run(self) -> int:
        """Merge again and again. Return the exit code: not 0 if a new process has to try again."""
        from cdcflow.config.places import naming_paths
        from cdcflow.daemon.exit_codes import exit_code
        from cdcflow.errors import SinkUnavailable, SourceUnavailable

        while not self._stop.is_set():
            began = self._began = time.monotonic()
            self._has_asked = False
            pause_s = at_most_s = self._every_s
            has_merged = False
            try:
                with naming_paths():
                    if self._merge_once():
                        at_most_s, has_merged = self._idle_s, True
                    else:
                        pause_s = at_most_s = NO_LOG_EVERY_S
            except Stopped:
                break
            except (SinkUnavailable, SourceUnavailable) as error:
                self._report_failure(error)
            except Exception as error:  # noqa: BLE001  the daemon reports it, and starts another process
                self._report_failure(error)
                return exit_code(error)
            self._wait(began + pause_s, began + at_most_s, asks=has_merged)
        return 0

    def _merge_once(self) -> bool:
        """Merge. False: there is no log yet."""
        from cdcflow.config.places import check_writable, warehouse_places
        from cdcflow.daemon.merge_process import has_log, prepare_merge

        if self._merge is None:
            if not has_log(self._settings):
                self._reports.send(state="waiting")
                return False
            check_writable(warehouse_places(self._settings))
            self._merge = prepare_merge(
                self._settings, self._say, self._watch, repeats=True, tables_done=self._on_tables_done
            )
        self._news.clear()
        self._reports.send(state="merging")
        report = self._merge()
        self._reports.send(state="idle", merged=_plain(report))
        return True

    def _report_failure(self, error: Exception) -> None:
        from cdcflow.log.maintenance import state_files

        self._reports.send(failure=failure_fields(error))
        if self._stop.is_set():
            return  # what it needed may have ended before it
        state_files.write_merge_failure(self._settings.log.folder, error)  # also of one that never began

    def _say(self, step: str) -> None:
        self._reports.send(state="starting", step=step)

    def _watch(self, progress: MergeProgress) -> None:
        if self._stop.is_set():
            raise Stopped
        self._reports.send(state="merging", table=progress.table)

    def _on_tables_done(self) -> None:
        if self._began + self._every_s <= time.monotonic():
            self._ask()

    def _ask(self) -> None:
        """Have the daemon seal what it has, once for each merge, unless there is a new segment already."""
        if self._reads_segments and not (self._has_asked or self._stop.is_set() or self._news.is_set()):
            self._has_asked = True
            self._reports.send(ready=True)

    def _wait(self, since: float, until: float, *, asks: bool) -> None:
        """Wait for news, from `since` until `until` (monotonic). `asks`: have the daemon seal what it has."""
        from cdcflow.daemon.signals import SLICE_S, wait_for

        wait_for(self._stop, since - time.monotonic())
        if asks:
            self._ask()
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            if self._news.wait(min(left, SLICE_S)):
                return


def failure_fields(error: Exception) -> dict[str, object]:
    """Why a merge ended. Of an error that is not cdcflow's only the type: its text may hold a row's values."""
    from cdcflow.errors import CdcflowError

    found: dict[str, object] = {"kind": type(error).__name__}
    if isinstance(error, CdcflowError):
        found |= {"reason": str(error).splitlines()[0], "remedy": error.remedy}
    return found


def _plain(report: MergeReport) -> dict[str, object]:
    return {
        "cut": report.cut,
        "tables": len(report.tables),
        "rows": sum(table.changes for table in report.tables),
        "seconds": round(report.seconds, 3),
    }


def _report_events(reports: Reports) -> None:
    """Send what cdcflow logs to the daemon, which writes it with its own events."""
    import structlog

    sent: dict[str, float] = {}

    def forward(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        name, now = str(event.pop("event")), time.monotonic()
        content = repr((name, sorted(event.items())))
        if name not in _ROUTINE and now - sent.get(content, float("-inf")) >= REPEAT_AFTER_S:
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


def _end_with_parent() -> None:
    """Have the kernel end this process with its parent, also while it is stopped."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _follow_daemon(stream: RawIOBase, news: threading.Event) -> None:
    """Pass on news, and end this process, with Spark if it runs, when the daemon has ended, however that happened."""
    while stream.readline():
        news.set()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
