"""Identifies the server, and checks that it is the one, with the same history, that a log was captured from.

The checkpoint keeps `system_id`, `timeline` and `database`. A server that was promoted or restored continues with a new
timeline; it is accepted if that timeline left the old one after the change log's position.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.sources.postgres import slot
from cdcflow.sources.postgres.connection import (
    Connection,
    Connector,
    behind_pooler,
    history_lost,
    literal,
    mapping_errors,
    query_row,
)
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.platforms import platform_of
from cdcflow.sources.postgres.stored_state import PostgresState


@dataclass(frozen=True, slots=True)
class IdentifiedSystem:
    """The server and the end of its log, from IDENTIFY_SYSTEM."""

    system_id: str
    timeline: int
    end: Lsn
    database: str


def identify(connector: Connector) -> IdentifiedSystem:
    """Query the server's identity and the end of its log."""
    connection = connector.replicate()
    try:
        with mapping_errors(f"identifying {connector.address}"):
            try:
                row = query_row(connection, "IDENTIFY_SYSTEM")
            except psycopg.errors.SyntaxError:
                # Supavisor drops the parameter `replication` silently, and gives an ordinary session.
                raise behind_pooler(connector.address, "it does not speak the replication protocol") from None
            return IdentifiedSystem(row[0], int(row[1]), Lsn.parse(row[2]), row[3])
    finally:
        connector.discard(connection)


def decodes(level: str, effective: str | None) -> bool:
    """Whether a server with this `wal_level` decodes changes, or will from its first slot onwards.

    `effective` is its `effective_wal_level`, None before PostgreSQL 19: since that version a server of level `replica`
    switches to `logical` when the first logical slot is created, without a restart, and stays there while one exists.
    """
    return level == "logical" or (level == "replica" and effective is not None)


def check_server(connection: Connection) -> None:
    """Raise ConfigurationError if no capture can run at this server."""
    level, effective = query_row(
        connection, "SELECT current_setting('wal_level'), current_setting('effective_wal_level', true)"
    )
    if not decodes(level, effective):
        raise ConfigurationError(
            f"the server has wal_level = {level}, which does not log what a stream of changes needs",
            remedy=platform_of(connection).logical_remedy().text,
            runbook="server-settings",
        )


_SET_BACK = "set source.url back, or set another log.path for this source"
_READ_AGAIN = "run `cdcflow run --accept-history-loss`, which reads all tables again"


def check_database(connection: Connection, before: PostgresState, system: IdentifiedSystem) -> None:
    """Check that this is the database that the log belongs to, whatever its name is now: the one that the log's slot is
    in."""
    if before.system_id == system.system_id:
        where = _slot_is_in(connection, before)
        if where is not None and where != system.database:
            raise _slot_elsewhere(before, system, where)
        if where is not None or before.database == system.database:
            return
    is_same_name = before.database == system.database
    is_same_server = before.system_id == system.system_id
    remedy = _SET_BACK
    if not is_same_server:
        remedy += "; if the server was upgraded, restored from a dump, or replaced by a copy, run `cdcflow move`, "
        remedy += "which continues there and compares the tables where it must"
        remedy += f"; or {_READ_AGAIN}" if is_same_name else ""
    else:
        remedy += f"; if {system.database} has taken the place of {before.database}, {_READ_AGAIN}"
    raise ConfigurationError(
        f"this log belongs to database {before.database} of server {before.system_id}, but "
        f"source.url is database {system.database} of server {system.system_id}",
        remedy=remedy,
        runbook="other-log",
    )


def is_replaced(connection: Connection, before: PostgresState, system: IdentifiedSystem) -> bool:
    """Whether another database has replaced the log's, for an operator who accepts that history is lost. Such a
    database is on another server and has the same name, or is on the same server.

    Raises:
        ConfigurationError: this database is neither; or the log's slot still exists in another database, and would be
            left over.
    """
    if before.system_id != system.system_id:
        if before.database != system.database:
            check_database(connection, before, system)
        return True
    where = _slot_is_in(connection, before)
    if where is not None and where != system.database:
        raise _slot_elsewhere(before, system, where)
    return where is None and before.database != system.database


def _slot_is_in(connection: Connection, before: PostgresState) -> str | None:
    """Return the database that the log's slot is in; None if no slot of that name decodes one database's changes."""
    found = slot.read(connection, before.slot)
    return None if found is None else found.database


def _slot_elsewhere(before: PostgresState, system: IdentifiedSystem, where: str) -> ConfigurationError:
    name = before.slot
    return ConfigurationError(
        f"this log belongs to database {where}, which its slot {name} is in; but source.url is "
        f"database {system.database}",
        remedy=f"set source.url to database {where}; or, if {system.database} has taken its place, connect to {where} "
        f"and run SELECT pg_drop_replication_slot({literal(name)}); then {_READ_AGAIN}",
        runbook="other-log",
    )


def check_history(
    connector: Connector, connection: Connection, before: PostgresState, system: IdentifiedSystem, position: Lsn
) -> None:
    """Check that this is the log's database, and that its history has everything up to `position`.

    Raises:
        HistoryLost: the server's history lacks something. ConfigurationError: it is not the log's database.
    """
    check_database(connection, before, system)
    if system.timeline != before.timeline:
        switch = _switch_point(connector, system.timeline, before.timeline)
        if switch is None or switch < position:
            raise history_lost(
                f"the server was restored or promoted to timeline {system.timeline}, which branched off before "
                f"{position}: changes that the change log has never happened there",
                runbook="restored-source",
            )
    if system.end < position:
        raise history_lost(
            f"the server's log ends at {system.end}, before the change log's position "
            f"{position}: it was restored from an older state",
            runbook="restored-source",
        )


def _switch_point(connector: Connector, timeline: int, before: int) -> Lsn | None:
    """Return where this timeline's history leaves the timeline `before`; None if it does not descend from it."""
    connection = connector.replicate()
    try:
        with mapping_errors(f"reading the history of timeline {timeline}"):
            row = connection.execute(f"TIMELINE_HISTORY {timeline}".encode()).fetchone()
    except SourceUnavailable:
        if timeline == 1:
            return None  # the first timeline has no history
        raise
    finally:
        connector.discard(connection)
    text = "" if row is None else row[1]
    lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
    for line in lines:
        words = line.split("\t")
        if len(words) >= 2 and words[0].strip() == str(before):
            return Lsn.parse(words[1])
    return None
