"""The replication slot: cdcflow's position in the server's log, which the server stores.

A lost slot is never recreated silently: a new one does not have the changes before it, and the gap would go unnoticed
(P37). It is created once, for an empty log; after a loss only when an operator accepts it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import psycopg

from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.errors import ConfigurationError, RightMissing, SourceUnavailable
from cdcflow.sources.postgres.connection import Connection, Connector, history_lost, literal, map_error, mapping_errors
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.platforms import platform_of
from cdcflow.sources.postgres.publication import blocker
from cdcflow.sources.postgres.recovery import end_of_log, is_standby

PLUGIN = "pgoutput"

_CONFLICTS = {
    "rows_removed": ": the primary removed rows of its catalog that the standby's slot needed; set "
    "hot_standby_feedback = on and primary_slot_name at the standby",
    "wal_level_insufficient": ": wal_level was lowered at the primary",
    "conflict": ": the primary removed rows of its catalog that the standby's slot needed, or lowered its wal_level",
}
"""The reasons for which a standby invalidates a slot, each with its meaning as the end of a sentence."""

_SLOT = """
SELECT slot_name, plugin, slot_type, database, active_pid, confirmed_flush_lsn::text, restart_lsn::text, wal_status,
       to_jsonb(s) ->> 'invalidation_reason', coalesce((to_jsonb(s) ->> 'conflicting')::bool, false),
       coalesce((to_jsonb(s) ->> 'failover')::bool, false), coalesce((to_jsonb(s) ->> 'synced')::bool, false),
       temporary, coalesce((to_jsonb(s) ->> 'two_phase')::bool, false)
FROM pg_catalog.pg_replication_slots s WHERE slot_name = %s
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot in pg_replication_slots. `confirmed` and `restart` are None while the slot is being created, and once it
    is lost. `two_phase`: the server sends prepared transactions before they are committed, in other messages."""

    name: str
    plugin: str | None
    type: str
    database: str | None
    active_pid: int | None
    confirmed: Lsn | None
    restart: Lsn | None
    wal_status: str | None
    invalidation: str | None
    conflicting: bool
    failover: bool
    synced: bool
    temporary: bool
    two_phase: bool

    @property
    def is_lost(self) -> bool:
        return self.wal_status == "lost" or self.conflicting or self.invalidation is not None

    @property
    def is_discarded(self) -> bool:
        """Whether the server invalidated the slot because it kept too much log, or for too long."""
        reasons = (None, "wal_removed", "idle_timeout")
        return self.is_lost and not self.conflicting and self.invalidation in reasons

    def check_kind(self, database: str) -> None:
        """Raise ConfigurationError if this is a slot for another database or plugin."""
        if self.type != "logical" or self.plugin != PLUGIN:
            raise ConfigurationError(
                f"replication slot {self.name} does not belong to cdcflow: it is {self.type}, plugin "
                f"{self.plugin or 'none'}",
                remedy="set source.slot to another name",
                runbook="slot-unusable",
            )
        if self.database != database:
            raise ConfigurationError(
                f"replication slot {self.name} belongs to database {self.database}, not {database}",
                remedy="set source.slot to another name",
                runbook="slot-unusable",
            )

    def check_whole(self, position: Lsn) -> None:
        """Check that the server still has everything since `position`.

        Raises:
            HistoryLost: the slot was invalidated, or another process moved it past `position` (P36, P38).
        """
        if self.is_lost:
            reason = self.invalidation or ("conflict" if self.conflicting else "wal_status = lost")
            why = _CONFLICTS.get(reason, "")
            raise history_lost(f"slot {self.name} was invalidated ({reason}{why}); the log since {position} is gone")
        if self.confirmed is not None and self.confirmed > position:
            raise history_lost(
                f"slot {self.name} is at {self.confirmed}, the change log ends at "
                f"{position}: the server gave {self.confirmed - position} bytes of changes in "
                f"between to another client, or the slot was recreated. If a copy of this log is captured elsewhere, "
                f"that daemon has them: do not start this one",
            )


def read(connection: Connection, name: str) -> Slot | None:
    row = connection.execute(_SLOT, (name,)).fetchone()
    if row is None:
        return None
    fields = list(row)
    fields[5:7] = [None if text is None else Lsn.parse(text) for text in row[5:7]]
    return Slot(*fields)


_LEFT = f"""
SELECT slot_name, pg_catalog.pg_wal_lsn_diff({end_of_log("pg_current_wal_lsn")}, restart_lsn)::bigint
FROM pg_catalog.pg_replication_slots
WHERE slot_name ~ '^cdcflow_[0-9a-f]{{8}}$' AND slot_name <> %s AND slot_type = 'logical' AND plugin = %s
  AND database = current_database() AND NOT active AND NOT temporary AND restart_lsn IS NOT NULL
ORDER BY slot_name
"""  # noqa: S608  constants


def left_behind(connection: Connection, ours: str) -> list[Finding]:
    """Return findings about slots that other logs of cdcflow created in this database and that no process reads."""
    return [
        Finding(
            "warning",
            f"slot {name}",
            f"another log of cdcflow created it, no daemon reads it, and the server keeps {held} bytes of WAL for it",
            f"if that log no longer exists, run SELECT pg_drop_replication_slot({literal(name)});",
        )
        for name, held in connection.execute(_LEFT, (ours, PLUGIN)).fetchall()
    ]


_HOLDER = """
SELECT a.pid, a.application_name, coalesce(pg_catalog.host(a.client_addr), 'the server itself')
FROM pg_catalog.pg_replication_slots s JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s
"""


def end_reader(connection: Connection, name: str) -> None:
    """End the session that reads the slot, if one does: a suspended daemon's session would keep it indefinitely.

    If the right to do so is missing, the session remains, and the server ends that of a dead daemon after
    wal_sender_timeout.
    """
    found = read(connection, name)
    if found is not None and found.active_pid is not None:
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (found.active_pid,))


def slot_in_use(connector: Connector, name: str, error: psycopg.Error) -> SourceUnavailable:
    """Return the error for a slot that another process reads, with that process and what to do. It may also be a dead
    daemon's, for a while."""
    who = "it is active for another process"
    with contextlib.suppress(SourceUnavailable, ConfigurationError, psycopg.Error):
        connection = connector.connect("slot")
        try:
            if (row := connection.execute(_HOLDER, (name,)).fetchone()) is not None:
                who = f"it is active for PID {row[0]}, which is {row[1] or 'an unnamed program'} at {row[2]}"
        finally:
            connector.discard(connection)
    return SourceUnavailable(
        f"acquiring slot {name}: {who} (SQLSTATE {error.sqlstate})",
        remedy="the server ends the connection of a daemon that died after wal_sender_timeout. Otherwise another daemon"
        " reads this slot: if its settings have another log.path, set another source.slot in one of them; if it "
        "captures"
        " into a copy of this log, do not start this one",
        runbook="slot-in-use",
    )


def creation(version: int, name: str, *, failover: bool) -> str:
    """Return the SQL that creates the slot."""
    extra = ", failover => true" if failover and version >= 170000 else ""
    return f"SELECT pg_create_logical_replication_slot({literal(name)}, '{PLUGIN}', false, false{extra})"


def create(connector: Connector, name: str, *, failover: bool, timeout_s: float) -> Lsn:
    """Create the slot and return the position from which it has everything.

    The server first waits until every transaction that runs now has ended (P34). An attempt that takes too long, or
    whose connection is cut off by `Connector.close`, leaves nothing on the server: it drops the unfinished slot with
    the statement.

    Raises:
        SourceUnavailable: a transaction is in the way; the message names it.
        ConfigurationError: no right to, or no room for another slot.
    """
    connection = connector.connect("slot", statement_timeout=str(int(timeout_s * 1000)), lock_timeout="0")
    # Without this setting a waiting server does not notice a lost connection, and keeps the unfinished slot until the
    # timeout.
    with contextlib.suppress(psycopg.errors.InvalidParameterValue):  # not every platform can
        connection.execute("SET client_connection_check_interval = '500ms'")
    try:
        connection.execute(creation(connection.info.server_version, name, failover=failover).encode())
    except psycopg.errors.QueryCanceled:
        connection.execute("SET statement_timeout = '30s'")
        if is_standby(connection):
            raise _no_snapshot(name, timeout_s) from None
        raise SourceUnavailable(
            f"creating slot {name}: an older transaction did not end in {timeout_s:g} s; {blocker(connection)}",
            remedy="let it end, or end it with SELECT pg_terminate_backend(pid); cdcflow tries again",
            runbook="old-transaction",
        ) from None
    except psycopg.errors.InsufficientPrivilege:
        raise ConfigurationError(
            f"the user of source.url may not make slot {name}",
            remedy=platform_of(connection).replication_remedy(connection.info.user).text,
            runbook="right-missing",
        ) from None
    except psycopg.errors.ConfigurationLimitExceeded:
        raise ConfigurationError(
            f"creating slot {name}: the server has no room for another slot",
            remedy="raise max_replication_slots and restart, or drop one that pg_replication_slots shows as unused",
            runbook="server-full",
        ) from None
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise ConfigurationError(
            f"creating slot {name}: {error.diag.message_primary}",
            remedy=platform_of(connection).logical_remedy().text,
            runbook="server-settings",
        ) from None
    except psycopg.Error as error:
        raise map_error(error, f"creating slot {name}") from None
    else:
        with mapping_errors(f"checking slot {name}"):
            made = read(connection, name)
        if made is None or made.confirmed is None:
            raise SourceUnavailable(f"slot {name} was dropped just after cdcflow created it")
        return made.confirmed
    finally:
        connector.discard(connection)


def _no_snapshot(name: str, waited_s: float) -> SourceUnavailable:
    """Return the error for a slot on a standby whose creation waits for the primary."""
    return SourceUnavailable(
        f"creating slot {name}: no usable list of running transactions arrived at the standby in {waited_s:g} s. The "
        "primary logs one every 15 s or so while something is written; the transactions in it must end, too",
        remedy="run SELECT pg_log_standby_snapshot() on the primary while cdcflow tries again",
        runbook="slot-on-a-standby",
    )


def remove(connection: Connection, name: str, *, is_ours: bool) -> Dropped:
    """Drop a log's slot. A slot that the log never used is not changed.

    Raises:
        ConfigurationError: another process reads from the slot, or the slot is for something else.
    """
    subject, found = f"slot {name}", read(connection, name)
    if found is None:
        return Dropped(subject, "absent")
    sql = f"SELECT pg_drop_replication_slot({literal(name)});"
    if not is_ours:
        return Dropped(subject, "left", "the settings name it, and this log never used it", sql)
    found.check_kind(connection.info.dbname)
    try:
        drop(connection, name, timeout_s=5.0)
    except RightMissing as error:
        return Dropped(subject, "left", str(error).splitlines()[0], sql)
    except (SourceUnavailable, ConfigurationError):
        busy = read(connection, name)
        if busy is None or busy.active_pid is None:
            raise
        raise ConfigurationError(
            f"slot {name} is in use: process {busy.active_pid} of the server sends from it",
            remedy="stop the daemon that reads it, maybe on another machine; then drop again",
            runbook="slot-unusable",
        ) from None
    return Dropped(subject, "removed")


def drop(connection: Connection, name: str, timeout_s: float = 30.0) -> None:
    """Drop the slot; wait while a dead consumer's connection still holds it."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with_name = f"SELECT pg_drop_replication_slot({literal(name)})"
            connection.execute(with_name.encode())
        except psycopg.errors.UndefinedObject:
            return
        except psycopg.errors.ObjectInUse as error:
            if time.monotonic() > deadline:
                raise map_error(error, f"dropping slot {name}") from None
            time.sleep(0.1)
        except psycopg.Error as error:
            raise map_error(error, f"dropping slot {name}") from None
        else:
            return
