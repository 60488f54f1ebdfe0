"""A lease in PostgreSQL: an advisory lock, which ends with the session that holds it.

The server ends a session that is idle for longer than the lease's duration, by its own clock. So a daemon that was
suspended, or is cut off from the network, loses the lock although its connection still exists
(https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-IDLE-SESSION-TIMEOUT).
"""

from __future__ import annotations

import os
import socket
import zlib

from cdcflow.capture.ports.lease import Holder
from cdcflow.capture.term import MARGIN
from cdcflow.sources.engine.lease import SessionLease
from cdcflow.sources.postgres.connection import Connection, Connector

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


class PostgresLease(SessionLease[Connection]):
    """The lock named `name` in the connector's database."""

    _connector: Connector

    def __init__(self, connector: Connector, name: str, ttl_s: float) -> None:
        super().__init__(connector, name, ttl_s)
        self._lock = _CLASS, zlib.crc32(name.encode()) - (1 << 31)
        self._seen = tuple(number % (1 << 32) for number in self._lock)  # as pg_locks shows them

    def _open(self) -> Connection:
        idle_ms = int(self.ttl_s * (1 + MARGIN) * 1000)
        who = f"{socket.gethostname()[:24]} (process {os.getpid()})"
        return self._connector.connect(
            f"{_PURPOSE}{who}", idle_session_timeout=f"{idle_ms}ms", statement_timeout=f"{int(self.ttl_s * 1000)}ms"
        )

    def _take(self, connection: Connection) -> bool:
        row = connection.execute(_TAKE.encode(), self._lock).fetchone()
        return row is not None and bool(row[0])

    def _is_ours(self, connection: Connection) -> bool:
        row = connection.execute(_HOLDER.encode(), self._seen).fetchone()
        return row is not None and bool(row[2] == connection.info.backend_pid)

    def _holder(self, connection: Connection) -> Holder | None:
        row = connection.execute(_HOLDER.encode(), self._seen).fetchone()
        if row is None:
            return None
        purpose = f"cdcflow {_PURPOSE}"
        name = str(row[0] or "")
        return Holder(name.removeprefix(purpose) if name.startswith(purpose) else f"the session {name}", row[1])
