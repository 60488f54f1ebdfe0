"""Numbers, sizes, ages and times in readable form, and text from elsewhere without control characters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters except tab and newline, and those that change the direction of what follows."""


def plain(text: str) -> str:
    """Text from elsewhere, such as a server's messages or a table's name, without terminal control characters."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def size(count: float | None) -> str:
    """Bytes in readable form; ? for None."""
    if count is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def percent(fields: Mapping[str, Any]) -> str:
    """How far a table's backfill is, from its entry in a status."""
    if fields.get("state") == "done":
        return "100%"
    units, done = fields.get("units") or 0, fields.get("units_done") or 0
    return f"{min(99, 100 * done // units)}%" if units else "0%"


def age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def utc_time(clock: int) -> str:
    """A time, given in microseconds since 1970 UTC, as a text that `--as-of` accepts."""
    return datetime.fromtimestamp(clock // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{clock % 1_000_000:06}Z"
