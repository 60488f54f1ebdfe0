"""A capture and everything around it in a process: control socket, control table, HTTP, notifications, signals."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from cdcflow import wiring
from cdcflow.capture.capture import Capture
from cdcflow.capture.ports.part_readers import Readers
from cdcflow.capture.requests import Arguments
from cdcflow.config import Config
from cdcflow.config.places import naming_paths
from cdcflow.daemon.activity_component import ActivityComponent
from cdcflow.daemon.components import (
    CompactionComponent,
    ControlSocketComponent,
    ControlTableComponent,
    Index,
    Notifications,
    Observing,
    PublishComponent,
    Publishing,
    RetentionComponent,
)
from cdcflow.daemon.delivery_component import DeliveryComponent
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.exit_codes import exit_code
from cdcflow.daemon.fleet_component import FleetComponent
from cdcflow.daemon.gap_repair import GapRepairComponent
from cdcflow.daemon.http_component import Http, Surroundings
from cdcflow.daemon.log_budget import BudgetComponent
from cdcflow.daemon.merge_component import MergeComponent
from cdcflow.daemon.reload import Reloading
from cdcflow.daemon.running_components import Component, RunningComponents
from cdcflow.daemon.signals import obeying_signals
from cdcflow.daemon.status import Watch
from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable, SourceUnavailable
from cdcflow.http.operations import operation_of
from cdcflow.log.maintenance import state_files

LOOK_EVERY_S = 2.0
PROBLEMS_WITHIN_S = 3.0
"""How long a status waits for a check of the source: less than the ten seconds that `cdcflow status` waits for its
answer."""


def run(
    config: Config,
    capture: Capture,
    tell: OnEvent,
    *,
    serve: bool = True,
    publisher: Publishing | None = None,
    file: Path | None = None,
    readers: Readers | None = None,
    executors: Component | None = None,
    merges: bool = False,
    delivers: bool = False,
) -> None:
    """Run the capture to its end in the calling (main) thread, handling signals; `publisher` runs alongside it.

    `file`: the settings file, which is read again on request (`None`: the process ends when its work is done).
    `readers`: those of the capture, which other settings keep; `executors`: they run while this daemon is active.
    `merges`: also merge, if the settings have `merge.every`; `delivers`: also deliver to targets that have an interval.
    Raises whatever ends the capture; returns when it was stopped or its work is done.
    """
    reloading = None if file is None else Reloading(file, config, capture, tell, readers)
    in_use = (lambda: config) if reloading is None else lambda: reloading.in_use
    merge = MergeComponent(tell, capture.seal_soon, enabled=merges)
    capture.on_sealed = merge.notify
    deliveries = DeliveryComponent(tell, enabled=delivers)
    budget = BudgetComponent(tell)
    watch = Watch(config, capture, in_use, merge.status, deliveries.status, budget.status)
    publish = PublishComponent(publisher, tell, capture.stop)

    def stop() -> None:
        merge.stop_soon()
        deliveries.stop_soon()
        capture.stop()

    with contextlib.ExitStack() as around:
        around.enter_context(telling_end(tell, "capture failed"))
        around.callback(publish.raise_failure)
        parts: list[Component] = []
        of_standby: list[Component] = []
        if serve:
            folder = config.log.folder
            folder.mkdir(parents=True, exist_ok=True)
            wrong = Problems(in_use)
            answer = answering(
                capture, watch, reloading, wrong.now, lambda: {**merge.answer(), **deliveries.answer()}, tell
            )
            http = Http(in_use, watch, answer, tell, wrong.now)
            around.callback(http.close)
            has_lease = config.service.lease is not None
            parts += [ControlSocketComponent(answer, replaces=has_lease), ControlTableComponent(answer, tell), http]
            around_capture = Surroundings(in_use, problems=wrong.now)
            fleet = FleetComponent(lambda: around_capture.overview(watch.status()), tell)
            parts.append(fleet)
            of_standby += [http, fleet]
        if reloading is not None:
            parts += [Observing(capture, tell), budget, GapRepairComponent(capture, file, tell)]
            of_standby.append(budget)  # while the lease does not answer, no daemon is active
        parts += [] if executors is None else [executors]
        told = Notifications(watch.status, tell, watch.tables_in_log, lambda: capture.waits_for_lease)
        watch.notified = told.counts
        parts += [
            ActivityComponent(capture.status),
            RetentionComponent(tell),
            Index(tell),
            CompactionComponent(tell),
            publish,
            told,
            deliveries,
            merge,
        ]
        of_standby += [told]
        components = around.enter_context(RunningComponents(parts, of_standby))
        hang_up = None if reloading is None else reloading.hang_up
        around.enter_context(obeying_signals(stop, tell, lambda: capture.is_starting, hang_up))
        around.enter_context(told)
        if config.service.lease is None:
            components.use(config)
        else:
            components.set_active(False, config)
            capture.on_role = _switching(components, in_use)
        if reloading is not None:
            reloading.use_components = components.use
        around.enter_context(_telling_of_a_halt(config, capture))
        try:
            capture.run()
            publish.raise_failure()
        except (SourceUnavailable, SinkUnavailable) as error:
            if capture.has_begun:
                raise
            raise never_reached(config, error, "lease" if capture.waits_for_lease else None) from None


def _switching(components: RunningComponents, in_use: Callable[[], Config]) -> Callable[[bool], None]:
    """Return a function that begins, or ends, the parts that only an active daemon has."""
    return lambda active: components.set_active(active, in_use())


@contextlib.contextmanager
def telling_end(tell: OnEvent, event: str) -> Iterator[None]:
    """Report an error that ends the block permanently as an event, for programs that read the daemon's log.

    The text on stderr is for the user.
    """
    try:
        with naming_paths():
            yield
    except CdcflowError as error:
        fields = {"kind": type(error).__name__, "reason": str(error).splitlines()[0], "remedy": error.remedy}
        tell(event, {**fields, "exit_code": exit_code(error)})
        raise
    except Exception as error:
        tell(event, {"kind": type(error).__name__, "exit_code": exit_code(error)})  # its text may hold a row's values
        raise


def never_reached(
    config: Config, error: CdcflowError, what: str | None = None, command: str = "cdcflow run"
) -> SourceUnavailable | SinkUnavailable:
    """Return the error of a start whose source or log (or `what`) never answered. It contains what was tried, and how
    to make the start wait."""
    is_source = isinstance(error, SourceUnavailable)
    what = what or ("source" if is_source else "log")
    tried = wiring.addresses(config).get(what)
    of_whom = "brokers of publish.kafka" if what == "publish" else what
    named = f"cdcflow has not reached the {of_whom} since it started" + (f" ({tried})" if tried else "")
    check = error.remedy or _CHECKS.get(what) or f"check that it runs and that `{what}` in the settings names it"
    return (SourceUnavailable if is_source else SinkUnavailable)(
        f"{named}: {str(error).splitlines()[0]}",
        remedy=f"{check}\n  or start `{command} --wait`, which tries again until it answers",
        runbook=error.runbook,
    )


_CHECKS = {
    "publish": "check that they run and that publish.kafka.brokers names them",
    "lease": "check that its place runs and that service.lease.at names it",
}


def problems(config: Config) -> list[dict[str, object]]:
    """Return the reasons why the capture cannot continue at the end of the log: the slot, publication or binary log
    is gone."""
    return [finding.to_json() for finding in wiring.continues(config) if finding.level == "error"]


class Problems:
    """The result of `problems`, computed again after two seconds: following a backfill queries it often.

    A log in Kafka or a source that does not answer delays no caller: after `PROBLEMS_WITHIN_S` the previous result
    counts. Any thread may call it.
    """

    def __init__(self, in_use: Callable[[], Config]) -> None:
        self._in_use = in_use
        self._found: Sequence[object] = ()
        self._lock = threading.Lock()
        self._latest: Future[Sequence[object]] | None = None
        self._due_at = 0.0

    def now(self) -> Sequence[object]:
        with self._lock:
            if self._latest is None or (self._latest.done() and time.monotonic() >= self._due_at):
                self._latest = Future()
                threading.Thread(target=self._compute, args=(self._latest,), name="problems", daemon=True).start()
            latest = self._latest
        with contextlib.suppress(TimeoutError):
            self._found = latest.result(PROBLEMS_WITHIN_S)
        return self._found

    def _compute(self, result: Future[Sequence[object]]) -> None:
        try:
            found = problems(self._in_use())
        except BaseException as error:  # noqa: BLE001  the caller gets it
            result.set_exception(error)
        else:
            self._due_at = time.monotonic() + LOOK_EVERY_S
            result.set_result(found)


def answering(
    capture: Capture,
    watch: Watch,
    reloading: Reloading | None = None,
    problems: Callable[[], Sequence[object]] = lambda: (),
    merging: Callable[[], Mapping[str, object]] = dict,
    tell: OnEvent = lambda event, fields: None,
) -> Callable[[Mapping[str, Any], str], object]:
    """Return the function that answers a caller's request at every interface: `status`, and all operations of
    `Capture.request`."""

    def answer(request: Mapping[str, Any], asked_by: str) -> object:
        operation = operation_of(request)
        if operation.role != "read":  # without keys and conditions, which are values of rows
            tables = ", ".join(map(str, request.get("tables") or ()))
            tell("operation requested", {"op": operation.name, "tables": tables or None, "by": asked_by})
        match operation.name:
            case "status":
                found = watch.status()
                return found if "source_error" in found else {**found, "problems": problems()}
            case "settings" | "reload":
                if reloading is None:
                    raise ConfigurationError("this process reads tables and ends; it cannot take new settings")
                if operation.name == "settings":
                    return {**reloading.answer(), "pid": os.getpid(), **merging()}
                return reloading.reload(request.get("digest"))
            case op:
                arguments = Arguments(**{k: v for k, v in request.items() if k not in ("op", "tables")})
                return capture.request(op, request.get("tables", []), arguments, asked_by=asked_by)

    return answer


@contextlib.contextmanager
def _telling_of_a_halt(config: Config, capture: Capture) -> Iterator[None]:
    """Store the reason for `cdcflow status` when the capture ends permanently: it must not appear to be restartable."""
    state_files.clear_halt(config.log.folder)
    try:
        yield
    except Exception as error:
        if capture.status().get("state") == "halted":
            state_files.write_halt(config.log.folder, error)
        raise
