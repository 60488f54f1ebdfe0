"""The parts that run alongside a capture, except HTTP: publisher, receivers, retention, OpenTelemetry traces, control
table."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from cdcflow import wiring
from cdcflow.capture.capture import Capture
from cdcflow.config import Config, FileLog
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.interfaces.control_socket import Answer, ControlServer
from cdcflow.daemon.interfaces.control_table import TableDoor
from cdcflow.daemon.running_components import Running
from cdcflow.daemon.signals import START_BROKEN_OFF_WITHIN_S, STOP_WITHIN_S

if TYPE_CHECKING:  # each loads a library that few pipelines need
    from cdcflow.daemon.interfaces.notifications import Notifier
    from cdcflow.daemon.interfaces.traces import Traces


class Publishing(Protocol):
    """A part that publishes the log during the capture."""

    def run(self) -> None: ...

    def stop(self) -> None: ...


class PublisherThread:
    """A publisher in a separate thread.

    An error that ends it permanently is stored in `failure`, and `failed` is called.
    """

    def __init__(self, publisher: Publishing, failed: Callable[[BaseException], None]) -> None:
        self._publisher = publisher
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name="publish", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        # Always wait for its end: the next one takes the topics over, and this one must not notice.
        self._publisher.stop()
        if self._thread.ident is not None:
            is_connecting = getattr(self._publisher, "is_connecting", False)
            self._thread.join(START_BROKEN_OFF_WITHIN_S if is_connecting else STOP_WITHIN_S)

    def _run(self) -> None:
        try:
            self._publisher.run()
        except BaseException as error:  # noqa: BLE001  it is raised again by the thread that waits
            self._failed(error)


class PublishComponent:
    """The publisher of `publish.kafka`. `first` is the publisher that the process starts with."""

    def __init__(self, first: Publishing | None, tell: OnEvent, stop: Callable[[], None]) -> None:
        self._first = first
        self._tell = tell
        self._stop = stop
        self._failure: BaseException | None = None
        self._has_begun = False

    def made_of(self, config: Config) -> object:
        return made_of_publishing(config)

    def prepare(self, config: Config) -> Running | None:
        if not self._has_begun:
            self._has_begun = True
            return None if self._first is None else PublisherThread(self._first, self._on_failure)
        if config.publish is None:
            return None
        publisher = wiring.publisher(config, self._tell)
        publisher.check()
        return PublisherThread(publisher, self._on_failure)

    def _on_failure(self, error: BaseException) -> None:
        self._failure = error
        self._stop()

    def raise_failure(self) -> None:
        """Raise the error that ended a publisher permanently, once, if there is one."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class Notifications:
    """Notifications to the receivers in `service.notify`. As a context manager it notifies of the end of its block."""

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        tell: OnEvent,
        tables: Callable[[], Any],
        is_standby: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_standby = is_standby
        self._status = status
        self._tell = tell
        self._tables = tables
        self._notifier: Notifier | None = None

    def __enter__(self) -> Notifications:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._notifier is not None:
            self._notifier.end(error, is_standby=self._is_standby())

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many notices each receiver got, by outcome."""
        return {} if self._notifier is None else self._notifier.counts()

    def made_of(self, config: Config) -> object:
        return config.service.notify

    def prepare(self, config: Config) -> Running | None:
        if not config.service.notify and self._notifier is None:
            return None
        return _Receivers(lambda: self._use(config))

    def _use(self, config: Config) -> None:
        if self._notifier is None:
            from cdcflow.daemon.interfaces.notifications import Notifier

            self._notifier = Notifier(self._status, self._tell)
            self._notifier.use(config.service.notify, self._tables())
        else:
            self._notifier.use(config.service.notify, self._status().get("tables") or {})


class _Receivers:
    """The receivers of notifications under some settings. A receiver that the next settings have, too, is not
    notified again of a condition that it was notified of."""

    def __init__(self, use: Callable[[], None]) -> None:
        self._use = use

    def begin(self) -> None:
        self._use()

    def end(self, *, wait: bool) -> None:
        """Do nothing: new settings replace the receivers, and `Notifications` sends the daemon's last notice."""


class RetentionComponent:
    """Expires the log by `log.retention`."""

    def __init__(self, tell: OnEvent) -> None:
        self._tell = tell

    def made_of(self, config: Config) -> object:
        prefix = None if config.publish is None else config.publish.kafka.topic_prefix
        kept_for = (config.merge.warehouse, prefix)
        return (config.log.retention, config.log.objects, kept_for) if isinstance(config.log, FileLog) else None

    def prepare(self, config: Config) -> Running | None:
        expiring = wiring.expiring(config, self._tell)
        return None if expiring is None else _Thread(expiring)


class Index:
    """Indexes the log's keys (`log.index`)."""

    def __init__(self, tell: OnEvent) -> None:
        self._tell = tell

    def made_of(self, config: Config) -> object:
        return (config.log.index, config.log.objects) if isinstance(config.log, FileLog) else None

    def prepare(self, config: Config) -> Running | None:
        indexing = wiring.indexing(config, self._tell)
        return None if indexing is None else _Thread(indexing)


class CompactionComponent:
    """Joins the log's small segments (`log.compact`)."""

    def __init__(self, tell: OnEvent) -> None:
        self._tell = tell

    def made_of(self, config: Config) -> object:
        return (config.log.compact, config.log.objects) if isinstance(config.log, FileLog) else None

    def prepare(self, config: Config) -> Running | None:
        compacting = wiring.compacting(config, self._tell)
        return None if compacting is None else _Thread(compacting)


class _Thread:
    """A part that works between entering and leaving a context."""

    def __init__(self, thread: contextlib.AbstractContextManager[object]) -> None:
        self._ending = contextlib.ExitStack()
        self._thread = thread

    def begin(self) -> None:
        self._ending.enter_context(self._thread)

    def end(self, *, wait: bool) -> None:
        self._ending.close()


class Observing:
    """Sends canaries that prove freshness, makes shadow checks, and sends spans: `service.freshness_every`,
    `shadow_every`, `traces`."""

    def __init__(self, capture: Capture, tell: OnEvent) -> None:
        self._capture = capture
        self._tell = tell
        self._traces: Traces | None = None
        self._url: str | None = None

    def made_of(self, config: Config) -> object:
        return config.service.traces, config.service.freshness_every, config.service.shadow_every

    def prepare(self, config: Config) -> Running | None:
        url, every = config.service.traces, (config.service.freshness_every, config.service.shadow_every)
        if url == self._url:
            return _Observed(lambda: self._use(self._traces, url, *every))
        if url is None:
            return _Observed(lambda: self._use(None, None, *every))
        from cdcflow.daemon.interfaces.traces import Traces

        made = Traces(url, self._tell)
        return _Observed(lambda: self._use(made, url, *every))

    def _use(self, traces: Traces | None, url: str | None, fresh_every_s: float, shadow_every_s: float | None) -> None:
        before, self._traces, self._url = self._traces, traces, url
        self._capture.observe(None if traces is None else traces.on_span, fresh_every_s, shadow_every_s)
        if before is not None and before is not traces:
            threading.Thread(target=before.close, name="traces-end", daemon=True).start()


class _Observed:
    def __init__(self, use: Callable[[], None]) -> None:
        self._use = use

    def begin(self) -> None:
        self._use()

    def end(self, *, wait: bool) -> None:
        """Do nothing: new settings close what they do not reuse when they begin, and a process that ends sends the
        queued spans."""


class ControlSocketComponent:
    """The control socket in the log's folder. `replaces`: take the place of a socket that an earlier daemon left
    there."""

    def __init__(self, answer: Answer, *, replaces: bool) -> None:
        self._answer = answer
        self._replaces = replaces

    def made_of(self, config: Config) -> object:
        return None  # other settings cannot move the log

    def prepare(self, config: Config) -> Running | None:
        server = ControlServer(config.log.folder, self._answer, replaces=self._replaces)
        server.start()
        return _Answering(server)


class _Answering:
    def __init__(self, server: ControlServer) -> None:
        self._server = server

    def begin(self) -> None:
        """Do nothing: the socket answers since `prepare`."""

    def end(self, *, wait: bool) -> None:
        self._server.close()


class ControlTableComponent:
    """The control table in the source, as an interface for commands."""

    def __init__(self, answer: Answer, tell: OnEvent) -> None:
        self._answer = answer
        self._tell = tell

    def made_of(self, config: Config) -> object:
        # The settings for reading tables do not affect where the control table is.
        is_set = getattr(config.database, "control_table", None)  # sources of plug-ins have none
        return is_set and config.database.model_copy(update={"backfill": None, "tables": ()})

    def prepare(self, config: Config) -> Running | None:
        table = wiring.control_table(config)
        return None if table is None else _Door(TableDoor(table, self._answer, config.database.heartbeat, self._tell))


class _Door:
    def __init__(self, door: TableDoor) -> None:
        self._door = door

    def begin(self) -> None:
        self._door.start()

    def end(self, *, wait: bool) -> None:
        ending = threading.Thread(target=self._door.close, name="control-table-end", daemon=True)
        ending.start()
        if wait:
            ending.join()


def made_of_publishing(config: Config) -> object:
    """Return the settings that a publisher depends on: where it publishes, and where the log is that it reads."""
    log = config.log
    place = (log.path, log.objects) if isinstance(log, FileLog) else log
    return config.publish, place, config.database.kind
