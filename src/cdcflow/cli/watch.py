"""A capture's status, with what the source says of its own end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cdcflow import wiring
from cdcflow.config import Config
from cdcflow.errors import CdcflowError
from cdcflow.model.position import Position
from cdcflow.pipeline import Capture

CAUGHT_UP_BYTES = 1 << 20
"""A source that is less than this ahead counts as caught up: it writes log of its own all the time."""


class Watch:
    """The capture's status, with how far the source is ahead. May be asked from any thread. `in_use` gives the
    settings where they may be others by now."""

    def __init__(self, config: Config, capture: Capture, in_use: Callable[[], Config] | None = None) -> None:
        self._in_use = in_use or (lambda: config)
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
                self._source, self._asked_at = source_status(self._in_use(), self._position), now
            still_s = round(now - self._moved_at, 1)
        limit_s = max(30.0, 4 * self._in_use().source.heartbeat)
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
