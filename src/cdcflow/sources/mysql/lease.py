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
from cdcflow.errors import CdcflowError
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.mysql.connection import Connection, Connector, query, query_row

_NAME_MAX = 64
RENEWALS = 3
WATCHED_EVERY_S = 0.2


class MySQLLease:
    """Implements `cdcflow.capture.ports.lease.DaemonLease`: the lock named `name` of the server."""

    watched_every_s = WATCHED_EVERY_S

    def __init__(
        self, settings: MySQL, secret: Secret, name: str, ttl_s: float, *, process: str, known: Sequence[str] = ()
    ) -> None:
        """`process`: the name of this process in messages. `known`: other processes that `holder` recognizes."""
        # The server counts in whole seconds, and must not end the session before its holder stops counting on it.
        self._idle_s = math.ceil(ttl_s * (1 + MARGIN))
        self.ttl_s = ttl_s
        self.renewed_every_s = ttl_s / RENEWALS
        self._connector = Connector(settings, secret)
        self._name = lock_name(name)
        self._of_process = lock_name(f"{name} of {process}")
        self._known = {one: lock_name(f"{name} of {one}") for one in (process, *known)}
        self._attempted = f"holding the lease {name} at {self._connector.address}"
        self._connection: Connection | None = None
        self._is_held = False

    def hold(self) -> bool:
        if self._is_held and self._connection is not None:
            self._is_held = bool(self._value(f"SELECT IS_USED_LOCK('{self._name}') = CONNECTION_ID()"))
        else:
            self._is_held = bool(self._value(f"SELECT GET_LOCK('{self._name}', 0)"))
            if self._is_held:
                self._value(f"SELECT GET_LOCK('{self._of_process}', 0)")
        return self._is_held

    def holder(self) -> Holder | None:
        """Return the holder: a known process; otherwise the session, by its address.

        Other users' sessions are visible only with the right PROCESS.
        """
        session = self._value(f"SELECT IS_USED_LOCK('{self._name}')")
        if session is None:
            return None
        for process, lock in self._known.items():
            if self._value(f"SELECT IS_USED_LOCK('{lock}')") == session:
                return Holder(process)
        where = self._value(f"SELECT MAX(host) FROM information_schema.processlist WHERE id = {int(session)}")  # noqa: S608
        return Holder(f"session {session}" + (f" of {where}" if where else ""))

    def release(self) -> None:
        """Close the session, which holds the lock."""
        connection, self._connection, self._is_held = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(pymysql.Error, OSError):
                query(connection, f"DO RELEASE_LOCK('{self._of_process}'), RELEASE_LOCK('{self._name}')")
            self._connector.discard(connection)

    def _value(self, statement: str) -> Any:  # Any: a number or a text of the server
        try:
            return query_row(self._open(), statement)[0]
        except pymysql.Error as error:
            self._drop()
            raise self._connector.map_error(error, self._attempted) from None
        except CdcflowError:
            self._drop()
            raise

    def _open(self) -> Connection:
        if self._connection is None:
            connection = self._connector.connect("lease", read_timeout_s=self.ttl_s)
            self._connection = connection
            query(connection, f"SET SESSION wait_timeout = {self._idle_s}")
        return self._connection

    def _drop(self) -> None:
        connection, self._connection, self._is_held = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(CdcflowError, pymysql.Error):
                self._connector.discard(connection)


def lock_name(name: str) -> str:
    """Return the lock's name at the server, which all of its databases share: only letters and digits, at most 64."""
    return f"cdcflow_{hashlib.sha256(name.encode()).hexdigest()}"[:_NAME_MAX]
