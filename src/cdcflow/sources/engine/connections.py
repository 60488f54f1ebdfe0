"""Connections to one server: opens them, keeps them, replaces those that died, and cancels them from another thread.

A dialect defines how to open a connection, how to recognize its state, and what its errors mean; this module decides
when each of these is done.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import ClassVar, Generic, TypeVar

from cdcflow.errors import CdcflowError, SourceUnavailable
from cdcflow.sources.engine.errors import PasswordRefused
from cdcflow.sources.engine.passwords import RenewableSecret, Secret
from cdcflow.sources.engine.ssh_tunnel import Tunnel

C = TypeVar("C")
E = TypeVar("E", bound=Exception)
T = TypeVar("T")


class Connector(ABC, Generic[C]):
    """Opens connections to one server. Thread-safe.

    `address` names the server in messages; it holds no secret. `tunnel`: the way to the server, if it leads through an
    SSH server.
    """

    error: ClassVar[type[Exception]]
    """The base class of the errors that the client library raises."""

    def __init__(self, address: object, tunnel: Tunnel | None = None) -> None:
        self.address = address
        self._tunnel = tunnel
        self._open: set[C] = set()
        self._lock = threading.Lock()
        self.closed = False

    @property
    def machine(self) -> str:
        """A text for messages: the machine that loopback addresses and socket paths refer to."""
        return "on this machine" if self._tunnel is None else f"on the SSH server {self._tunnel.ssh}"

    @abstractmethod
    def connect(self, purpose: str) -> C:
        """Return a new connection in autocommit mode with its session set up; the server lists it with this `purpose`.

        Raises:
            SourceUnavailable: no answer, no connection slot left, or the password is refused (it may be being rotated).
            ConfigurationError: something that the settings name does not exist, is not secure, or is too old.
        """

    @abstractmethod
    def map_error(self, error: Exception, attempted: str) -> CdcflowError:
        """Return one of the library's errors as a cdcflow error, without row values. `attempted`: the action that
        failed."""

    @abstractmethod
    def is_broken(self, connection: C) -> bool:
        """Whether the server, or the connection to it, is gone."""

    @abstractmethod
    def is_idle(self, connection: C) -> bool:
        """Whether the connection may be reused: it is open, and no statement or transaction is in progress on it."""

    def is_idle_after_error(self, connection: C) -> bool:
        """Whether the connection may be reused after an error on it. False if the library cannot determine that."""
        return False

    @abstractmethod
    def _break_off(self, connection: C) -> None:
        """Wake a thread that waits on the connection, with an error. The connection must not be freed while that thread
        uses it."""

    @abstractmethod
    def _drop(self, connection: C) -> None:
        """Close a connection without waiting for the server."""

    def close(self) -> None:
        """Open no more connections, and cancel the work in progress on other threads.

        These threads get `SourceUnavailable`, and pass their connections to `discard`.
        """
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
            raise SourceUnavailable(f"connecting to {self.address}: this source is closed")

    def _register(self, connection: C) -> C:
        """Register a new connection, so that `close` cancels it. If `close` was called before, drop it and raise."""
        with self._lock:
            if not self.closed:
                self._open = {c for c in self._open if not self.is_broken(c)} | {connection}
                return connection
        self._drop(connection)
        raise SourceUnavailable(f"connecting to {self.address}: this source is closed")

    def log_in(self, secret: Secret, open_with: Callable[[str | None], C]) -> C:
        """Call `open_with` with the password, and return its result; if the password is refused, call it with the
        renewed one."""
        password = secret()
        try:
            return open_with(password)
        except PasswordRefused:
            other = secret.after_refusal(password) if isinstance(secret, RenewableSecret) else None
            if other is None:
                raise
        return open_with(other)

    def mapping_errors(self, attempted: str) -> AbstractContextManager[None]:
        """Turn the library's errors inside the block into cdcflow's; `attempted` names the action and its object."""
        return mapping_library_errors(self.error, self.map_error, attempted)


@contextlib.contextmanager
def mapping_library_errors(
    library: type[E], map_error: Callable[[E, str], CdcflowError], attempted: str
) -> Iterator[None]:
    """Turn a client library's errors inside the block into cdcflow's; `attempted` names the action and its object."""
    try:
        yield
    except library as error:
        raise map_error(error, attempted) from None


class Pool(Generic[C]):
    """Idle connections, kept between two uses. Thread-safe."""

    def __init__(self, connector: Connector[C], purpose: str) -> None:
        self._connector = connector
        self._purpose = purpose
        self._idle: list[C] = []
        self._lock = threading.Lock()

    def run(self, attempted: str, work: Callable[[C], T]) -> T:
        """Do some work on a connection. A connection that died while it was idle is replaced; an error on a new one is
        raised.

        Raises what `work` raises; the library's errors are turned into cdcflow's.
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
        """Provide a separate connection for as long as the block lasts."""
        connection = self._connector.connect(self._purpose)
        try:
            yield connection
        finally:
            self._connector.discard(connection)

    def close(self) -> None:
        """Close the idle connections, and the connector, which cancels the connections in use."""
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
    """One connection for small queries, run one after another. Thread-safe."""

    def __init__(self, connector: Connector[C], connect: Callable[[], C]) -> None:
        self._connector = connector
        self._connect = connect
        self._connection: C | None = None
        self._lock = threading.Lock()

    def ask(self, attempted: str, question: Callable[[C], T]) -> T:
        """Run a query on the connection; if the connection has died since the last query, run it on a new one."""
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
        """Close the connection. Call it after `Connector.close`, which ends a query in progress on another thread."""
        with self._lock:
            if self._connection is not None:
                self._connector.discard(self._connection)
                self._connection = None
