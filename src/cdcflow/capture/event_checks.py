"""When a source's row events get a second opinion: the other half of the shadow check."""

from __future__ import annotations

from collections.abc import Callable

from cdcflow.capture.ports.source import EventComparison, SecondOpinion, Source
from cdcflow.capture.source_tasks import SourceTasks


class EventChecks:
    """Has at most one row event compared each `every_s`, if the source supports it.

    `on_compared` is called from a task's thread.
    """

    def __init__(self, on_compared: Callable[[EventComparison], None]) -> None:
        self._on_compared = on_compared
        self._source: Source | None = None
        self._wanted: bool | None = None
        self._next_at = -1e9

    def look(self, now_s: float, every_s: float | None, tasks: SourceTasks, source: Source) -> None:
        """Have the kept event compared, if it is time. `every_s` None: stop."""
        wanted = every_s is not None
        if source is not self._source or wanted is not self._wanted:
            self._source, self._wanted = source, wanted
            if isinstance(source, SecondOpinion):
                source.sample_events(wanted=wanted)
        if every_s is None or now_s < self._next_at or not isinstance(source, SecondOpinion):
            return
        self._next_at = now_s + every_s
        tasks.call(lambda: self._compare(source))

    def _compare(self, source: SecondOpinion) -> None:
        found = source.compare_event()
        if found is not None:
            self._on_compared(found)
