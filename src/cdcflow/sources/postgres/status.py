"""How far the server's log is ahead of the change log, and how much of it the server keeps for cdcflow."""

from __future__ import annotations

from cdcflow.capture.ports.source import SourceStatus
from cdcflow.model.position import Position
from cdcflow.sources.postgres import slot
from cdcflow.sources.postgres.connection import Connection
from cdcflow.sources.postgres.lsn import lsn_of, position_of


def status_of(connection: Connection, name: str | None, acknowledged: Position | None) -> SourceStatus:
    """Lag and retained log of a slot; `name` is None if no slot was created yet."""
    found = None if name is None else slot.read(connection, name)
    row = connection.execute(
        """
        SELECT pg_catalog.pg_current_wal_flush_lsn()::text, s.safe_wal_size, age(s.catalog_xmin)
        FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = %s
        """,
        (name,),
    ).fetchone()
    assert row is not None  # noqa: S101  one row by construction
    end = lsn_of(row[0])
    details = {"server_end": position_of(end), "slot": name or "none"}
    if found is not None:
        details |= {
            "wal_status": found.wal_status or "unknown",
            "active": "yes" if found.active_pid else "no",
            "catalog_xmin_age": str(row[2] or 0),
            "safe_wal_bytes": "unlimited" if row[1] is None else str(row[1]),
        }
        if found.invalidation:
            details["invalidation_reason"] = found.invalidation
    at = lsn_of(acknowledged) if acknowledged else (found.confirmed if found else None)
    return SourceStatus(
        lag_bytes=None if at is None else max(end - at, 0),
        retained_bytes=None if found is None or found.restart is None else max(end - found.restart, 0),
        details=details,
    )


def log_end(connection: Connection) -> int:
    """A position in the server's log after everything that is committed now."""
    row = connection.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101  one row by construction
    return lsn_of(row[0])


def only_slot(connection: Connection) -> str | None:
    """The slot that cdcflow made in this database, where it made just one."""
    rows = connection.execute(
        "SELECT slot_name FROM pg_catalog.pg_replication_slots "
        "WHERE database = current_database() AND slot_name ~ '^cdcflow_[0-9a-f]{8}$'"
    ).fetchall()
    return str(rows[0][0]) if len(rows) == 1 else None
