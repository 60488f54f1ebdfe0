"""A log in Kafka whose sealed segments are its history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from cdcflow.log.files.layout import Layout
from cdcflow.log.format.records import Message
from cdcflow.log.format.topic_tail import TopicAddress, TopicTail
from cdcflow.model.position import Checkpoint


class OpenTier(Protocol):
    """A log in Kafka whose history is locked by the process that adds to it."""

    @property
    def tail(self) -> TopicTail | None:
        """The part of the topic to read and seal, or None if there is nothing to seal."""
        ...

    @property
    def sealer(self) -> Callable[[Iterable[Message]], Iterator[str]]:
        """A function that turns the tail's messages into segments, and yields for each the text by which `put` finds
        it. It can be sent to another process."""
        ...

    @property
    def newest(self) -> Checkpoint:
        """The latest checkpoint of the log, which may be later than its last row."""
        ...

    def put(self, directory: str) -> None:
        """Add one of these segments to the history, in order. Durable on return.

        Raises:
            SinkUnavailable: no room, the store is unavailable, or another process has added one; retry.
        """
        ...

    def origin(self) -> Mapping[str, Any]:
        """Return the place in the topic where the history now ends, for the caller to record."""
        ...


class Tier(Protocol):
    """A log in Kafka with its history: sealed segments like those of a log in files."""

    layout: Layout
    """The layout of the history."""

    def topic(self) -> TopicAddress:
        """Return the address of the log's topic."""
        ...

    def open(self) -> AbstractContextManager[OpenTier]:
        """Find out which part of the topic has to be sealed, and lock the history until the context ends.

        Raises:
            ConfigurationError: there is no log, or the history is not this log's.
            HistoryLost: the next rows are missing from the topic.
            SinkUnavailable: another process holds the lock, or the broker does not respond; retry later.
        """
        ...
