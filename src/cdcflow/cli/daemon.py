"""A capture with what surrounds it in a process: control socket, HTTP, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import FrameType
from typing import Any, Protocol

from cdcflow import wiring
from cdcflow.cli.events import OnEvent
from cdcflow.cli.failure import TOO_SLOW_TO_STOP, exit_code
from cdcflow.cli.watch import Watch
from cdcflow.config import Config
from cdcflow.errors import CdcflowError, SinkUnavailable, SourceUnavailable
from cdcflow.pipeline import Capture
from cdcflow.service.control import ControlServer
from cdcflow.service.http import HttpServer
from cdcflow.service.operations import checked

LOOK_EVERY_S = 2.0
STOP_WITHIN_S = 10.0
START_BROKEN_OFF_WITHIN_S = 2.0
"""A library that waits for a server's first answer cannot always be woken, and nothing is lost with a start."""


class Publishing(Protocol):
    """What publishes the log beside the capture."""

    def run(self) -> None: ...

    def stop(self) -> None: ...


def run(
    config: Config, capture: Capture, tell: OnEvent, *, serve: bool = True, publisher: Publishing | None = None
) -> None:
    """Run the capture to its end in the calling (main) thread, obeying signals; `publisher` runs beside it.

    Raises whatever ends the capture; returns when it was stopped or has done what it was ordered to.
    """
    watch = Watch(config, capture)
    with contextlib.ExitStack() as around:
        around.enter_context(telling_end(tell, "capture failed"))
        if serve:
            folder = config.log.folder
            folder.mkdir(parents=True, exist_ok=True)
            around.enter_context(_serving(ControlServer(folder, answering(capture, watch, Problems(config).now))))
            if config.service.listen is not None:
                server = HttpServer(config.service.listen, watch.status, config.service.hosts)
                around.enter_context(_serving(server))
                tell("http listening", {"listen": config.service.listen, "port": server.port})
        if publisher is not None:
            around.enter_context(_beside(publisher, capture.stop))
        around.enter_context(obeying_signals(capture.stop, tell, lambda: capture.is_starting))
        try:
            capture.run()
        except (SourceUnavailable, SinkUnavailable) as error:
            if capture.has_begun:
                raise
            raise never_reached(config, error) from None


@contextlib.contextmanager
def telling_end(tell: OnEvent, event: str) -> Iterator[None]:
    """Tell what ends the block for good as an event, for who reads lines; the block on stderr is for who started it."""
    try:
        yield
    except CdcflowError as error:
        fields = {"kind": type(error).__name__, "reason": str(error).splitlines()[0], "remedy": error.remedy}
        tell(event, {**fields, "exit_code": exit_code(error)})
        raise
    except Exception as error:
        tell(event, {"kind": type(error).__name__, "exit_code": exit_code(error)})  # its text may hold a row's values
        raise


def never_reached(config: Config, error: SourceUnavailable | SinkUnavailable) -> SourceUnavailable | SinkUnavailable:
    """The end of a start whose source or log never answered: with what was tried, and how to have it waited for."""
    what = "source" if isinstance(error, SourceUnavailable) else "log"
    tried = wiring.tried(config).get(what)
    named = f"cdcflow has not reached the {what} since it started" + (f" ({tried})" if tried else "")
    check = error.remedy or f"check that it runs and that the settings' {what} names it"
    return type(error)(
        f"{named}: {str(error).splitlines()[0]}",
        remedy=f"{check}\n  or start `cdcflow run --wait`, which tries again until it answers",
    )


def problems(config: Config) -> list[dict[str, str | None]]:
    """What keeps the log from going on where it ends: its slot, publication or binary log is gone."""
    return [asdict(finding) for finding in wiring.continues(config) if finding.level == "error"]


class Problems:
    """What `problems` finds, asked anew when it is older than two seconds: a backfill that is followed asks often."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._found: Sequence[object] = ()
        self._asked_at = -60.0

    def now(self) -> Sequence[object]:
        if time.monotonic() - self._asked_at >= LOOK_EVERY_S:
            self._found, self._asked_at = problems(self._config), time.monotonic()
        return self._found


def answering(
    capture: Capture, watch: Watch, problems: Callable[[], Sequence[object]] = lambda: ()
) -> Callable[[Mapping[str, Any]], object]:
    """What the control socket answers: `status` and `stop`, and everything that `Capture.request` knows."""

    def answer(request: Mapping[str, Any]) -> object:
        operation = checked(request)
        match operation.name:
            case "status":
                found = watch.status()
                return found if "source_error" in found else {**found, "problems": problems()}
            case "stop":
                capture.stop()
                return {"op": "stop"}
            case op:
                adjustment = {k: v for k, v in request.items() if k not in ("op", "tables")}
                return capture.request(op, request.get("tables", []), **adjustment)

    return answer


@contextlib.contextmanager
def _beside(publisher: Publishing, stop: Callable[[], None]) -> Iterator[None]:
    """Run a publisher in a thread of its own. What ends it for good ends the capture too, and is raised then."""
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            publisher.run()
        except BaseException as error:  # noqa: BLE001  it is raised below, in the thread that waits
            failures.append(error)
            stop()

    thread = threading.Thread(target=publish, name="publish", daemon=True)
    thread.start()
    try:
        yield
    finally:
        publisher.stop()
        thread.join(STOP_WITHIN_S)
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _serving(server: ControlServer | HttpServer) -> Iterator[None]:
    server.start()
    try:
        yield
    finally:
        server.close()


@contextlib.contextmanager
def obeying_signals(
    stop: Callable[[], None], tell: OnEvent, is_starting: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a stop at a cut; a second one, or ten seconds, end the process at once.

    Ending at once is safe: what was not durable counts as never read, exactly as after a crash. While `is_starting`,
    two seconds are enough, and the stop has done what it was asked.
    """
    asked = threading.Event()

    def obey(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()
        stop()
        _after(STOP_WITHIN_S, _give_up, tell)
        _after(START_BROKEN_OFF_WITHIN_S, _give_up_starting, tell, is_starting)

    before = {number: signal.signal(number, obey) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _after(seconds: float, act: Callable[..., None], *given: object) -> None:
    timer = threading.Timer(seconds, act, given)
    timer.daemon = True
    timer.start()


def _give_up_starting(tell: OnEvent, is_starting: Callable[[], bool]) -> None:
    if is_starting():
        tell("start broken off", {})
        os._exit(0)


def _give_up(tell: OnEvent) -> None:
    tell("capture did not stop in time", {"seconds": STOP_WITHIN_S})
    os._exit(TOO_SLOW_TO_STOP)
