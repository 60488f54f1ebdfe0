"""Releases the slot of a capture, so that the server may remove the log that it keeps for it.

    note committed ──▶ slot dropped ──▶ note has dropped_at ──▶ a start takes a new position ──▶ note deleted
          └ killed: the next process finishes a release whose note has no dropped_at

The note is in a table of the source, because it must be durable before the slot is dropped, also if no daemon runs, or
if it cannot write its log. It names the release by an id. A start that takes a new position stores the id in the
checkpoint that has the gap. So a note with that id was used already, and does not explain a later loss.

The note's row is locked from before the drop until `dropped_at` is committed. So a release that one process finishes is
not finished again by a second one, which could drop the slot that a start has created since.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

import psycopg

from cdcflow.errors import RightMissing, SourceUnavailable
from cdcflow.sources.postgres import slot
from cdcflow.sources.postgres.connection import Connection, literal, map_error, mapping_errors, quote_name
from cdcflow.sources.postgres.slot import Slot

TABLE = "cdcflow.released_slots"
DDL = (
    "CREATE SCHEMA IF NOT EXISTS cdcflow",
    f"CREATE TABLE IF NOT EXISTS {TABLE} (slot text PRIMARY KEY, id text NOT NULL, why text NOT NULL, "
    "noted_by text NOT NULL, noted_at timestamptz NOT NULL DEFAULT now(), restart_lsn pg_lsn, confirmed_lsn pg_lsn, "
    "dropped_at timestamptz)",
)
DROP_WITHIN_S = 30.0
_NAP_S = 0.05

_NOTE = f"SELECT id, why, noted_by, dropped_at IS NOT NULL FROM {TABLE} WHERE slot = %s"  # noqa: S608  a constant

# The note of an unfinished release is not replaced, because another process may be about to finish it.
_WRITE = f"""
INSERT INTO {TABLE} AS n (slot, id, why, noted_by, restart_lsn, confirmed_lsn) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (slot) DO UPDATE SET id = excluded.id, why = excluded.why, noted_by = excluded.noted_by, noted_at = now(),
  restart_lsn = excluded.restart_lsn, confirmed_lsn = excluded.confirmed_lsn, dropped_at = NULL
WHERE n.dropped_at IS NOT NULL
"""  # noqa: S608  a constant
_MAY_USE = f"SELECT 1 FROM {TABLE} WHERE false FOR UPDATE"  # noqa: S608  a constant
_LOCK = f"SELECT id FROM {TABLE} WHERE slot = %s AND dropped_at IS NULL FOR UPDATE"  # noqa: S608  a constant
_FINISH = f"UPDATE {TABLE} SET dropped_at = clock_timestamp() WHERE slot = %s"  # noqa: S608  a constant
_FORGET = f"DELETE FROM {TABLE} WHERE slot = %s AND id = %s AND dropped_at IS NOT NULL"  # noqa: S608  a constant

# Temporary copies of the slot. `catch_up` names them after the slot, cut off if the name would be too long, and after
# the server process.
_COPIES = """
SELECT active_pid FROM pg_catalog.pg_replication_slots
WHERE temporary AND database = current_database() AND active_pid IS NOT NULL
  AND slot_name = left(%s, 63 - length('_catch_up_' || active_pid)) || '_catch_up_' || active_pid
"""


@dataclass(frozen=True, slots=True)
class ReleaseNote:
    """The note that a slot was released, or is to be: why and by whom. `is_dropped`: the release is finished."""

    id: str
    why: str
    noted_by: str
    is_dropped: bool


def find(connection: Connection, name: str) -> ReleaseNote | None:
    """Return the note about a slot; None without one, or without the table of notes."""
    try:
        row = connection.execute(_NOTE.encode(), (name,)).fetchone()
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.InsufficientPrivilege,  # a start that needs the table has called `ensure_table`
    ):
        return None
    return None if row is None else ReleaseNote(*row)


def ensure_table(connection: Connection) -> None:
    """Create the table of notes, if it is missing.

    Raises:
        RightMissing: the user may not create the table, or may not use it; the message has the statements.
    """
    user = quote_name(connection.info.user)
    try:
        if connection.execute("SELECT to_regclass(%s)", (TABLE,)).fetchone() == (None,):
            for statement in DDL:
                connection.execute(statement.encode())
        connection.execute(_MAY_USE.encode())
    except psycopg.errors.UniqueViolation:
        pass  # another process has just created it
    except psycopg.errors.InsufficientPrivilege:
        raise RightMissing(
            f"{user} may not use {TABLE}, where a released slot is noted",
            remedy=f"run {'; '.join((*DDL, *grants(user)))}",
        ) from None


def grants(user: str) -> tuple[str, ...]:
    """Return the statements that let a user use the table of notes."""
    return f"GRANT USAGE ON SCHEMA cdcflow TO {user}", f"GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO {user}"


def note(connection: Connection, found: Slot, *, why: str, by: str) -> None:
    """Record durably that this slot is released. A note of an unfinished release is not replaced."""
    ensure_table(connection)
    positions = (None if lsn is None else str(lsn) for lsn in (found.restart, found.confirmed))
    connection.execute(_WRITE.encode(), (found.name, uuid.uuid4().hex, why, by, *positions))


def finish(connection: Connection, name: str) -> bool:
    """Drop the slot of an unfinished release, even if a process uses it, and record that. Return False if none is
    unfinished.

    Raises:
        SourceUnavailable: a process keeps using the slot; the note stays, and the next attempt finishes the release.
        RightMissing: the user may not end that process, or drop the slot.
    """
    with connection.transaction():
        if connection.execute(_LOCK.encode(), (name,)).fetchone() is None:
            return False
        _drop(connection, name)
        connection.execute(_FINISH.encode(), (name,))
    return True


def release(connection: Connection, name: str, *, why: str, by: str) -> bool:
    """Note the release of a slot, and drop it. Return False if it does not exist.

    Raises:
        ConfigurationError: the slot is for something else; see also `ensure_table` and `finish`.
    """
    with mapping_errors(f"releasing slot {name}"):
        found = slot.read(connection, name)
        if found is None:
            return finish(connection, name)
        found.check_kind(connection.info.dbname)
        note(connection, found, why=why, by=by)
        return finish(connection, name)


def forget(connection: Connection, name: str, id_: str) -> None:
    """Delete a finished note, which the log no longer needs."""
    connection.execute(_FORGET.encode(), (name, id_))


def _drop(connection: Connection, name: str) -> None:
    """Drop a slot, after ending the processes that use it or a temporary copy of it, which keeps the same log."""
    deadline = time.monotonic() + DROP_WITHIN_S
    while (found := slot.read(connection, name)) is not None:
        found.check_kind(connection.info.dbname)
        if found.active_pid is not None:
            _end_process(connection, found.active_pid, name)
        elif _is_dropped(connection, name):
            break
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"releasing slot {name}: a process keeps using it",
                remedy="the release is noted, and is tried again; or end the process with pg_terminate_backend",
                runbook="slot-in-use",
            )
        time.sleep(_NAP_S)
    for (pid,) in connection.execute(_COPIES, (name,)).fetchall():
        _end_process(connection, pid, name)


def _is_dropped(connection: Connection, name: str) -> bool:
    """Try to drop a slot. Return False if a process uses it again."""
    try:
        with connection.transaction():
            connection.execute(f"SELECT pg_catalog.pg_drop_replication_slot({literal(name)})".encode())
    except psycopg.errors.UndefinedObject:
        pass
    except psycopg.errors.ObjectInUse:
        return False
    except psycopg.Error as error:
        raise map_error(error, f"dropping slot {name}") from None
    return True


def _end_process(connection: Connection, pid: int, name: str) -> None:
    try:
        with connection.transaction():
            connection.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (pid,))
    except psycopg.errors.InsufficientPrivilege:
        user = quote_name(connection.info.user)
        raise RightMissing(
            f"releasing slot {name}: {user} may not end process {pid}, which reads from it as another role",
            remedy=f"run GRANT pg_signal_backend TO {user}, or release as the role that the daemon uses",
        ) from None
