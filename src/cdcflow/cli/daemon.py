"""A capture with what surrounds it in a process: control socket, HTTP, signals, and a status that knows the lag."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Protocol

from cdcflow import wiring
from cdcflow.cli.events import OnEvent
from cdcflow.cli.failure import TOO_SLOW_TO_STOP
from cdcflow.config import Config
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.model.position import Position
from cdcflow.pipeline import Capture
from cdcflow.service.control import ControlServer
from cdcflow.service.http import HttpServer

STOP_WITHIN_S = 10.0
CAUGHT_UP_BYTES = 1 << 20
"""A source that is less than this ahead counts as caught up: it writes log of its own all the time."""


class Watch:
    """The capture's status, with how far the source is ahead. May be asked from any thread."""

    def __init__(self, config: Config, capture: Capture) -> None:
        self._config = config
        self._capture = capture
        self._lock = threading.Lock()
        self._source: Mapping[str, object] = {}
        self._asked_at = -60.0
        self._position: object = None
        self._moved_at = time.monotonic()

    def status(self, *, at_most_old_s: float = 2.0) -> dict[str, Any]:
        """The status; the source is asked again when what it said is older than `at_most_old_s`."""
        status: dict[str, Any] = dict(self._capture.status())
        with self._lock:
            now = time.monotonic()
            if status.get("position") != self._position:
                if self._position is None:
                    self._asked_at = now - at_most_old_s  # without a position the source could not tell the lag
                self._position, self._moved_at = status.get("position"), now
            if now - self._asked_at >= at_most_old_s:
                self._source, self._asked_at = source_status(self._config, self._position), now
            still_s = round(now - self._moved_at, 1)
        limit_s = max(30.0, 4 * self._config.source.heartbeat)
        status |= {"pid": os.getpid(), "heartbeat_age_seconds": still_s, "heartbeat_age_seconds_max": limit_s}
        status |= self._source
        status["lag_seconds"] = lag_seconds(status, still_s)
        next_offset = status.get("next_offset")
        if isinstance(next_offset, int):
            status["durable_offset"] = next_offset - 1
        return status


def source_status(config: Config, position: object) -> dict[str, object]:
    """What the source says of its own end: lag and retained log, or why it cannot be asked."""
    try:
        source = wiring.open_source(config)
        try:
            found = source.status(Position(str(position)) if position is not None else None)
        finally:
            source.close()
    except CdcflowError as error:
        return {"source_error": str(error).split("\n")[0]}
    return {"lag_bytes": found.lag_bytes, "retained_bytes": found.retained_bytes, "source": dict(found.details)}


def lag_seconds(status: Mapping[str, Any], still_s: float) -> float | None:
    """How old the news is: by the newest change's commit time while the source is ahead, else since the position
    last moved (heartbeats move it while nothing else happens)."""
    ahead, clock = status.get("lag_bytes"), status.get("commit_clock")
    if not isinstance(ahead, int):
        return None
    if ahead < CAUGHT_UP_BYTES or not clock:
        return still_s
    return round(max(0.0, time.time() - int(clock) / 1e6), 1)


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
        if publisher is not None:
            around.enter_context(_beside(publisher, capture.stop))
        around.enter_context(obeying_signals(capture.stop, tell))
        capture.run()


def answering(capture: Capture, watch: Watch) -> Callable[[Mapping[str, Any]], object]:
    """What the control socket answers: `status` and `stop`, and everything that `Capture.request` knows."""

    def answer(request: Mapping[str, Any]) -> object:
        op, tables = request.get("op"), request.get("tables", [])
        if not isinstance(op, str) or not (isinstance(tables, list) and all(isinstance(t, str) for t in tables)):
            raise ConfigurationError("a request needs an op, and its tables are a list of names")
        if op == "status":
            return watch.status()
        if op == "stop":
            capture.stop()
            return {"op": "stop"}
        adjustment = {k: request[k] for k in ("priority", "rows_per_second_max") if isinstance(request.get(k), int)}
        return capture.request(op, tables, **adjustment)

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
