"""The process of `cdcflow publish`: one publisher after another, a new one whenever other settings are applied."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow import wiring
from cdcflow.config import Config, load
from cdcflow.daemon.components import made_of_publishing
from cdcflow.daemon.daemon import never_reached
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.signals import wait_for
from cdcflow.errors import CdcflowError, OutcomeUnknown, SinkUnavailable

if TYPE_CHECKING:
    from cdcflow.publish.publisher import Publisher


class PublishingRun:
    """Publishes by a settings file, which is read again on request.

    `run` belongs to the main thread, which only waits, so that it handles signals while the client library waits for
    brokers.
    """

    def __init__(self, file: Path, config: Config, tell: OnEvent) -> None:
        self._file = file.absolute()
        self._config = config
        self._tell = tell
        self._reloading = threading.Lock()
        self._stopped = False
        self._publisher = wiring.publisher(config, tell)

    @property
    def is_connecting(self) -> bool:
        return self._publisher.is_connecting

    def stop(self) -> None:
        """End now. Safe in a signal handler."""
        self._stopped = True
        self._publisher.stop()

    def run(self, *, once: bool, wait: bool) -> None:
        """Publish until `stop`; with `once`, until the current end of the log.

        `wait` False: end if the log or the brokers cannot be reached at the first try. Raises whatever ends a publisher
        permanently.
        """
        while True:
            publisher, config = self._publisher, self._config
            if self._stopped:
                publisher.stop()
            try:
                _run(publisher, once=once, wait=wait)
            except (SinkUnavailable, OutcomeUnknown) as error:
                if publisher.has_begun:
                    raise
                command = "cdcflow publish --once" if once else "cdcflow publish"
                raise never_reached(config, error, publisher.waits_for, command) from None
            if self._publisher is publisher:
                return
            wait = True  # the settings of a new publisher were tried when they were loaded

    def hang_up(self) -> None:
        """Handle SIGHUP: read the settings file, and continue with its settings. Safe in a signal handler."""
        threading.Thread(target=self._reload, name="reload", daemon=True).start()

    def _reload(self) -> None:
        with self._reloading:
            try:
                config = load(self._file)
                if made_of_publishing(config) != made_of_publishing(self._config):
                    publisher = wiring.publisher(config, self._tell)
                    publisher.check()
                    before, self._publisher, self._config = self._publisher, publisher, config
                    before.stop()
            except CdcflowError as error:
                remedy = {"remedy": error.remedy} if error.remedy else {}
                reason = str(error).split("\n")[0]
                self._tell("settings not taken up", {"file": str(self._file), "reason": reason, **remedy})
            else:
                self._tell("settings read", {"file": str(self._file)})


def _run(publisher: Publisher, *, once: bool, wait: bool) -> None:
    """Run a publisher in a thread, and wait for its end."""
    failures: list[BaseException] = []
    ended = threading.Event()

    def publish() -> None:
        try:
            publisher.run(once=once, wait=wait)
        except BaseException as error:  # noqa: BLE001  it is raised below, in the thread that waits
            failures.append(error)
        finally:
            ended.set()

    threading.Thread(target=publish, name="publish", daemon=True).start()
    wait_for(ended)
    if failures:
        raise failures[0]
