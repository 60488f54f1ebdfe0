"""Which server this is, and whether it is the one that a log belongs to, with the history that the log was made from.

The checkpoint keeps `system_id`, `timeline` and `database` in `source`. A server that was promoted or restored goes on
with another timeline; it is ours as long as that one left the old one behind our position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.sources.postgres.connection import Connection, Connector, history_lost, mapping_errors
from cdcflow.sources.postgres.lsn import lsn_of, position_of


@dataclass(frozen=True, slots=True)
class IdentifiedSystem:
    """The server and where its log ends, as IDENTIFY_SYSTEM says it."""

    system_id: str
    timeline: int
    end: int
    database: str


def identify(connector: Connector) -> IdentifiedSystem:
    """Ask the server who it is, now."""
    connection = connector.replicate()
    try:
        with mapping_errors(f"identifying {connector.address}"):
            row = connection.execute("IDENTIFY_SYSTEM").fetchone()
            assert row is not None  # noqa: S101  the command's only row
            return IdentifiedSystem(row[0], int(row[1]), lsn_of(row[2]), row[3])
    finally:
        connector.discard(connection)


def check_server(connection: Connection) -> None:
    """That a capture can run at this server at all. Raises ConfigurationError when it cannot."""
    row = connection.execute("SELECT current_setting('wal_level'), pg_catalog.pg_is_in_recovery()").fetchone()
    assert row is not None  # noqa: S101  one row by construction
    if row[1]:
        raise ConfigurationError(
            "the server is a standby: a backfill writes marks, which only a primary accepts",
            remedy="point source.url at the primary",
            runbook="read-only-source",
        )
    if row[0] != "logical":
        raise ConfigurationError(
            f"the server has wal_level = {row[0]}, which leaves out what a stream of changes needs",
            remedy="run ALTER SYSTEM SET wal_level = logical, and restart the server",
            runbook="server-settings",
        )


def check_database(connector: Connector, before: Mapping[str, str], system: IdentifiedSystem) -> None:
    """That this is the database that the log belongs to. `before`: the checkpoint's `source`."""
    if (before.get("system_id"), before.get("database")) != (system.system_id, system.database):
        raise ConfigurationError(
            f"this log belongs to database {before.get('database')} of server {before.get('system_id')}, but "
            f"{connector.address} is database {system.database} of server {system.system_id}",
            remedy="set source.url back, or set another log.path for this source",
            runbook="other-log",
        )


def check_history(connector: Connector, before: Mapping[str, str], system: IdentifiedSystem, position: int) -> None:
    """That this is the log's database, and that its history has everything up to `position`.

    Raises:
        HistoryLost, ConfigurationError: it is not, or it has not.
    """
    check_database(connector, before, system)
    if str(system.timeline) != before.get("timeline"):
        switch = _switched(connector, system.timeline, int(before.get("timeline") or 0))
        if switch is None or switch < position:
            raise history_lost(
                f"the server was restored or promoted to timeline {system.timeline}, which left ours before "
                f"{position_of(position)}: changes that the change log has never happened there",
                runbook="restored-source",
            )
    if system.end < position:
        raise history_lost(
            f"the server's log ends at {position_of(system.end)}, before the change log's position "
            f"{position_of(position)}: it was restored from an older state",
            runbook="restored-source",
        )


def _switched(connector: Connector, timeline: int, before: int) -> int | None:
    """Where this timeline's history leaves `before`; None when it does not descend from it."""
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
            return lsn_of(words[1])
    return None
