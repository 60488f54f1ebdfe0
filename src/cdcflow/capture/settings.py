"""The settings that a capture runs with, and those that will replace them.

change ──▶ waiting ──▶ taken by the next attempt ──▶ it captures: kept
                                └─ it fails before it captures: rejected, the previous ones are used again
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from cdcflow.capture.attempt import LoopIntervals
from cdcflow.capture.governor import OpenProbe
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.ports.log import Log
from cdcflow.capture.ports.source import Source
from cdcflow.errors import CdcflowError, SourceUnavailable
from cdcflow.model.position import Epoch, SourceIdentity
from cdcflow.model.source_load import ReadingLimits


class OwnedLog(Log, Protocol):
    """A log that a pipeline owns, with its id and the epoch of this opening."""

    @property
    def log_id(self) -> str: ...
    @property
    def epoch(self) -> Epoch: ...


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """The settings that a capture needs.

    `open_log` gets the source's identity, and whether an operator accepts that history is lost. `kept` is called when
    an attempt captures with them for the first time; it must not wait. `releases`: the source continues at a new
    position after a gap in its log. `reading`: when and how existing rows may be read; `open_probe`: as for `Governor`.
    """

    open_source: Callable[[], Source]
    open_log: Callable[[SourceIdentity, bool], OwnedLog]
    limits: Limits
    pace: LoopIntervals
    kept: Callable[[], None] = lambda: None
    releases: bool = False
    reading: ReadingLimits = field(default_factory=ReadingLimits)
    open_probe: OpenProbe | None = None


@dataclass(frozen=True, slots=True)
class _Tried:
    """New settings, with their number, which an attempt began with and with which it has not captured yet.

    `before`: the previous settings; `was_live`: a capture ran with those, and did not wait for its source.
    """

    number: int
    before: CaptureSettings
    was_live: bool


class SettingsInUse:
    """The settings in use and those that wait, numbered from 1. May be used from any thread."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._lock = threading.Lock()
        self._in_use = settings
        self._number = self._given = 1
        self._waiting: tuple[int, CaptureSettings, bool] | None = None
        self._tried: _Tried | None = None
        self.refusal: Mapping[str, object] = {}

    @property
    def number(self) -> int:
        """The number of the settings in use."""
        return self._number

    @property
    def are_waiting(self) -> bool:
        return self._waiting is not None

    def change(self, settings: CaptureSettings, *, is_live: bool, in_place: bool) -> int:
        """Replace the settings. `is_live`: a capture runs with the previous ones. Return the new settings' number."""
        with self._lock:
            self._given += 1
            self.refusal = {}
            if in_place and self._waiting is None and self._tried is None:
                self._in_use, self._number = settings, self._given
            else:
                self._waiting = self._given, settings, is_live
            return self._given

    def take(self) -> CaptureSettings:
        """Return the settings for the attempt that begins now."""
        with self._lock:
            if self._waiting is not None:
                number, settings, was_live = self._waiting
                # If settings were replaced several times before an attempt captured, the fallback is still those that
                # captured last.
                tried = self._tried
                self._tried = _Tried(number, self._in_use, was_live) if tried is None else replace(tried, number=number)
                self._in_use, self._waiting = settings, None
            return self._in_use

    def keep(self) -> bool:
        """Note that an attempt captures with the settings in use. Return False if they are not new."""
        with self._lock:
            if self._tried is None:
                return False
            self._number, self._tried = self._tried.number, None
            return True

    def give_up(self, error: CdcflowError) -> bool:
        """Note that an attempt ended with this error. Return true if this rejects new settings, so that the previous
        ones are used again.

        New settings are rejected if the attempt ended before it captured. But if the source does not answer, and did
        not answer with the previous settings either, the new ones stay in use and the capture waits.
        """
        with self._lock:
            tried = self._tried
            if tried is None or (isinstance(error, SourceUnavailable) and not tried.was_live):
                return False
            self._in_use, self._tried = tried.before, None
            reason, remedy = str(error).split("\n")[0], getattr(error, "remedy", None)
            self.refusal = {"number": tried.number, "kind": type(error).__name__, "reason": reason}
            self.refusal = {**self.refusal, **({"remedy": remedy} if remedy else {})}
            return True

    def status(self) -> dict[str, object]:
        """Return `number` of the settings in use and `given` of the latest; `refused` explains why the latest were
        rejected."""
        with self._lock:
            refused = {"refused": dict(self.refusal)} if self.refusal else {}
            return {"number": self._number, "given": self._given, **refused}
