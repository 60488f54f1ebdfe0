"""The settings of a running daemon: what it runs with, and how it takes its file up again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from cdcflow import wiring
from cdcflow.cli.events import OnEvent
from cdcflow.config import Config, load
from cdcflow.config.changes import digest, shown
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.pipeline import Capture
from cdcflow.pipeline.plan import Plan


class Reloading:
    """Reads the settings file again when it is asked to. May be used from any thread."""

    def __init__(self, file: Path, config: Config, capture: Capture, tell: OnEvent) -> None:
        self._file = file.absolute()
        self._capture = capture
        self._tell = tell
        self._lock = threading.Lock()
        # By the capture's numbers: it goes back to the ones before where it cannot go on with the newest.
        self._known: dict[int, tuple[Config, Mapping[str, str]]] = {1: (config, shown(config))}

    @property
    def in_use(self) -> Config:
        """The settings that the capture runs with."""
        return self._current()[0]

    def _current(self) -> tuple[Config, Mapping[str, str]]:
        known = self._known
        # Limits are in use before `reload` has noted them.
        return known.get(self._capture.settings_number) or known[max(known)]

    def answer(self) -> dict[str, object]:
        """The settings in use, for who compares a file with them."""
        number = self._capture.settings_number
        return {"file": str(self._file), "number": number, "settings": dict(self._current()[1])}

    def reload(self, wanted: str | None = None) -> dict[str, object]:
        """Take the file up, and say what that does and under which number. `wanted`: only if this is its digest.

        Raises:
            ConfigurationError: the file cannot be read, is another one, or has what this log cannot go on with; the
                settings in use stay.
            SourceUnavailable: the source cannot be asked what the file means.
        """
        with self._lock:
            config = load(self._file)
            if wanted is not None and digest(shown(config)) != wanted:
                raise ConfigurationError(
                    f"{self._file} has changed since it was planned",
                    remedy="run `cdcflow plan` again",
                )
            number = self._capture.settings_number
            found = wiring.planned(config, self._current()[1])
            check(found)
            if found.settings:
                in_place = not found.ends_attempt
                number = self._capture.reload(wiring.capture_settings(config, reopened=True), in_place=in_place)
                self._known = {**self._known, number: (config, _in_effect(config, found))}
            return {"op": "reload", "number": number, "plan": found.to_json()}

    def hang_up(self) -> None:
        """SIGHUP: the same without anybody who waits for an answer. Safe in a signal handler."""
        threading.Thread(target=self._reload_and_tell, name="reload", daemon=True).start()

    def _reload_and_tell(self) -> None:
        try:
            answer = self.reload()
        except CdcflowError as error:
            remedy = {"remedy": error.remedy} if error.remedy else {}
            reason = str(error).split("\n")[0]
            self._tell("settings not taken up", {"file": str(self._file), "reason": reason, **remedy})
        else:
            self._tell("settings read", {"file": str(self._file), "number": answer["number"]})


def check(plan: Plan) -> None:
    """Raises ConfigurationError with every refusal and its remedy, if the plan has any."""
    if plan.refused:
        raise ConfigurationError(
            "the daemon cannot use the settings: " + "; ".join(r.text for r in plan.refused),
            remedy="; ".join(r.remedy for r in plan.refused if r.remedy) or None,
        )


def _in_effect(config: Config, plan: Plan) -> dict[str, str]:
    """The settings as they are once this is taken up: those that wait for a restart are still the old ones."""
    waiting = {change.name: change.before for change in plan.settings if change.taken == "restart"}
    found = {name: text for name, text in shown(config).items() if name not in waiting}
    return found | {name: text for name, text in waiting.items() if text is not None}
