"""The tail of a log in Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from cdcflow.changelog.reader import LogRows
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.kafka.frames import last_cut, read_state
from cdcflow.sinks.kafka.reading import KafkaReader
from cdcflow.sinks.kafka.state import State
from cdcflow.sinks.kafka.topics import Topics


class TopicTail:
    """The tail of a log in Kafka, for `publisher`. Works beside the daemon that writes it. Used by one thread.

    What is asked for is read from the beginning of its stretch, so a small group may cost reading one (64 MiB).
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._log = KafkaReader(topics)
        state = read_state(topics)
        if state.identity is None:
            raise ConfigurationError(f"publishing the log in {self._log.name}: there is no log there")
        self.log_id: str = state.log_id
        self.identity: SourceIdentity = state.identity
        self._state = topics.reader(topics.state)
        self._seen = -1
        self._next_offset = 1

    def next_offset(self) -> int:
        end = self._state.bounds()[1]
        if end != self._seen:
            state = read_state(self._topics)
            self._wait_for_rows(state)
            self._seen, self._next_offset = end, int(state.checkpoint.next_offset)
        return self._next_offset

    def _wait_for_rows(self, state: State) -> None:
        # A commit comes to be seen in each topic by itself: a cut may be told a moment before its rows can be read.
        deadline = time.monotonic() + self._topics.wait_s
        while (shown := last_cut(self._topics, state)) is not None and shown < state.checkpoint.cut:
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"publishing the log in {self._log.name}: the rows of its newest cut do not come")
            time.sleep(0.005)

    def transactions(self, first: int, last: int) -> Iterator[pa.Table]:
        return self._log.read_transactions(first, last)

    def rows(self, first: int, last: int) -> Iterator[LogRows]:
        return self._log.read_rows(first, last)


__all__ = ["TopicTail"]
