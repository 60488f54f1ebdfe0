"""Moves a log to the server at another address: finds out what that server is, and whether it has every change.

    same      the log's own system: another address, a new name of the database, a promoted standby
    upgraded  the log's system after pg_upgrade, with the slot that it carried over (see `upgraded`)
    other     a server with the same tables: a logical replica, a restored dump, pg_upgrade without its slot

A gap is no obstacle: the log continues at a new position, and the tables are compared. A move that cannot be right is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdcflow.capture.ports.moves import Target
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.sources.engine.moves import COMPARISON, first_line, lagging
from cdcflow.sources.postgres import publication, slot
from cdcflow.sources.postgres.connection import Connection, Connector, literal, query_row
from cdcflow.sources.postgres.identity import IdentifiedSystem, check_database, check_history
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.slot import Slot
from cdcflow.sources.postgres.slot_names import Names
from cdcflow.sources.postgres.stored_state import PostgresState
from cdcflow.sources.postgres.unbroken import check_names, check_unbroken
from cdcflow.sources.postgres.upgraded import NotProven, check_carried

_OLDEST = """
SELECT max(extract(epoch FROM clock_timestamp() - xact_start))::bigint FROM pg_catalog.pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Route:
    """The relation of the server at the address to the log. `text`: how that is known, or why there will be a gap.
    `carried`: the position at which the log continues, if an upgrade carried its slot over."""

    kind: Target
    has_gap: bool
    text: str
    carried: Lsn | None = None


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds the route of one log to the server of `connection`. `before` and `position`: those of the log's
    checkpoint."""

    connector: Connector
    connection: Connection
    before: PostgresState
    names: Names
    system: IdentifiedSystem
    position: Lsn
    known_state: str

    def find(self, *, compares: bool) -> Route:
        """Return the route. `compares`: an operator requests a gap, whatever changes the server has.

        Raises:
            ConfigurationError: the log cannot continue there.
        """
        check_names(self.before, self.names)
        ours = slot.read(self.connection, self.names.slot)
        if ours is not None:
            _check_free(ours)
        if self.system.system_id == self.before.system_id:
            return self._of_same_system(ours, compares=compares)
        return self._of_other_system(ours, compares=compares)

    def _of_same_system(self, ours: Slot | None, *, compares: bool) -> Route:
        check_database(self.connection, self.before, self.system)
        try:
            check_history(self.connector, self.connection, self.before, self.system, self.position)
        except HistoryLost as error:
            if not compares:
                raise lagging(error) from None
            return Route("same", True, first_line(error))
        if compares:
            return Route("same", True, COMPARISON)
        try:
            check_unbroken(
                self.connector,
                self.connection,
                self.position,
                self.before,
                self.names,
                self.system,
                ours,
                self.known_state,
            )
        except HistoryLost as error:
            return Route("same", True, first_line(error))
        return Route("same", False, f"it has slot {self.names.slot}, and everything since {self.position}")

    def _of_other_system(self, ours: Slot | None, *, compares: bool) -> Route:
        if ours is not None:
            _check_purpose(ours, self.system.database)
        if compares:
            return Route("other", True, COMPARISON)
        found = publication.read(self.connection, self.names.publication)
        try:
            carried = check_carried(
                self.connector, self.connection, self.before, self.system, self.position, ours, found
            )
        except NotProven as why:
            return Route("other", True, f"that pg_upgrade carried the slot over is not proven: {why}")
        text = f"pg_upgrade carried slot {self.names.slot} over, and no transaction wrote anything before its position"
        return Route("upgraded", False, text, carried)


def _check_free(found: Slot) -> None:
    if found.active_pid is not None:
        raise ConfigurationError(
            f"slot {found.name} is in use there: process {found.active_pid} of the server sends from it",
            remedy="stop the daemon that reads it, maybe on another machine; then run `cdcflow move` again",
            runbook="move",
        )


def _check_purpose(found: Slot, database: str) -> None:
    """Check that a slot at another server may be replaced."""
    if (found.type, found.plugin, found.database) == ("logical", slot.PLUGIN, database):
        return
    what = found.type if found.plugin is None else f"{found.type}, plugin {found.plugin}, database {found.database}"
    raise ConfigurationError(
        f"slot {found.name} exists there for another purpose ({what})",
        remedy=f"if nothing needs it, run SELECT pg_drop_replication_slot({literal(found.name)}) there; then run "
        "`cdcflow move` again",
        runbook="move",
    )


def steps(connection: Connection, names: Names, route: Route) -> list[str]:
    """Describe what a move along this route creates and changes, for operators."""
    if not route.has_gap:
        return ["the log records the server"]
    found = [f"slot {names.slot} is created there" + _replaces(connection, names.slot)]
    if publication.read(connection, names.publication) is None:
        found.insert(0, f"publication {names.publication} is created there")
    else:
        found.insert(0, f"publication {names.publication} is used, and gets the tables that it lacks")
    (oldest,) = query_row(connection, _OLDEST)
    if oldest is not None and oldest > 0:
        found.append(f"the slot waits for transactions that run there now; the oldest is {oldest} s old")
    return [*found, "the log records the server, and a gap after its end"]


def _replaces(connection: Connection, name: str) -> str:
    return "" if slot.read(connection, name) is None else ", in place of the one of that name"


def is_no_target() -> ConfigurationError:
    return ConfigurationError(
        "the server is a standby: a move creates a publication and a slot, which it does at a primary only",
        remedy="promote the standby first; or move to the primary",
        runbook="move",
    )


def server_text(system_id: str, database: str, version: int | None, timeline: int) -> str:
    """Describe a server for operators."""
    name = "PostgreSQL" if version is None else f"PostgreSQL {version}"
    return f"{name}, database {database}, system {system_id}, timeline {timeline}"
