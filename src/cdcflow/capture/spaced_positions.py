"""Limits positions without changes to ten a second.

A server that is busy with other tables or databases reports its position hundreds of times a second. Each report would
be a cut, which is written and synced: that would keep the disk busy, and write a gigabyte of journals a day for a table
that does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.capture.interleave.messages import Advanced
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.capture.threads import Clock

SPACE_S = 0.1


class SpacedPositions:
    """Holds back a position that follows too soon. A change that arrives replaces the held position, because the
    change's own is later."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: Advanced | None = None
        self._next_s = clock()

    def after(self, events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
        """Return the events to handle now: the events that have arrived, or a position that was held back and
        is due."""
        alone = [event for event in events if isinstance(event, Advanced)]
        if len(alone) < len(events):
            self._held = None
            return events
        if self._held is not None:
            alone.insert(0, self._held)
        if not alone:
            return events
        self._held = Advanced(alone[-1].position, max(event.commit_ts for event in alone))
        if self._clock() < self._next_s:
            return ()
        found, self._held, self._next_s = self._held, None, self._clock() + SPACE_S
        return (found,)
