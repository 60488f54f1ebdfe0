"""A capture with what surrounds it in a process: control socket, HTTP, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Protocol

from cdcflow import wiring
from cdcflow.cli.events import OnEvent
from cdcflow.cli.failure import TOO_SLOW_TO_STOP
from cdcflow.cli.watch import Watch
from cdcflow.config import Config
from cdcflow.pipeline import Capture
from cdcflow.service.control import ControlServer
from cdcflow.service.http import HttpServer
from cdcflow.service.operations import checked

STOP_WITHIN_S = 10.0


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
        if serve:
            folder = config.log.folder
            folder.mkdir(parents=True, exist_ok=True)
            around.enter_context(_serving(ControlServer(folder, answering(capture, watch))))
            if config.service.listen is not None:
                server = HttpServer(config.service.listen, watch.status, config.service.hosts)
                around.enter_context(_serving(server))
                tell("http listening", {"listen": config.service.listen, "port": server.port})
        expiring = wiring.expiring(config, tell)
        if expiring is not None:
            around.enter_context(expiring)
        if publisher is not None:
            around.enter_context(_beside(publisher, capture.stop))
        around.enter_context(obeying_signals(capture.stop, tell))
        capture.run()


def answering(capture: Capture, watch: Watch) -> Callable[[Mapping[str, Any]], object]:
    """What the control socket answers: `status` and `stop`, and everything that `Capture.request` knows."""

    def answer(request: Mapping[str, Any]) -> object:
        operation = checked(request)
        match operation.name:
            case "status":
                return watch.status()
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
def obeying_signals(stop: Callable[[], None], tell: OnEvent) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a stop at a cut; a second one, or ten seconds, end the process at once.

    Ending at once is safe: what was not durable counts as never read, exactly as after a crash.
    """
    asked = threading.Event()

    def obey(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()
        stop()
        timer = threading.Timer(STOP_WITHIN_S, _give_up, (tell,))
        timer.daemon = True
        timer.start()

    before = {number: signal.signal(number, obey) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _give_up(tell: OnEvent) -> None:
    tell("capture did not stop in time", {"seconds": STOP_WITHIN_S})
    os._exit(TOO_SLOW_TO_STOP)
