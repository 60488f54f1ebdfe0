"""Looking a whole log in Kafka over: order, gaplessness, and that its two topics tell the same.

What a file's checksums and chain prove, the brokers' own checksums do. It only reads, and may run beside the daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cdcflow.changelog.checking import Report, Seen, journal
from cdcflow.changelog.journal import JournalHeader, Record
from cdcflow.changelog.records import Placed
from cdcflow.changelog.rows import Shape
from cdcflow.errors import CdcflowError
from cdcflow.sinks.kafka.frames import frames, read_state
from cdcflow.sinks.kafka.loss import expired_whole
from cdcflow.sinks.kafka.state import State, TopicRange
from cdcflow.sinks.kafka.topics import Topics


def check(topics: Topics, *, deep: bool = False, history: Path | None = None) -> Report:
    """Read a log through and report what is wrong with it. `deep` also validates every value. What has expired is no
    fault, unless nothing is left up to the checkpoint, here or in the `history`.

    Raises:
        ConfigurationError: another version of cdcflow wrote it, or the brokers refuse.
        SinkUnavailable: the brokers do not answer.
    """
    where = f"topic {topics.name}"
    state = read_state(topics)
    seen = Seen()
    with topics.reader(topics.name) as reader:
        low, end = reader.bounds()
        readable = [s for s in state.stretches if s.place >= low]
        if (expired := expired_whole(topics, state, history)) is not None:
            seen.fault(where, expired)
        if not readable:
            return seen.report(state.checkpoint.next_offset)
        first = readable[0].first_offset
        seen.next_offset = first
        try:
            walk = _Walk(frames(reader, readable[0].place, end), seen, state)
            for placed, head in walk.heads():
                stretch = f"{where} from place {placed.place}"
                known = any((s.place, s.first_offset) == (placed.place, head.first_offset) for s in readable)
                if not known and placed.place <= readable[-1].place:
                    seen.fault(stretch, f"topic {topics.state} does not know this stretch")
                journal(stretch, state.log_id, head, walk.records(), seen, deep=deep)
            _end(where, topics, state, seen, walk.met, readable)
        except CdcflowError as error:
            seen.fault(where, str(error))
    return seen.report(first)


def _end(where: str, topics: Topics, state: State, seen: Seen, met: set[int], readable: list[TopicRange]) -> None:
    for gone in sorted({s.place for s in readable} - met):
        seen.fault(where, f"the stretch at place {gone}, which topic {topics.state} names, is not there")
    # Beside a daemon the state that was read first may be older than what was read then, never newer.
    if seen.cut < state.checkpoint.cut or seen.next_offset < state.checkpoint.next_offset:
        seen.fault(
            where,
            f"it ends with cut {seen.cut} before offset {seen.next_offset}, and topic {topics.state} says "
            f"{state.checkpoint.cut} and {state.checkpoint.next_offset}",
        )


class _Walk:
    """The frames of the topic, a stretch at a time."""

    def __init__(self, found: Iterator[Placed], seen: Seen, state: State) -> None:
        self._found = found
        self._seen = seen
        self._state = state
        self._head: tuple[Placed, JournalHeader] | None = None
        self.met: set[int] = set()

    def heads(self) -> Iterator[tuple[Placed, JournalHeader]]:
        for placed in self._found:
            if isinstance(placed.record, JournalHeader):
                self._head = placed, placed.record
            while self._head is not None:
                (placed, head), self._head = self._head, None
                self.met.add(placed.place)
                yield placed, head

    def records(self) -> Iterator[Record]:
        """What follows a head, up to the next one."""
        for placed in self._found:
            record = placed.record
            if isinstance(record, JournalHeader):
                self._head = placed, record
                return
            if isinstance(record, Shape):
                self._shape(placed.place, record)
            yield record

    def _shape(self, place: int, shape: Shape) -> None:
        known = self._state.shapes.shapes().get(shape.table.id, {}).get(shape.version)
        # What a daemon adds meanwhile is behind the last cut that we know of.
        if known != shape.table and (known is not None or self._seen.cut < self._state.checkpoint.cut):
            self._seen.fault(f"place {place}", f"a shape of {shape.table.id} is not the one in the state")


__all__ = ["check"]
