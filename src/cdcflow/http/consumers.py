"""Consumers of the log over HTTP: polling or streaming holds the consumer's lease; commits work at the same time.

Each read runs in a separate thread and holds one lock, so that the capture keeps the daemon's processors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable
from cdcflow.log.query.cursors import Definition

if TYPE_CHECKING:  # a daemon without consumer requests need not load what reads them
    from cdcflow.log.query.consumer import Consumer
    from cdcflow.log.query.consumers import Consumers

LIMIT, LIMIT_MAX = 500, 5000
TRANSACTION_ROWS_MAX = 10_000
"""An answer is extended beyond its limit to the end of a transaction, but to no more rows than this."""
WAIT_MAX_S = 60.0
SESSIONS_MAX = 16
TURN_S = 30.0
REST_AFTER_S = 60.0


class ConsumerDoor:
    """Answers the consumer requests of HTTP. `opened` returns the log's consumers, for this object alone; `tell` gets
    an event for each consumer that a caller creates. Thread-safe.

    A table's rows are computed once for all the polls of a backfill; they are released after a while without a poll.
    """

    def __init__(
        self,
        opened: Callable[[], Consumers],
        tell: Callable[[str, Mapping[str, object]], None] = lambda event, fields: None,
    ) -> None:
        self._opened = opened
        self._tell = tell
        self._turn = threading.Lock()
        self._sessions: dict[str, ConsumerSession] = {}
        self._resting: threading.Timer | None = None

    def list_consumers(self) -> list[dict[str, Any]]:
        """Return all consumers, and how far each is."""
        from cdcflow.log.query.rows_as_json import consumer_as_json

        with self._alone():
            return [consumer_as_json(one) for one in self._opened().list_consumers()]

    def create(self, asked: Mapping[str, Any], asked_by: str) -> dict[str, Any]:
        """Create a consumer from the fields `name`, and optionally `tables`, `ops`, `from`. `asked_by`: the caller, for
        operators.

        Raises:
            ConfigurationError: see `Consumers.create`; or a field is unknown, or has another type.
        """
        tables, start = asked.get("tables"), asked.get("from", "current")
        are_names = tables is None or (isinstance(tables, list) and all(isinstance(t, str) for t in tables))
        texts = (asked.get("name"), asked.get("ops", ""), start)
        if not are_names or not all(isinstance(t, str) for t in texts) or set(asked) - _FIELDS:
            raise ConfigurationError(
                "creating a consumer: a field is missing, unknown, or of another type",
                remedy="send name (text), and if you like tables (list of texts), ops (text) and from (text)",
            )
        with self._alone():
            definition = Definition(str(texts[0]), None if tables is None else tuple(tables), asked.get("ops"))
            made = self._opened().create(definition, start)
            self._tell("operation requested", {"op": "create consumer", "consumer": made.name, "by": asked_by})
            return {"name": made.name, "cursor": str(made.committed), "offset": made.committed.offset}

    def commit(self, name: str, cursor: object) -> dict[str, Any]:
        """Record that everything up to a cursor was processed; also while a stream of the consumer is open here."""
        if not isinstance(cursor, str):
            raise ConfigurationError(
                f"committing a cursor of consumer {name}: the body has no cursor", remedy="send the field cursor"
            )
        with self._alone(), ExitStack() as leaving:
            session = self._sessions.get(name)
            consumer = leaving.enter_context(self._opened().open(name)) if session is None else session.consumer
            consumer.commit(cursor)
            return {"name": name, "cursor": consumer.committed, "offset": consumer.state.committed.offset}

    def open(self, name: str, after: str | None, limit: int = LIMIT) -> ConsumerSession:
        """Begin to read a consumer after a cursor (None: its last commit), `limit` rows at a time.

        The caller closes it.

        Raises:
            ConfigurationError: no consumer has that name.
            SinkUnavailable: another process reads it already, or too many are being read.
        """
        with self._alone():
            if len(self._sessions) >= SESSIONS_MAX:
                raise SinkUnavailable(
                    f"reading consumer {name}: {SESSIONS_MAX} consumers are being read over HTTP already",
                    remedy="ask again later, or read it with `cdcflow consumer read`",
                )
            session = ConsumerSession(self, name, limit, self._opened().open(name, batch_rows=limit).__enter__(), after)
            self._sessions[name] = session
            return session

    def _end_session(self, session: ConsumerSession) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
        self._rest_later()

    def _rest_later(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        self._resting = threading.Timer(REST_AFTER_S, self._rest)
        self._resting.daemon = True
        self._resting.start()

    def _rest(self) -> None:
        with suppress(CdcflowError), self._alone():
            if not self._sessions:
                self._opened().rest()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=TURN_S):
            raise SinkUnavailable("another consumer is still being read", remedy="try again in a few seconds")
        try:
            yield
        finally:
            self._turn.release()


_FIELDS = {"name", "tables", "ops", "from"}


class ConsumerSession:
    """A consumer that is being read; `cursor` advances with the changes that `next` returns."""

    def __init__(self, door: ConsumerDoor, name: str, limit: int, consumer: Consumer, after: str | None) -> None:
        self.name = name
        self.consumer = consumer
        self.cursor = after if after is not None else consumer.committed
        self._door = door
        self._limit = limit
        self._after = after
        self._is_closed = False

    def next(self) -> list[dict[str, Any]]:
        """Return the next changes, up to the limit, in whole transactions if these are not too large.

        [] if there is nothing new.
        """
        from cdcflow.log.query.rows_as_json import batch_as_json

        found: list[dict[str, Any]] = []
        is_whole = True
        with self._door._alone():
            if self._is_closed:
                return []
            for batch in self.consumer.read(self._after, wait=0.0):
                if found and is_whole and len(found) + batch.rows.num_rows > self._limit:
                    break
                found += batch_as_json(batch)
                self.cursor = self._after = batch.cursor
                is_whole = batch.ends_transaction
                if len(found) >= self._limit and (is_whole or len(found) >= TRANSACTION_ROWS_MAX):
                    break
        return found

    def close(self) -> None:
        """Release the lease."""
        self._is_closed = True
        self._door._end_session(self)
        self.consumer.__exit__(None, None, None)


__all__ = ["LIMIT", "LIMIT_MAX", "TRANSACTION_ROWS_MAX", "WAIT_MAX_S", "ConsumerDoor", "ConsumerSession"]
