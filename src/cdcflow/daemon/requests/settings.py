"""Changed settings: what they will do to the running daemon or the next one, and having the daemon use them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdcflow import wiring
from cdcflow.capture.plan import Plan, Rates
from cdcflow.config import Config, load
from cdcflow.config.changes import digest, settings_as_text
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError, SourceUnavailable

LOOK_EVERY_S = 0.2
TAKEN_WITHIN_S = 120.0
ANSWER_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Alongside:
    """The work next to the capture under some settings, in the running daemon or else in the next one: whether it
    merges, and the targets to which it delivers."""

    merges: bool
    delivers: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {"merging": self.merges, "delivering": list(self.delivers)}


def plan_of(file: Path) -> tuple[Config, Plan, Alongside]:
    """Return the settings in the file, the plan of what they will do, and the daemon's work next to the capture."""
    settings = load(file)
    running = ask(settings.log.folder, {"op": "settings"})
    delivers = tuple(name for name, target in settings.targets.items() if target.every is not None)
    if running is None:
        does = Alongside(settings.merge.every is not None, delivers)
        return settings, _with_cost(settings, wiring.plan_capture(settings), {}), does
    if Path(running["file"]) != file.absolute():
        raise ConfigurationError(
            f"the daemon on this log was started with {running['file']}, and this is {file.absolute()}",
            remedy=f"change that file, and run `cdcflow plan --config {running['file']}`",
        )
    found = wiring.plan_capture(settings, running["settings"])
    merges = bool(running.get("may_merge")) and settings.merge.every is not None
    does = Alongside(merges, delivers if running.get("may_deliver") else ())
    return settings, _with_cost(settings, found, running["settings"]), does


def _with_cost(settings: Config, found: Plan, in_use: Mapping[str, str]) -> Plan:
    """Return the plan with the cost of the reading in it; unchanged if nothing is read. To estimate the cost, the
    growth of the source's log is measured for a second."""
    if not found.reads:
        return found
    status = ask(settings.log.folder, {"op": "status"}) or {}
    read = status.get("rows_read_per_second")
    rates = Rates(float(read) if read else None, log_bytes_per_second=wiring.log_growth(settings))
    return wiring.plan_capture(settings, in_use or None, rates, wiring.log_limits(settings))


def request_settings(settings: Config) -> int:
    """Have the daemon use settings, and return their number.

    Raises:
        SourceUnavailable: the daemon ended.
    """
    answer = ask(
        settings.log.folder, {"op": "reload", "digest": digest(settings_as_text(settings))}, timeout_s=ANSWER_WITHIN_S
    )
    if answer is None:
        raise daemon_ended()
    return int(answer["number"])


def wait_for_settings(settings: Config, number: int) -> bool:
    """Wait until the daemon captures with these settings, or will when it is resumed. Return whether it is paused.

    Raises:
        ConfigurationError: the daemon could not use them, and fell back to the previous ones.
    """
    deadline = time.monotonic() + TAKEN_WITHIN_S
    while time.monotonic() < deadline:
        status = ask(settings.log.folder, {"op": "status"})
        if status is None:
            raise daemon_ended()
        state: Mapping[str, Any] = status["settings"]
        refused: Mapping[str, Any] = state.get("refused") or {}
        if refused.get("number") == number:
            raise ConfigurationError(
                f"the daemon could not capture with these settings, and continues as before: {refused['reason']}",
                remedy=refused.get("remedy") or "correct the settings file, and run `cdcflow plan` again",
            )
        if status.get("state") == "paused" and state["given"] >= number:
            return True
        if state["number"] >= number and status.get("state") == "capturing":
            return False
        time.sleep(LOOK_EVERY_S)
    raise SourceUnavailable(
        f"the daemon did not begin to use the settings within {TAKEN_WITHIN_S:g} s",
        remedy="`cdcflow status` shows what it waits for; the daemon keeps trying",
    )


def daemon_ended() -> SourceUnavailable:
    return SourceUnavailable(
        "the daemon ended before it used the settings", remedy="start `cdcflow run`: it begins with this file"
    )
