"""A log in Kafka whose sealed segments are its history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from cdcflow.changelog.layout import Layout
from cdcflow.changelog.records import Message
from cdcflow.changelog.tail import Topic, TopicTail
from cdcflow.model.position import Checkpoint


class OpenTier(Protocol):
    """A log in Kafka whose history is held by the one who adds to it."""

    @property
    def tail(self) -> TopicTail | None:
        """What is to be read and sealed; None: nothing."""
        ...

    @property
    def sealer(self) -> Callable[[Iterable[Message]], Iterator[str]]:
        """Turns the tail's messages into a segment each, with a text by which `put` finds it. Can be sent to another
        process."""
        ...

    @property
    def newest(self) -> Checkpoint:
        """The newest checkpoint of the log, which may be behind its last row."""
        ...

    def put(self, directory: str) -> None:
        """Add one of these to the history, in order. Durable on return.

        Raises:
            SinkUnavailable: no room, the store is away, or another process has added one meanwhile; try again.
        """
        ...

    def origin(self) -> Mapping[str, Any]:
        """Where in the topic the history ends now, for whoever notes it."""
        ...


class Tier(Protocol):
    """A log in Kafka with its history: sealed segments as a file log has them."""

    layout: Layout
    """Where the history is."""

    def topic(self) -> Topic:
        """Where the log's topic is."""
        ...

    def opened(self) -> AbstractContextManager[OpenTier]:
        """Look what is to be sealed, and hold the history meanwhile.

        Raises:
            ConfigurationError: there is no log, or the history is not this log's.
            HistoryLost: what would be next is gone.
            SinkUnavailable: another process is at it, or nobody answers; try again later.
        """
        ...
