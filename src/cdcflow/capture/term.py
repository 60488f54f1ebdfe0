"""Decides when a process may count on a lease, and when a standby may take it, without clock, thread or connection.

    holder    renew ──────ask─────answer─────────────────▶ until ask + ttl          then it stops by itself
    standby          sees the renewal ───────────────────────────▶ seen + ttl + margin: becomes active

The holder counts from before its request, the standby from after it saw a renewal. So, if both clocks run at about the
same speed, the holder has stopped counting on the lease before a standby takes it. No time of day is compared, so a
clock that is set forward or back has no effect.

A holder that was suspended between the check and the write counts on the lease for too long. The epoch of the log stops
it (`cdcflow.log.disk.lease`).
"""

from __future__ import annotations

from dataclasses import dataclass

MARGIN = 0.1
"""Another process takes a lease only after it was unchanged for its duration and this part of the duration in addition,
because clocks do not run equally fast."""


@dataclass(slots=True)
class Term:
    """Whether this process may count on the lease. Times are those of one clock that never goes back."""

    ttl_s: float
    held_until: float | None = None

    def record_answer(self, asked_at: float, *, held: bool) -> None:
        """Record the answer to a request for the lease that was sent at `asked_at`."""
        self.held_until = asked_at + self.ttl_s if held else None

    def is_held(self, now: float) -> bool:
        """Whether it is certain at `now` that no other process has taken the lease."""
        return self.held_until is not None and now < self.held_until


@dataclass(slots=True)
class Sighting:
    """What a standby has seen of a lease that expires: the latest record, and for how long it has been the latest."""

    ttl_s: float
    number: int = -1
    seen_at: float = 0.0

    def see(self, number: int, now: float) -> None:
        """Record that the record with this number was the latest; the answer arrived at `now`."""
        if number != self.number:
            self.number, self.seen_at = number, now

    def is_expired(self, now: float) -> bool:
        """Whether the lease's holder has stopped counting on it, because it was not renewed for its whole duration."""
        return self.number >= 0 and self.left_s(now) <= 0

    def left_s(self, now: float) -> float:
        """Return the seconds until the lease expires, if it is not renewed before."""
        return self.seen_at + self.ttl_s * (1 + MARGIN) - now
