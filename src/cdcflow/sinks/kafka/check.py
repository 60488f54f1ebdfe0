"""Checks a whole log in Kafka: order, gaplessness, and that its two topics agree.

The brokers' own checksums replace a file's checksums and chain. It only reads, and may run while the daemon does.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdcflow.errors import CdcflowError
from cdcflow.log.format.journal import JournalHeader, Record
from cdcflow.log.format.records import TopicRecord
from cdcflow.log.format.rows import ShapeEntry
from cdcflow.log.read.check import CheckReport, Seen, journal
from cdcflow.log.read.reader import LogLocation
from cdcflow.sinks.kafka.frames import frames, read_state
from cdcflow.sinks.kafka.loss import expired_whole
from cdcflow.sinks.kafka.state import TopicRange, TopicState
from cdcflow.sinks.kafka.topics import Topics


def check(topics: Topics, *, deep: bool = False, history: LogLocation | None = None) -> CheckReport:
    """Read the whole log and report what is wrong with it. `deep` also validates every value.

    Expired rows are no fault, unless nothing is left up to the checkpoint, in the topic or in the `history`.

    Raises:
        ConfigurationError: another version of cdcflow wrote it, or the brokers refuse.
        SinkUnavailable: the brokers do not answer.
    """
    where = f"topic {topics.name}"
    state = read_state(topics)
    seen = Seen()
    with topics.reader(topics.name) as reader:
        low, end = reader.bounds()
        readable = [s for s in state.topic_ranges if s.topic_offset >= low]
        if (expired := expired_whole(topics, state, history, low)) is not None:
            seen.fault(where, expired)
        if not readable:
            return seen.report(state.checkpoint.next_offset)
        first = readable[0].first_offset
        seen.next_offset = first
        try:
            found_frames = _Frames(frames(reader, readable[0].topic_offset, end), seen, state)
            for found, head in found_frames.heads():
                where_in = f"{where} from topic offset {found.topic_offset}"
                known = any(
                    (s.topic_offset, s.first_offset) == (found.topic_offset, head.first_offset) for s in readable
                )
                if not known and found.topic_offset <= readable[-1].topic_offset:
                    seen.fault(where_in, f"topic {topics.state} does not know this topic range")
                journal(where_in, state.log_id, head, found_frames.records(), seen, deep=deep)
            _end(where, topics, state, seen, found_frames.met, readable)
        except CdcflowError as error:
            seen.fault(where, str(error))
    return seen.report(first)


def _end(where: str, topics: Topics, state: TopicState, seen: Seen, met: set[int], readable: list[TopicRange]) -> None:
    for gone in sorted({s.topic_offset for s in readable} - met):
        seen.fault(where, f"the topic range at offset {gone}, which topic {topics.state} names, is missing")
    # While a daemon runs, the state that was read first may be older than the frames read later, never newer.
    if seen.cut < state.checkpoint.cut or seen.next_offset < state.checkpoint.next_offset:
        seen.fault(
            where,
            f"it ends with cut {seen.cut} before offset {seen.next_offset}, and topic {topics.state} says "
            f"{state.checkpoint.cut} and {state.checkpoint.next_offset}",
        )


class _Frames:
    """The frames of the topic, one topic range at a time."""

    def __init__(self, found: Iterator[TopicRecord], seen: Seen, state: TopicState) -> None:
        self._found = found
        self._seen = seen
        self._state = state
        self._head: tuple[TopicRecord, JournalHeader] | None = None
        self.met: set[int] = set()

    def heads(self) -> Iterator[tuple[TopicRecord, JournalHeader]]:
        for found in self._found:
            if isinstance(found.record, JournalHeader):
                self._head = found, found.record
            while self._head is not None:
                (found, head), self._head = self._head, None
                self.met.add(found.topic_offset)
                yield found, head

    def records(self) -> Iterator[Record]:
        """The frames after a head, up to the next one."""
        for found in self._found:
            record = found.record
            if isinstance(record, JournalHeader):
                self._head = found, record
                return
            if isinstance(record, ShapeEntry):
                self._shape(found.topic_offset, record)
            yield record

    def _shape(self, topic_offset: int, shape: ShapeEntry) -> None:
        known = self._state.shapes.shapes().get(shape.table.id, {}).get(shape.version)
        # What a daemon adds concurrently is after the last known cut.
        if known != shape.table and (known is not None or self._seen.cut < self._state.checkpoint.cut):
            self._seen.fault(
                f"topic offset {topic_offset}", f"a shape of {shape.table.id} differs from the one in the state"
            )
