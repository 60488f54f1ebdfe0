"""Reads the two topics of a log: the state, and the log's frames. Committed records only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cdcflow.log.format.framing import FrameKind
from cdcflow.log.format.journal import cut_number
from cdcflow.log.format.records import HEAD, RangeDecoder, TopicRecord, head_from
from cdcflow.sinks.kafka import state as states
from cdcflow.sinks.kafka.state import TopicState
from cdcflow.sinks.kafka.topics import PartitionReader, Topics


def read_state(topics: Topics) -> TopicState:
    """The current state in the checkpoint's topic."""
    with topics.reader(topics.state) as reader:
        return state_of(reader)


def state_of(reader: PartitionReader) -> TopicState:
    """The current state, by a reader of the checkpoint's topic."""
    return states.read(reader.messages(reader.bounds()[0]), reader.topic)


def frames(
    reader: PartitionReader, begin: int, end: int | None = None, wanted: Iterable[FrameKind] | None = None
) -> Iterator[TopicRecord]:
    """Return the contents of the frames between two topic offsets.

    The range begins at `begin`; `end` is exclusive (None: the end of what is committed).
    """
    decoder = RangeDecoder(f"topic {reader.topic}", wanted)
    for message in reader.messages(begin, end):
        found = decoder.take(message)
        if found is not None:
            yield found


def last_cut(topics: Topics, state: TopicState) -> int | None:
    """The number of the cut that the log's topic ends with (0: no cut; None: the brokers have deleted it)."""
    with topics.reader(topics.name) as reader:
        return last_cut_of(reader, state)


def last_cut_of(reader: PartitionReader, state: TopicState) -> int | None:
    """Return the same as `last_cut`, by a reader of the log's topic."""
    low, high = reader.bounds()
    known = state.topic_ranges[-1].topic_offset if state.topic_ranges else -1
    begin, back = high, 8
    while begin > low:
        begin, back = max(low, high - back), back * 8
        last: int | None = None
        for message in reader.messages(begin, high):
            if message.key == bytes((FrameKind.CUT, 0)):
                last = cut_number(message.value)
            elif message.key == bytes((HEAD, 0)):
                last = head_from(message.value).base.cut
        if last is not None:
            return last
    return None if 0 <= known < low else 0
