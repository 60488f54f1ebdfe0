"""The merge process of `cdcflow run`: it merges again and again, apart from the capture, with a lower priority.

To the lines of every supervised process (`supervised_process`) it adds

    {"state": …}                          starting, waiting, merging, idle
    {"merged": {…}}                       a merge succeeded
    {"ready": true}                       it waits, or will soon: a merge begins with the next segment

A merge begins when there is a new segment, and `merge.every` has passed since the previous one began. When the process
is ready for one, the daemon seals the rows that it has captured. So rows wait for the merge and not for `seal.age_max`,
and no segment is sealed for a merge that could not use it yet. If the interval has passed already, the process is ready
when its tables are done: the segment is sealed while the cut is published. A merge ends at a commit: when this process
must stop, no merge of a further table begins.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from cdcflow.daemon.supervised_process import Reports, Stopped, attempt, failure_fields, run_supervised

if TYPE_CHECKING:  # the priority is lowered before anything heavy is imported
    from cdcflow.config import Config
    from cdcflow.daemon.merge_process import Merge
    from cdcflow.tables.job.reports import MergeProgress, MergeReport

IDLE_MAX_S = 30.0
"""After this time a merge is due even if the log has no new segment: for tables that were excluded, and for
maintenance."""
NO_LOG_EVERY_S = 0.5
"""How often this process checks whether the log exists, if the daemon has only begun and has not created it yet."""
_ROUTINE = frozenset(("table merged", "cut published"))
"""Events that are not sent to the daemon, because every merge has them: they would fill its output, and the status
and the metrics show the same."""


def main() -> None:
    """Merge until SIGTERM, or until the daemon has ended."""
    run_supervised(_work, _ROUTINE)


def _work(settings: Any, reports: Reports, stop: threading.Event, news: threading.Event) -> int:
    from cdcflow.config import Config

    return MergeLoop(Config.model_validate(settings), reports, stop, news).run()


class MergeLoop:
    """Merges until `stop`, at most once per interval in the settings. `news` is set when the log has a new segment."""

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
        self._began = self._pause_s = self._at_most_s = 0.0
        self._has_asked = self._has_merged = False

    def run(self) -> int:
        """Merge again and again. Return the exit code: not 0 if a new process has to try again."""
        while not self._stop.is_set():
            self._began = time.monotonic()
            self._has_asked = False
            self._pause_s = self._at_most_s = self._every_s
            self._has_merged = False
            if (code := attempt(self._merge_when_there_is_a_log, self._report_failure)) is not None:
                return code
            self._wait(self._began + self._pause_s, self._began + self._at_most_s, asks=self._has_merged)
        return 0

    def _merge_when_there_is_a_log(self) -> None:
        if self._merge_once():
            self._at_most_s, self._has_merged = self._idle_s, True
        else:
            self._pause_s = self._at_most_s = NO_LOG_EVERY_S

    def _merge_once(self) -> bool:
        """Merge once. Return False if there is no log yet."""
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
            return  # the error may be a consequence of the stop
        state_files.write_merge_failure(self._settings.log.folder, error)  # also if no merge could begin

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
        """Ask the daemon, once for each merge, to seal the rows that it has, unless there is a new segment already."""
        if self._reads_segments and not (self._has_asked or self._stop.is_set() or self._news.is_set()):
            self._has_asked = True
            self._reports.send(ready=True)

    def _wait(self, since: float, until: float, *, asks: bool) -> None:
        """Wait for news, from `since` until `until` (monotonic). `asks`: ask the daemon to seal the rows that
        it has."""
        from cdcflow.daemon.signals import SLICE_S, wait_for

        wait_for(self._stop, since - time.monotonic())
        if asks:
            self._ask()
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            if self._news.wait(min(left, SLICE_S)):
                return


def _plain(report: MergeReport) -> dict[str, object]:
    return {
        "cut": report.cut,
        "tables": len(report.tables),
        "rows": sum(table.changes for table in report.tables),
        "seconds": round(report.seconds, 3),
    }


if __name__ == "__main__":
    main()
