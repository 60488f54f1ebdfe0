"""Connections to one server: opened, kept, replaced when they died, and broken off from another thread.

A dialect says how a connection is opened, what is left of one, and what its errors mean; when to do what stands here.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Generic, TypeVar

from cdcflow.errors import CdcflowError, SourceUnavailable

C = TypeVar("C")
T = TypeVar("T")


class Connector(ABC, Generic[C]):
    """Opens connections to one server. Thread-safe.

    `address` names the server in messages; it holds no secret.
    """

    error: ClassVar[type[Exception]]
    """What the client library raises."""

    def __init__(self, address: object) -> None:
        self._address = address
        self._open: set[C] = set()
        self._lock = threading.Lock()
        self.closed = False

    @abstractmethod
    def connect(self, purpose: str) -> C:
        """A connection in autocommit mode with its session set up; `purpose` shows among the server's connections.

        Raises:
            SourceUnavailable: no answer, no room, or the password is refused (it may just be rotated).
            ConfigurationError: what was asked for does not exist, is not secure, or is too old.
        """

    @abstractmethod
    def map_error(self, error: Exception, attempted: str) -> CdcflowError:
        """One of the library's errors as one of ours, without row values."""

    @abstractmethod
    def is_broken(self, connection: C) -> bool:
        """The server, or the way there, is gone."""

    @abstractmethod
    def is_idle(self, connection: C) -> bool:
        """It is open, nothing is under way on it, and it may serve somebody else."""

    def is_idle_after_error(self, connection: C) -> bool:
        """The same after something failed on it. False where the library cannot tell."""
        return False

    @abstractmethod
    def _break_off(self, connection: C) -> None:
        """Wake a thread that waits on it with an error. It must not be freed under that thread."""

    @abstractmethod
    def _drop(self, connection: C) -> None:
        """Close it without waiting for the server."""

    def close(self) -> None:
        """Open no more, and break off what is under way on other threads: their owners get `SourceUnavailable` and
        give their connections to `discard`."""
        with self._lock:
            self.closed = True
            left, self._open = self._open, set()
        for connection in left:
            self._break_off(connection)

    def discard(self, connection: C) -> None:
        with self._lock:
            self._open.discard(connection)
        self._drop(connection)

    def check_open(self) -> None:
        if self.closed:
            raise SourceUnavailable(f"connecting to {self._address}: this source is closed")

    def _kept(self, connection: C) -> C:
        """A new connection, which `close` will break off; closed at once when that came first."""
        with self._lock:
            if not self.closed:
                self._open = {c for c in self._open if not self.is_broken(c)} | {connection}
                return connection
        self._drop(connection)
        raise SourceUnavailable(f"connecting to {self._address}: this source is closed")

    @contextlib.contextmanager
    def mapping_errors(self, attempted: str) -> Iterator[None]:
        """Turn the library's errors inside into ours; `attempted` says what was tried, on what."""
        try:
            yield
        except self.error as error:
            raise self.map_error(error, attempted) from None


class Pool(Generic[C]):
    """Connections that lie idle between two uses. Thread-safe."""

    def __init__(self, connector: Connector[C], purpose: str) -> None:
        self._connector = connector
        self._purpose = purpose
        self._idle: list[C] = []
        self._lock = threading.Lock()

    def run(self, attempted: str, work: Callable[[C], T]) -> T:
        """Do something on a connection. One that died while it lay idle is replaced, once.

        Raises what `work` raises; the library's errors as ours.
        """
        while True:
            connection, is_fresh = self._take()
            try:
                result = work(connection)
            except self._connector.error as error:
                was_broken = self._connector.is_broken(connection)
                self._give_back(connection, failed=True)
                if was_broken and not is_fresh:
                    continue
                raise self._connector.map_error(error, attempted) from None
            except BaseException:
                self._give_back(connection, failed=True)
                raise
            self._give_back(connection)
            return result

    @contextlib.contextmanager
    def another(self) -> Iterator[C]:
        """A connection of its own for as long as the block lasts."""
        connection = self._connector.connect(self._purpose)
        try:
            yield connection
        finally:
            self._connector.discard(connection)

    def close(self) -> None:
        """Close the idle ones and the connector, which breaks off the others."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._connector.discard(connection)
        self._connector.close()

    def _take(self) -> tuple[C, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return self._connector.connect(self._purpose), True

    def _give_back(self, connection: C, *, failed: bool = False) -> None:
        is_idle = self._connector.is_idle_after_error if failed else self._connector.is_idle
        if is_idle(connection) and not self._connector.closed:
            with self._lock:
                self._idle.append(connection)
        else:
            self._connector.discard(connection)


class Session(Generic[C]):
    """One connection for small questions, asked one after another. Thread-safe."""

    def __init__(self, connector: Connector[C], connect: Callable[[], C]) -> None:
        self._connector = connector
        self._connect = connect
        self._connection: C | None = None
        self._lock = threading.Lock()

    def ask(self, attempted: str, question: Callable[[C], T]) -> T:
        """Ask the server something, through a connection that may have died meanwhile: then through a new one."""
        with self._lock, self._connector.mapping_errors(attempted):
            if self._connection is not None:
                try:
                    return question(self._connection)
                except self._connector.error:
                    if not self._connector.is_broken(self._connection):
                        raise
                    self._connector.discard(self._connection)
                    self._connection = None
            self._connection = self._connect()
            return question(self._connection)

    def close(self) -> None:
        """After `Connector.close`, which ends a question that another thread is asking."""
        with self._lock:
            if self._connection is not None:
                self._connector.discard(self._connection)
                self._connection = None
