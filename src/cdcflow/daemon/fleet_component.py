"""Publishes what a process does into the register of its fleet: a daemon, and `cdcflow merge`.

    FleetComponent ──▶ ReportThread (a thread) ──▶ fleet.registers      every `service.fleet.every`, and at the end

A register that cannot be written delays nothing: one event reports it, and the next report is tried as usual.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from cdcflow.config import Config, FleetMembership
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.interfaces.fleet_report import capture_report, merge_report
from cdcflow.daemon.running_components import Running
from cdcflow.errors import CdcflowError
from cdcflow.fleet.registers import ReportRegister, object_name
from cdcflow.fleet.report import Kind, MemberReport
from cdcflow.log.maintenance import state_files
from cdcflow.wiring.fleets import fleet_register

LAST_WITHIN_S = 3.0
"""How long the end of a process waits for its last report."""
_T = TypeVar("_T")


class FleetComponent:
    """The reports of a daemon with `service.fleet`. `overview` returns the data that its page shows."""

    def __init__(self, overview: Callable[[], Mapping[str, Any]], tell: OnEvent) -> None:
        self._overview = overview
        self._tell = tell

    def made_of(self, config: Config) -> object:
        return config.service.fleet, config.service.listen

    def prepare(self, config: Config) -> Running | None:
        membership = config.service.fleet
        if membership is None:
            return None

        def report(ended: bool) -> MemberReport:
            return capture_report(
                self._overview(),
                membership.name,
                every_s=membership.every,
                page=membership.page,
                ended=ended,
            )

        # Two daemons of one log on one machine differ in what they listen on.
        place = f"{config.log.folder} {config.service.listen}"
        return ReportThread(fleet_register(membership), membership, "capture", place, report, self._tell)


class ReportThread:
    """Publishes a report every `membership.every` seconds, in a thread. `report` returns it, and gets whether it is
    the last one. `place`: see `object_name`; the machine's name is added to it."""

    def __init__(
        self,
        register: ReportRegister,
        membership: FleetMembership,
        kind: Kind,
        place: str,
        report: Callable[[bool], MemberReport],
        tell: OnEvent,
    ) -> None:
        self._register = register
        self._every_s = membership.every
        self._name = object_name(membership.name, kind, f"{socket.gethostname()} {place}")
        self._report = report
        self._tell = tell
        self._is_failing = False
        self._is_last = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        """End the thread. `wait`: the process ends, and the last report records that; otherwise other settings
        follow."""
        self._is_last = wait
        self._stop.set()
        if wait and self._thread.ident is not None:
            self._thread.join(LAST_WITHIN_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._publish(ended=False)
            self._stop.wait(self._every_s)
        if self._is_last:
            self._publish(ended=True)

    def _publish(self, *, ended: bool) -> None:
        try:
            self._register.publish(self._name, self._report(ended).to_bytes())
        except Exception as error:  # noqa: BLE001  whatever it is, the next report is tried
            if not self._is_failing:
                # The text of other errors may hold row values.
                reason = str(error).splitlines()[0] if isinstance(error, CdcflowError) else type(error).__name__
                self._tell("fleet not informed", {"register": self._register.name, "reason": reason})
            self._is_failing = True
            return
        if self._is_failing:
            self._tell("fleet informed again", {"register": self._register.name})
        self._is_failing = False


class _Merging:
    """The current state of a process that merges. The thread that merges writes it, another reads it."""

    def __init__(self, merge: Callable[[], _T]) -> None:
        self.state = "idle"
        self._merge = merge

    def __call__(self) -> Any:  # Any: what the merge returns
        self.state = "merging"
        try:
            return self._merge()
        finally:
            self.state = "idle"


@contextlib.contextmanager
def merges_in_fleet(
    logs: Sequence[Config], merge: Callable[[], _T], every_s: float | None, tell: OnEvent
) -> Iterator[Callable[[], _T]]:
    """Yield a function that calls `merge`, and publish its state in the meantime for each log with `service.fleet`.

    `every_s`: how often it is repeated; `None` for a single one, such as that of a cron job.
    """
    merging = _Merging(merge)
    threads = [
        _merge_thread(settings, membership, merging, every_s, tell)
        for settings in logs
        if (membership := settings.service.fleet) is not None
    ]
    with contextlib.ExitStack() as ending:
        for thread in threads:
            thread.begin()
            ending.callback(thread.end, wait=True)
        yield merging


def _merge_thread(
    settings: Config, membership: FleetMembership, merging: _Merging, every_s: float | None, tell: OnEvent
) -> ReportThread:
    def report(ended: bool) -> MemberReport:
        merged = state_files.of_merge(settings.log.folder) or {}
        return merge_report(
            merged,
            membership.name,
            state=merging.state,
            every_s=membership.every,
            merge_every_s=every_s,
            ended=ended,
        )

    place = str(settings.merge.warehouse)
    return ReportThread(fleet_register(membership), membership, "merge", place, report, tell)
