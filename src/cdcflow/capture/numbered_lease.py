"""A lease with an expiry time, in a place that accepts each numbered record once: an object store, or a topic."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any

from cdcflow.capture.ports.lease import Holder, Register
from cdcflow.capture.term import Sighting, Term
from cdcflow.capture.threads import Clock

RENEWALS = 3
"""How many times a lease is renewed in its duration: one or two of them may get lost."""


class NumberedLease:
    """Implements `cdcflow.capture.ports.lease.DaemonLease`: each renewal adds the next record.

    A record contains its writer's name, and whether the writer has released the lease. `ttl_s` must be the same for all
    daemons.
    """

    def __init__(
        self,
        register: Register,
        name: str,
        ttl_s: float,
        *,
        watched_every_s: float,
        clock: Clock,
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self.ttl_s = ttl_s
        self.renewed_every_s = ttl_s / RENEWALS
        self._watched_every_s = watched_every_s
        self._register = register
        self._name = name
        self._id = secrets.token_hex(8)
        self._clock = clock
        self._time_of_day = time_of_day
        self._term = Term(ttl_s)
        self._sighting = Sighting(ttl_s)
        self._number = 0
        self._since = 0.0

    @property
    def watched_every_s(self) -> float:
        """How often a standby calls `hold`: as configured, or sooner if the lease expires before that."""
        left_s = self._sighting.left_s(self._clock())
        return min(self._watched_every_s, left_s) if left_s > 0 else self._watched_every_s

    def hold(self) -> bool:
        """Take the lease if it is free, or renew it. Return whether this process holds it."""
        asked_at = self._clock()
        # Old records are removed, so a number may be stored twice: only an answer within the duration of the lease
        # proves that no other process has had it.
        is_held = self._term.is_held(asked_at)
        if is_held and self._register.add(self._number + 1, self._record()):
            return self._has_added(self._number + 1, asked_at)
        latest = self._register.latest()
        number, record = (0, None) if latest is None else (latest[0], _parse(latest[1]))
        self._sighting.see(number, self._clock())
        # If the latest record is this process's own, it was added although the answer was lost, and no other process
        # has added one since.
        is_own = record is not None and record.get("id") == self._id
        is_free = record is None or is_own or bool(record.get("released")) or self._sighting.is_expired(self._clock())
        if is_free and not is_own:
            self._since = self._time_of_day()
        if is_free and self._register.add(number + 1, self._record()):
            return self._has_added(number + 1, asked_at)
        self._term.record_answer(asked_at, held=False)
        return False

    def _has_added(self, number: int, asked_at: float) -> bool:
        """Note that this process added the record with this number, in a request begun at `asked_at`.

        Return whether it therefore holds the lease. False: the answer came too late to prove anything.
        """
        held = self._clock() < asked_at + self.ttl_s
        self._term.record_answer(asked_at, held=held)
        if held:
            self._number = number
        return held

    def holder(self) -> Holder | None:
        """Return the holder according to the latest record; it may have been killed since. None if the lease is
        free."""
        latest = self._register.latest()
        record = {} if latest is None else _parse(latest[1])
        if "holder" not in record or record.get("released"):
            return None
        return Holder(str(record["holder"]), record.get("since"), is_own=record.get("id") == self._id)

    def release(self) -> None:
        """Record that the lease is free, so that a standby takes it at once."""
        try:
            latest = self._register.latest() if self._term.is_held(self._clock()) else None
            if latest is not None and _parse(latest[1]).get("id") == self._id:
                self._register.add(latest[0] + 1, self._record(released=True))
        finally:
            self._term = Term(self.ttl_s)
            self._register.close()

    def _record(self, *, released: bool = False) -> bytes:
        found = {"holder": self._name, "id": self._id, "since": round(self._since, 3), "released": released}
        return json.dumps(found).encode()


def _parse(content: bytes) -> dict[str, Any]:
    """Return a record's fields; {} if cdcflow did not write the record. A record without fields does not free the
    lease."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
