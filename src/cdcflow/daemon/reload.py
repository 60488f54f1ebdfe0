"""The settings of a running daemon: the settings in use, and how it reloads its file.

The parts alongside the capture apply their settings at once, or refuse the whole file. Settings with which the capture
reads and writes are applied by its next attempt, or rejected in favour of the previous ones; after that the parts that
depend on them follow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdcflow import wiring
from cdcflow.capture.capture import Capture
from cdcflow.capture.plan import Plan
from cdcflow.capture.ports.part_readers import Readers
from cdcflow.config import Config, FileLog, KafkaLog, load
from cdcflow.config.changes import digest, settings_as_text
from cdcflow.daemon.events import OnEvent
from cdcflow.errors import CdcflowError, ConfigurationError


class Reloading:
    """Reads the settings file again on request. Any thread may use it. `readers`: the readers that the capture was
    started with."""

    def __init__(
        self, file: Path, config: Config, capture: Capture, tell: OnEvent, readers: Readers | None = None
    ) -> None:
        self._readers = readers
        self._file = file.absolute()
        self._capture = capture
        self._tell = tell
        self._lock = threading.Lock()
        # By the capture's numbers: it falls back to earlier settings if it cannot continue with the latest.
        self._known: dict[int, tuple[Config, Mapping[str, str]]] = {1: (config, settings_as_text(config))}
        self.use_components: Callable[[Config], None] = lambda config: None
        """Applies settings to what runs alongside the capture, or raises and changes nothing."""

    @property
    def in_use(self) -> Config:
        """The settings that the capture and everything alongside it run with."""
        return self._current()[0]

    def _current(self) -> tuple[Config, Mapping[str, str]]:
        known = self._known
        # Limits are in use before `reload` has recorded them.
        return known.get(self._capture.settings_number) or known[max(known)]

    def answer(self) -> dict[str, object]:
        """Return the settings in use, for a caller that compares a file with them."""
        number = self._capture.settings_number
        return {"file": str(self._file), "number": number, "settings": dict(self._current()[1])}

    def reload(self, wanted: str | None = None) -> dict[str, object]:
        """Apply the file. Return the effects, and the number of the settings. `wanted`: apply the file only if this is
        its digest.

        Raises:
            ConfigurationError: the file cannot be read, has a different digest, or has settings with which this log, or
                something alongside the capture, cannot continue; the settings in use stay.
            SourceUnavailable: the source cannot be queried for the meaning of the file.
            SinkUnavailable: the brokers of `publish.kafka` cannot be queried.
        """
        with self._lock:
            config = load(self._file)
            if wanted is not None and digest(settings_as_text(config)) != wanted:
                raise ConfigurationError(
                    f"{self._file} has changed since it was planned",
                    remedy="run `cdcflow plan` again",
                )
            number = self._capture.settings_number
            found = wiring.plan_capture(config, self._current()[1])
            check(found)
            if found.settings:
                number = self._take_up(as_it_can(config, self.in_use), found)
            return {"op": "reload", "number": number, "plan": found.to_json()}

    def _take_up(self, config: Config, found: Plan) -> int:
        self.use_components(with_component_settings(self.in_use, config))
        # They count from now on, even if the capture falls back to earlier settings.
        known = {n: with_component_settings(before, config) for n, (before, _) in self._known.items()}
        self._known = {number: (before, settings_as_text(before)) for number, before in known.items()}
        settings = replace(
            wiring.capture_settings(config, reopened=True, readers=self._readers), kept=self._follow_capture
        )
        number = self._capture.reload(settings, in_place=not found.ends_attempt)
        self._known = {**self._known, number: (config, settings_as_text(config))}
        return number

    def _follow_capture(self) -> None:
        """Apply the settings with which the capture now runs to the parts that depend on them.

        In a thread, because it may take a while.
        """
        threading.Thread(target=self._follow, name="follow-settings", daemon=True).start()

    def _follow(self) -> None:
        with self._lock:
            try:
                self.use_components(self.in_use)
            except CdcflowError as error:
                self._tell_refusal(error)

    def hang_up(self) -> None:
        """Handle SIGHUP: reload without a caller that waits for an answer. Safe in a signal handler."""
        threading.Thread(target=self._reload_and_tell, name="reload", daemon=True).start()

    def _reload_and_tell(self) -> None:
        try:
            answer = self.reload()
        except CdcflowError as error:
            self._tell_refusal(error)
        else:
            self._tell("settings read", {"file": str(self._file), "number": answer["number"], **_waiting(answer)})

    def _tell_refusal(self, error: CdcflowError) -> None:
        remedy = {"remedy": error.remedy} if error.remedy else {}
        reason = str(error).split("\n")[0]
        self._tell("settings not taken up", {"file": str(self._file), "reason": reason, **remedy})


def check(plan: Plan) -> None:
    """Raise ConfigurationError with every refusal and its remedy, if the plan has any."""
    if plan.refused:
        raise ConfigurationError(
            "the daemon cannot use the settings: " + "; ".join(r.text for r in plan.refused),
            remedy="; ".join(r.remedy for r in plan.refused if r.remedy) or None,
        )


def with_component_settings(before: Config, config: Config) -> Config:
    """Return the previous settings with those of the parts alongside the capture from `config`."""
    log = before.log
    if isinstance(log, FileLog) and isinstance(config.log, FileLog):
        alongside = {name: getattr(config.log, name) for name in ("retention", "index", "compact")}
        log = log.model_copy(update=alongside)
    update = {name: getattr(config, name) for name in ("service", "publish", "merge", "targets")}
    return before.model_copy(update={**update, "log": log})


def as_it_can(config: Config, before: Config) -> Config:
    """Return the settings that this process can use: `config`, but settings that wait for a restart keep their previous
    values."""
    if not (isinstance(config.log, KafkaLog) and isinstance(before.log, KafkaLog)):
        return config
    kafka = config.log.kafka.model_copy(update={"work": before.log.kafka.work})
    return config.model_copy(update={"log": config.log.model_copy(update={"kafka": kafka})})


def _waiting(answer: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings that wait for a restart, for an event."""
    waiting = [change for change in answer["plan"]["settings"] if change["taken"] == "restart"]
    if not waiting:
        return {}
    names, why = ", ".join(change["name"] for change in waiting), waiting[0]["why"]
    return {"waiting": names, "reason": f"{names}: only with a restart ({why})", "remedy": waiting[0]["remedy"]}
