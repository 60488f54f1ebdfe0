"""A lease in PostgreSQL: an advisory lock, which ends with the session that holds it.

The server ends a session that is idle for longer than the lease's duration, by its own clock. So a daemon that was
suspended, or is cut off from the network, loses the lock although its connection still exists
(https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-IDLE-SESSION-TIMEOUT).
"""

from __future__ import annotations

import contextlib
import os
import socket
import zlib
from typing import Any

import psycopg

from cdcflow.capture.ports.lease import Holder
from cdcflow.capture.term import MARGIN
from cdcflow.errors import CdcflowError
from cdcflow.sources.postgres.connection import Connection, Connector, map_error

# Two numbers: the first is the same for all leases of cdcflow.
_CLASS = zlib.crc32(b"cdcflow lease") - (1 << 31)
_TAKE = "SELECT pg_catalog.pg_try_advisory_lock(%s, %s)"
_HOLDER = """
SELECT a.application_name, extract(epoch FROM a.backend_start)::float8, a.pid
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
  AND l.classid::bigint = %s AND l.objid::bigint = %s
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""
_PURPOSE = "lease of "
RENEWALS = 3
WATCHED_EVERY_S = 0.2


class PostgresLease:
    """Implements `cdcflow.capture.ports.lease.DaemonLease`: the lock named `name` in the connector's database."""

    watched_every_s = WATCHED_EVERY_S

    def __init__(self, connector: Connector, name: str, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.renewed_every_s = ttl_s / RENEWALS
        self._connector = connector
        self._lock = _CLASS, zlib.crc32(name.encode()) - (1 << 31)
        self._seen = tuple(number % (1 << 32) for number in self._lock)  # as pg_locks shows them
        self._attempted = f"holding the lease {name} at {self._connector.address}"
        self._connection: Connection | None = None
        self._is_held = False

    def hold(self) -> bool:
        if self._is_held and self._connection is not None:
            row = self._row(_HOLDER, self._seen)
            self._is_held = row is not None and row[2] == self._connection.info.backend_pid
        else:
            row = self._row(_TAKE, self._lock)
            self._is_held = row is not None and bool(row[0])
        return self._is_held

    def holder(self) -> Holder | None:
        row = self._row(_HOLDER, self._seen)
        if row is None:
            return None
        purpose = f"cdcflow {_PURPOSE}"
        name = str(row[0] or "")
        return Holder(name.removeprefix(purpose) if name.startswith(purpose) else f"the session {name}", row[1])

    def release(self) -> None:
        """Close the session, which holds the lock."""
        connection, self._connection, self._is_held = self._connection, None, False
        if connection is not None:
            self._connector.discard(connection)

    def _row(self, statement: str, given: tuple[int, ...]) -> tuple[Any, ...] | None:
        try:
            connection = self._open()
            return connection.execute(statement.encode(), given).fetchone()
        except psycopg.Error as error:
            self._drop()
            raise map_error(error, self._attempted) from None
        except CdcflowError:
            self._drop()
            raise

    def _open(self) -> Connection:
        if self._connection is None:
            idle_ms = int(self.ttl_s * (1 + MARGIN) * 1000)
            who = f"{socket.gethostname()[:24]} (process {os.getpid()})"
            self._connection = self._connector.connect(
                f"{_PURPOSE}{who}", idle_session_timeout=f"{idle_ms}ms", statement_timeout=f"{int(self.ttl_s * 1000)}ms"
            )
        return self._connection

    def _drop(self) -> None:
        with contextlib.suppress(CdcflowError, psycopg.Error):
            self.release()
