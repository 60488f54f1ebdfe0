"""A lease in MySQL or MariaDB: `GET_LOCK`, which ends with the session that holds it.

The server ends a session that is idle for longer than `wait_timeout`, by its own clock. So a daemon that was suspended,
or is cut off from the network, loses the lock although its connection still exists
(https://dev.mysql.com/doc/refman/8.4/en/locking-functions.html). The lock is one server's: replicas do not have it.

The server reports a session's number, and not which daemon it is. So the session has a second lock, whose name contains
the daemon's: a process that knows a daemon's name can find out whether that one holds the lease.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import pymysql

from cdcflow.capture.ports.lease import Holder
from cdcflow.capture.term import MARGIN
from cdcflow.config import MySQL
from cdcflow.sources.engine.lease import SessionLease
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.mysql.connection import Connection, Connector, query, query_row

_NAME_MAX = 64


class MySQLLease(SessionLease[Connection]):
    """The lock named `name` of the server."""

    _connector: Connector

    def __init__(
        self, settings: MySQL, secret: Secret, name: str, ttl_s: float, *, process: str, known: Sequence[str] = ()
    ) -> None:
        """`process`: the name of this process in messages. `known`: other processes that `holder` recognizes."""
        super().__init__(Connector(settings, secret), name, ttl_s)
        # The server counts in whole seconds, and must not end the session before its holder stops counting on it.
        self._idle_s = math.ceil(ttl_s * (1 + MARGIN))
        self._name = lock_name(name)
        self._of_process = lock_name(f"{name} of {process}")
        self._known = {one: lock_name(f"{name} of {one}") for one in (process, *known)}

    def _open(self) -> Connection:
        connection = self._connector.connect("lease", read_timeout_s=self.ttl_s)
        try:
            query(connection, f"SET SESSION wait_timeout = {self._idle_s}")
        except BaseException:
            self._connector.discard(connection)
            raise
        return connection

    def _take(self, connection: Connection) -> bool:
        is_ours = bool(_value(connection, f"SELECT GET_LOCK('{self._name}', 0)"))
        if is_ours:
            _value(connection, f"SELECT GET_LOCK('{self._of_process}', 0)")
        return is_ours

    def _is_ours(self, connection: Connection) -> bool:
        return bool(_value(connection, f"SELECT IS_USED_LOCK('{self._name}') = CONNECTION_ID()"))

    def _holder(self, connection: Connection) -> Holder | None:
        """Return the holder: a known process; otherwise the session, by its address.

        Other users' sessions are visible only with the right PROCESS.
        """
        session = _value(connection, f"SELECT IS_USED_LOCK('{self._name}')")
        if session is None:
            return None
        for process, lock in self._known.items():
            if _value(connection, f"SELECT IS_USED_LOCK('{lock}')") == session:
                return Holder(process)
        where = _value(
            connection,
            f"SELECT MAX(host) FROM information_schema.processlist WHERE id = {int(session)}",  # noqa: S608  a number
        )
        return Holder(f"session {session}" + (f" of {where}" if where else ""))

    def release(self) -> None:
        """Release the locks, and close the session."""
        if self._connection is not None:
            with contextlib.suppress(pymysql.Error, OSError):
                query(self._connection, f"DO RELEASE_LOCK('{self._of_process}'), RELEASE_LOCK('{self._name}')")
        self._end_session()


def _value(connection: Connection, statement: str) -> Any:  # Any: a number or a text of the server
    return query_row(connection, statement)[0]


def lock_name(name: str) -> str:
    """Return the lock's name at the server, which all of its databases share: only letters and digits, at most 64."""
    return f"cdcflow_{hashlib.sha256(name.encode()).hexdigest()}"[:_NAME_MAX]
