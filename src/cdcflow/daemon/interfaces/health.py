"""The health of the daemon: whether it is alive, whether it is ready, and what is wrong if not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def health(status: Mapping[str, Any]) -> tuple[int, Mapping[str, object]]:
    """Return an HTTP status and the facts about the daemon's health. Healthy means that positions move from the
    source to the disk, not that a connection is open (hard case O14).

    The source writes a heartbeat when nothing else happens, so a durable position that does not change for several of
    them means that nothing flows. A paused capture is healthy: it does what was requested. A halted one is not, and
    must not be mistaken for one that retries.
    """
    state = status.get("state")
    stalled, halted = is_stalled(status), state == "halted"
    failed = sorted(t for t, v in (status.get("tables") or {}).items() if v.get("state") == "failed")
    return (503 if stalled or halted else 200), {
        "status": state if state in ("halted", "paused", "standby") else "stalled" if stalled else "ok",
        **({"kind": status.get("kind"), "reason": status.get("reason")} if halted else {}),
        "heartbeat_age_seconds": status.get("heartbeat_age_seconds"),
        "failed_tables": failed,
    }


def readiness(status: Mapping[str, Any]) -> tuple[int, Mapping[str, object]]:
    """Return an HTTP status and the facts about readiness. Ready means that changes are being captured and positions
    move.

    A capture that was paused on purpose is ready, and its status is "paused"; so is a standby.
    """
    state = str(status.get("state"))
    if state in ("paused", "standby"):
        return 200, {"status": state}
    if state != "capturing":
        return 503, {"status": state, "reason": str(status.get("reason") or "").split("\n")[0]}
    return (503, {"status": "stalled"}) if is_stalled(status) else (200, {"status": "ready"})


def is_stalled(status: Mapping[str, Any]) -> bool:
    age, limit = status.get("heartbeat_age_seconds"), status.get("heartbeat_age_seconds_max")
    on_purpose = status.get("state") in ("paused", "halted", "standby")
    return not on_purpose and isinstance(age, int | float) and isinstance(limit, int | float) and age > limit
