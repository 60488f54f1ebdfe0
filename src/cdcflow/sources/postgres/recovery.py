"""Whether a server replays the log of a primary (a standby), and the end of its log."""

from __future__ import annotations

from cdcflow.sources.postgres.connection import Connection, query_row
from cdcflow.sources.postgres.lsn import Lsn


def is_standby(connection: Connection) -> bool:
    return bool(query_row(connection, "SELECT pg_catalog.pg_is_in_recovery()")[0])


def end_of_log(at_primary: str) -> str:
    """Return the SQL for the end of the log: at a standby the end of what it has replayed, at a primary the result of
    the SQL function `at_primary`."""
    return (
        "(CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() "
        f"ELSE pg_catalog.{at_primary}() END)"
    )


RECEIVED_END = (
    "(CASE WHEN pg_catalog.pg_is_in_recovery() THEN greatest(pg_catalog.pg_last_wal_receive_lsn(), "
    "pg_catalog.pg_last_wal_replay_lsn()) ELSE pg_catalog.pg_current_wal_flush_lsn() END)"
)
"""SQL for the end of the log that the server has: a standby may have received more than it has replayed."""


def log_end(connection: Connection) -> Lsn:
    """Return a position in the server's log after everything that is visible now."""
    return Lsn.parse(query_row(connection, f"SELECT {end_of_log('pg_current_wal_insert_lsn')}::text")[0])
