"""The delivery process of `cdcflow run` for one target: it brings the target to the end of the log again and again.

To the lines of every supervised process (`supervised_process`) it adds

    {"state": …}                          starting, waiting (for a log, or for another process), delivering, idle
    {"delivered": {…}}                    a delivery succeeded: its offset, rows, and the tables that have stopped

A delivery ends at a commit: when this process must stop, no further table is delivered.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cdcflow.daemon.supervised_process import Reports, Stopped, attempt, failure_fields, run_supervised

if TYPE_CHECKING:  # the priority is lowered before anything heavy is imported
    from cdcflow.config import Config
    from cdcflow.model.table import TableId

NO_LOG_EVERY_S = 0.5
"""How often this process checks whether the log exists, if the daemon has only begun and has not created it yet."""


def main() -> None:
    """Deliver until SIGTERM, or until the daemon has ended."""
    run_supervised(_work)


def _work(given: Any, reports: Reports, stop: threading.Event, news: threading.Event) -> int:
    from cdcflow.config import Config

    with ExitStack() as held:
        return DeliveryLoop(given["target"], Config.model_validate(given["settings"]), reports, stop, held).run()


class DeliveryLoop:
    """Delivers to one target at its interval, until `stop`. `held` keeps the target from other processes."""

    def __init__(self, name: str, settings: Config, reports: Reports, stop: threading.Event, held: ExitStack) -> None:
        self._name = name
        self._settings = settings
        self._reports = reports
        self._stop = stop
        self._held = held
        self._is_held = False
        self._every_s = settings.targets[name].every or 0.0
        self._pause_s = 0.0

    def run(self) -> int:
        """Deliver again and again. Return the exit code: not 0 if a new process has to try again."""
        from cdcflow.daemon.signals import wait_for

        while not self._stop.is_set():
            began = time.monotonic()
            self._pause_s = self._every_s
            if (code := attempt(self._deliver_when_possible, self._report_failure)) is not None:
                return code
            wait_for(self._stop, began + self._pause_s - time.monotonic())
        return 0

    def _deliver_when_possible(self) -> None:
        from cdcflow.daemon.merge_process import has_log

        if not has_log(self._settings):
            self._reports.send(state="waiting", step="there is no log yet")
            self._pause_s = NO_LOG_EVERY_S
        elif self._holds():
            self._deliver()

    def _holds(self) -> bool:
        """Whether this process is the one that delivers to the target."""
        from cdcflow import wiring
        from cdcflow.wiring.targets import TargetHeld

        if not self._is_held:
            try:
                self._held.enter_context(wiring.hold_target(self._settings, self._name))
            except TargetHeld as error:
                self._reports.send(state="waiting", step=str(error).splitlines()[0])
                return False
            self._is_held = True
        return True

    def _deliver(self) -> None:
        from cdcflow.daemon.delivery_process import deliver_to

        self._reports.send(state="delivering")
        report = deliver_to(self._settings, self._name, self._watch)
        delivered = {
            "offset": report.offset,
            "tables": sum(not one.problem for one in report.tables),
            "rows": sum(one.rows for one in report.tables),
            "deleted": sum(one.deleted for one in report.tables),
            "stopped": {one.table: {"reason": one.problem, "remedy": one.remedy} for one in report.stops},
        }
        self._reports.send(state="idle", delivered=delivered)

    def _watch(self, table: TableId) -> None:
        if self._stop.is_set():
            raise Stopped
        self._reports.send(state="delivering", table=str(table))

    def _report_failure(self, error: Exception) -> None:
        self._reports.send(failure=failure_fields(error))


if __name__ == "__main__":
    main()
