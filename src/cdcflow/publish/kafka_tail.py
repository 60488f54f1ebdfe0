"""The tail of a log in Kafka. It begins at the head of the topic range that contains the first offset."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.read.reader import LogRows
from cdcflow.model.position import SourceIdentity
from cdcflow.publish.unpublished import HELD_BYTES_MAX, TURN_S, HeldTail
from cdcflow.sinks.kafka.frames import last_cut, read_state
from cdcflow.sinks.kafka.reader import Context, KafkaReader, TopicCursor
from cdcflow.sinks.kafka.state import TopicState
from cdcflow.sinks.kafka.topics import Topics


class KafkaTail(HeldTail[TopicCursor]):
    """The tail of a log in Kafka, for `publisher`. Works while the daemon writes the log. Used by one thread."""

    def __init__(self, topics: Topics, held_bytes_max: int = HELD_BYTES_MAX, turn_s: float = TURN_S) -> None:
        super().__init__(held_bytes_max, turn_s)
        self._topics = topics
        self.wait_s = topics.wait_s
        self._log = KafkaReader(topics)
        state = read_state(topics)
        if state.identity is None:
            raise ConfigurationError(f"publishing the log in {self._log.name}: there is no log there", runbook="no-log")
        self.log_id: str = state.log_id
        self.identity: SourceIdentity = state.identity
        self._reader = topics.reader(topics.name)
        self._state = topics.reader(topics.state)
        self._said = (-1, 1)

    def _cursor_from(self, first: int) -> TopicCursor | None:
        begin = self._log.range_of(first, self._reader.bounds()[0])
        return None if begin is None else TopicCursor(self._topics, begin, before=first)

    def _records(self, cursor: TopicCursor) -> Iterator[tuple[object, Context]]:
        end = self._reader.bounds()[1]
        if end < cursor.topic_offset:
            raise SinkUnavailable(
                f"publishing the log in {self._log.name}: it was read up to topic offset {cursor.topic_offset}, "
                f"and now ends at {end}"
            )
        return cursor.read(self._reader, end)

    def _settle(self) -> None:
        """Do nothing: brokers only show what is committed."""

    def _headers(self, first: int, last: int) -> Iterator[pa.Table]:
        return self._log.read_transactions(first, last)

    def _rows(self, first: int, last: int) -> Iterator[LogRows]:
        return self._log.read_rows(first, last)

    def next_offset(self) -> int:
        end = self._state.bounds()[1]
        if end != self._said[0]:
            state = read_state(self._topics)
            self._wait_for_rows(state)
            self._said = (end, int(state.checkpoint.next_offset))
            self.progress, self.progress_at = state.checkpoint.progress, self._said[1]
        return self._said[1]

    def _wait_for_rows(self, state: TopicState) -> None:
        # A commit becomes visible in each topic separately: a cut may be visible shortly before its rows can be read.
        deadline = time.monotonic() + self.wait_s
        while (shown := last_cut(self._topics, state)) is not None and shown < state.checkpoint.cut:
            if time.monotonic() > deadline:
                raise self._silent()
            time.sleep(0.005)

    def _silent(self) -> SinkUnavailable:
        return SinkUnavailable(f"publishing the log in {self._log.name}: the rows of its latest cut do not appear")


__all__ = ["HELD_BYTES_MAX", "KafkaTail"]
