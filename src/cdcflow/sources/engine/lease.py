"""A lease that a session of a server holds: a lock that ends with the session."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from cdcflow.capture.ports.lease import Holder
from cdcflow.errors import CdcflowError
from cdcflow.sources.engine.connections import Connector

C = TypeVar("C")
T = TypeVar("T")

RENEWALS = 3
WATCHED_EVERY_S = 0.2


class SessionLease(ABC, Generic[C]):
    """Implements `cdcflow.capture.ports.lease.DaemonLease`. An error on the session ends it, and the lease with it: a
    later `hold` takes the lock again, on another session."""

    watched_every_s = WATCHED_EVERY_S

    def __init__(self, connector: Connector[C], name: str, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.renewed_every_s = ttl_s / RENEWALS
        self._connector = connector
        self._attempted = f"holding the lease {name} at {connector.address}"
        self._connection: C | None = None
        self._is_held = False

    @abstractmethod
    def _open(self) -> C:
        """Open a session that the server ends when it is idle for longer than the lease's duration."""

    @abstractmethod
    def _take(self, connection: C) -> bool:
        """Take the lock if it is free, and return whether this session has it."""

    @abstractmethod
    def _is_ours(self, connection: C) -> bool:
        """Whether this session still has the lock."""

    @abstractmethod
    def _holder(self, connection: C) -> Holder | None:
        """Return the process or session that has the lock; None if the lock is free."""

    def hold(self) -> bool:
        is_renewed = self._is_held and self._connection is not None
        self._is_held = self._ask(self._is_ours if is_renewed else self._take)
        return self._is_held

    def holder(self) -> Holder | None:
        return self._ask(self._holder)

    def release(self) -> None:
        self._end_session()

    def _end_session(self) -> None:
        """Close the session, which holds the lock."""
        connection, self._connection, self._is_held = self._connection, None, False
        if connection is not None:
            self._connector.discard(connection)

    def _ask(self, question: Callable[[C], T]) -> T:
        try:
            with self._connector.mapping_errors(self._attempted):
                if self._connection is None:
                    self._connection = self._open()
                return question(self._connection)
        except CdcflowError:
            with contextlib.suppress(CdcflowError, self._connector.error):
                self._end_session()
            raise
