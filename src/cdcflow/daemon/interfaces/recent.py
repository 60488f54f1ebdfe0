"""Recent trouble: the last events of a daemon that have a reason or a remedy, kept for later queries.

All events are passed on. A repeated one is kept once, with how often it occurred.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

EVENTS_MAX = 50
Tell = Callable[[str, Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class Trouble:
    """An event with a reason or a remedy, and how often it occurred. `first_at`, `last_at`: seconds since 1970."""

    text: str
    remedy: str | None
    first_at: float
    last_at: float
    times: int = 1


class Recent:
    """Passes events on to `tell`, and keeps those with a reason or a remedy. Safe to call from any thread."""

    def __init__(self, tell: Tell, clock: Callable[[], float] = time.time) -> None:
        self._tell = tell
        self._clock = clock
        self._found: dict[str, Trouble] = {}
        self._lock = threading.Lock()

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        self._tell(event, fields)
        reason = fields.get("reason") or fields.get("found")
        if reason or fields.get("remedy"):
            self._note(_sentence(event, fields.get("table"), reason), fields.get("remedy"))

    def newest(self) -> list[dict[str, Any]]:
        """Return the kept events, latest first."""
        with self._lock:
            return [asdict(one) for one in reversed(self._found.values())]

    def _note(self, text: str, remedy: object) -> None:
        now = self._clock()
        with self._lock:
            known = self._found.pop(text, None)
            if known is None:
                known = Trouble(text, None if remedy is None else str(remedy), now, now, 0)
            self._found[text] = replace(known, last_at=now, times=known.times + 1)
            while len(self._found) > EVENTS_MAX:
                del self._found[next(iter(self._found))]


def _sentence(event: str, table: object, reason: object) -> str:
    named = f"{event[:1].upper()}{event[1:]}" + (f", {table}" if table else "")
    return f"{named}: {str(reason).splitlines()[0].rstrip('.')}." if reason else f"{named}."
