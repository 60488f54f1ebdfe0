"""The position in the server's log at which to begin: created for a new log, or an earlier run's, checked to be whole.

For a new log, publication and slot are created, or adopted if the settings name them. Those of an earlier run are
checked to be the ones that the log was captured from (`unbroken`, `overlap`), and the publication is repaired for the
currently selected tables. If changes are lost, a new position is created only if an operator accepts the loss.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from cdcflow.capture.ports.source import SourceHistory, TransactionsBack
from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.table import TableId
from cdcflow.sources.engine.moves import lagging
from cdcflow.sources.engine.source import position_to_begin
from cdcflow.sources.postgres import overlap, publication, slot, slot_release
from cdcflow.sources.postgres.catalog import Selected
from cdcflow.sources.postgres.connection import Connection, Connector, query_row
from cdcflow.sources.postgres.identity import IdentifiedSystem, check_history
from cdcflow.sources.postgres.known_tables import captured_now, captured_since, state_of_selected
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.moves import Route
from cdcflow.sources.postgres.recovery import end_of_log
from cdcflow.sources.postgres.slot_names import Names
from cdcflow.sources.postgres.slot_release import ReleaseNote
from cdcflow.sources.postgres.stored_state import PostgresState, captured_names
from cdcflow.sources.postgres.unbroken import check_names, check_publication, check_unbroken

_log = structlog.get_logger()
NEW_TABLE_WAIT_S = 2.0
"""How long all tables wait for transactions that are older than a new table's entry in the publication."""


@dataclass(frozen=True, slots=True)
class PositionAtServer:
    """The position to start at, and the state to store with it. `joining`: the selected tables that are not captured
    yet, because transactions still run that began before the tables were published, each with the id below which these
    transactions are."""

    position: Lsn
    state: PostgresState
    joining: Mapping[TableId, int] = field(default_factory=dict)
    history: SourceHistory = SourceHistory.CONTINUES


@dataclass(frozen=True, slots=True)
class Preparation:
    """One start at one server, through one connection.

    `position` and `before` are those of the log's checkpoint, `selected` the tables to capture. Older transactions may
    take `creation_wait_s` to end before a slot is created, and `older_wait_s` before one is adopted. A new table is
    left for later while they run: the others must not wait for a transaction that takes hours. `is_renamed`: a captured
    table no longer exists, or has another name. `releases`: the slot may have been released to keep a budget, and then
    the capture continues at a new position. `is_standby`: the server is a standby, whose primary has the publication.
    """

    connector: Connector
    connection: Connection
    names: Names
    system: IdentifiedSystem
    selected: Selected
    position: Lsn | None
    before: PostgresState | None
    failover: bool
    creation_wait_s: float
    older_wait_s: float
    is_renamed: bool = False
    releases: bool = False
    is_standby: bool = False

    def prepare(
        self, transactions_back: TransactionsBack | None, *, loss_accepted: bool, replaced: bool = False
    ) -> PositionAtServer:
        """Return the position to start at. With `loss_accepted`, and after a release of the slot, this is a new
        position.

        `replaced`: this is another database, which has taken the place of the log's.

        Raises:
            HistoryLost, ConfigurationError: see `cdcflow.ports.Source.prepare`.
        """
        if self.releases:
            slot_release.ensure_table(self.connection)  # now, not when the disk of the source is nearly full
        if self.position is None or self.before is None:
            return self._first_time()
        if replaced:
            return self._at_new_position()
        if self.releases and not loss_accepted and (note := self._release_note(self.before)) is not None:
            check_names(self.before, self.names)
            check_history(self.connector, self.connection, self.before, self.system, self.position)
            return self._after_release(note)
        again = partial(self._again, self.position, self.before, transactions_back)
        return position_to_begin(again, self._at_new_position, is_loss_accepted=loss_accepted)

    def move(self, route: Route, transactions_back: TransactionsBack | None) -> PositionAtServer:
        """Return where the log continues on a route that was found for it.

        Raises:
            ConfigurationError: the log cannot continue there, because the server was restored from a copy and has
                diverged.
        """
        assert self.position is not None and self.before is not None  # noqa: S101, PT018  a route needs both
        if route.has_gap:
            return replace(self._at_new_position(), history=SourceHistory.MOVED)
        if route.carried is not None:
            found = self._after_upgrade(self.before, route.carried)
        else:
            found = self._at_same_server(self.position, self.before, transactions_back)
        # The note of an earlier release may still exist, so its id is kept: the note counts as used.
        return replace(found, state=replace(found.state, release=self.before.release))

    def _at_same_server(
        self, position: Lsn, before: PostgresState, transactions_back: TransactionsBack | None
    ) -> PositionAtServer:
        try:
            return self._again(position, before, transactions_back)
        except HistoryLost as error:
            raise lagging(error) from None

    def _after_upgrade(self, before: PostgresState, carried: Lsn) -> PositionAtServer:
        """Return the position of a slot that pg_upgrade carried over. The next start captures tables that were added
        since the last one."""
        known = captured_names(before)
        added = [t.rel.id for t in self.selected.tables if t.rel.oid not in known]
        made = replace(self, selected=self.selected.without(added))
        found = made._ensure_publication()
        return PositionAtServer(carried, made._state(carried, found), dict.fromkeys(added, 0))

    def _first_time(self) -> PositionAtServer:
        # The publication first: changes from before it cannot be decoded (P60).
        state = self._ensure_publication()
        found = slot.read(self.connection, self.names.slot)
        if found is not None:
            found.check_kind(self.system.database)
        if found is not None and not self.names.slot_is_ours:
            position = self._adopt_slot(found)
        else:
            if found is not None:
                # The slot has this log's name, and the log is empty: an earlier first start created the slot and ended
                # before it used it.
                slot.drop(self.connection, self.names.slot)
            position = self._create_slot()
        return PositionAtServer(position, self._state(position, state))

    def _at_new_position(self) -> PositionAtServer:
        """Return a new position, because an operator accepted the loss."""
        state = self._ensure_publication()
        found = slot.read(self.connection, self.names.slot)
        if found is not None:
            found.check_kind(self.system.database)
            slot.drop(self.connection, self.names.slot)
        position = self._create_slot()
        made = self._state(position, state)
        if (note := slot_release.find(self.connection, self.names.slot)) is not None:
            made = replace(made, release=note.id)  # otherwise the next start would take a new position once more
        return PositionAtServer(position, made, history=SourceHistory.LOST)

    def _release_note(self, before: PostgresState) -> ReleaseNote | None:
        """Return the note of a release that no start has used yet.

        If the server has invalidated the slot itself, because it kept too much log, note it as released now.
        """
        name = self.names.slot
        found = slot_release.find(self.connection, name)
        if found is not None and found.id == before.release:
            slot_release.forget(self.connection, name, found.id)
            found = None
        ours = slot.read(self.connection, name)
        if found is None and ours is not None and ours.is_discarded:
            why = f"the server invalidated the slot ({ours.invalidation or 'wal_status = lost'})"
            slot_release.note(self.connection, ours, why=why, by="the server")
            found = slot_release.find(self.connection, name)
        return found

    def _after_release(self, note: ReleaseNote) -> PositionAtServer:
        """Return a new position, because the slot was released.

        First finish what a killed process left unfinished: the release itself, or a start after it, which created a
        slot that no checkpoint has.
        """
        slot_release.finish(self.connection, self.names.slot)
        _log.warning("slot released", slot=self.names.slot, why=note.why, by=note.noted_by)
        return replace(self._at_new_position(), history=SourceHistory.RELEASED)

    def _again(
        self, position: Lsn, before: PostgresState, transactions_back: TransactionsBack | None
    ) -> PositionAtServer:
        names = self.names
        known = state_of_selected(before.publication_state, self.selected)
        ours = slot.read(self.connection, names.slot)
        check_unbroken(self.connector, self.connection, position, before, names, self.system, ours, known)
        assert ours is not None  # noqa: S101  `check_unbroken` raises if missing
        if ours.confirmed is None:
            raise SourceUnavailable(f"slot {names.slot} is still being created (it has no position yet)")
        # A log of an earlier cdcflow does not record where it began; then transactions before this start are not
        # compared.
        began = position if before.began_at is None else before.began_at
        since = max(ours.confirmed, began)
        if transactions_back is not None and since < position:
            captured = captured_since(before, self.selected, since)
            overlap.check_same(self.connector, ours, names.publication, since, position, transactions_back, captured)
        state = self._ensure_publication()
        # The publication is checked once more: another process may have repaired it since the first check, which would
        # hide a loss.
        check_publication(self.connection, state, names.publication, known)
        # Compare with what the change log knew, not with the publication before this start: this may be the second
        # attempt, or an operator may have added the tables.
        if state.broad:
            if publication.has_newcomers(known, state.fingerprint(self.selected.tables)):
                publication.wait_for_older(self.connection, self.older_wait_s, "adding tables to the publication")
            return PositionAtServer(position, self._state(position, state, began))
        joining = self._joining(before, publication.newcomers(known, state, self.selected.tables))
        bounds = {entry.table_oid: bound for entry, bound in joining.items()}
        waiting = {t.id: bounds[t.rel.oid] for t in self.selected.tables if t.rel.oid in bounds}
        made = replace(self, selected=self.selected.without(waiting))._state(position, state, began)
        made = replace(made, joining={entry.number: bound for entry, bound in joining.items()})
        return PositionAtServer(position, made, waiting)

    def _joining(
        self, before: PostgresState, new: Sequence[publication.PublishedTable]
    ) -> dict[publication.PublishedTable, int]:
        """Return the entries for which running transactions may have rows that are not decoded.

        Each has the id below which such transactions are.
        """
        if not new:
            return {}
        now = publication.next_transaction(self.connection)
        bounds = {entry: before.joining.get(entry.number, now) for entry in new}
        deadline = time.monotonic() + min(self.older_wait_s, NEW_TABLE_WAIT_S)
        while True:
            oldest = publication.oldest_transaction(self.connection)
            joining = {entry: bound for entry, bound in bounds.items() if bound > oldest}
            if not joining or time.monotonic() > deadline:
                return joining
            time.sleep(0.05)

    def _ensure_publication(self) -> publication.Publication:
        ours = self.names.publication_is_ours
        return publication.ensure(
            self.connection, self.names.publication, self.selected.tables, ours=ours, at_standby=self.is_standby
        )

    def _create_slot(self) -> Lsn:
        return slot.create(self.connector, self.names.slot, failover=self.failover, timeout_s=self.creation_wait_s)

    def _adopt_slot(self, found: slot.Slot) -> Lsn:
        """Adopt a slot that an operator created for cdcflow, at a position after the publication.

        The log is empty, and the backfill reads the earlier rows.
        """
        if found.is_lost or found.confirmed is None:
            raise ConfigurationError(
                f"slot {found.name} has no position to begin at (wal_status {found.wal_status})",
                remedy=f"run SELECT pg_drop_replication_slot('{found.name}'); cdcflow creates it again",
                runbook="slot-unusable",
            )
        if found.two_phase:
            raise ConfigurationError(
                f"slot {found.name} was created with two_phase, so the server sends prepared transactions before their "
                "commit, which cdcflow does not read",
                remedy=f"run SELECT pg_drop_replication_slot('{found.name}'); cdcflow creates it without two_phase",
                runbook="slot-unusable",
            )
        publication.wait_for_older(self.connection, self.older_wait_s, f"adopting slot {found.name}")
        (reached,) = query_row(
            self.connection,
            "SELECT (pg_catalog.pg_replication_slot_advance(%s, "
            f"{end_of_log('pg_current_wal_flush_lsn')})).end_lsn::text",
            (found.name,),
        )
        _log.warning(
            "slot taken over",
            slot=found.name,
            passed=f"what it held since {found.confirmed}",
            remedy="if another log was captured through it, that log has ended: its daemon must not be started again",
        )
        return max(Lsn.parse(reached), found.confirmed)

    def _state(self, position: Lsn, found: publication.Publication, began: Lsn | None = None) -> PostgresState:
        """Return the state of this system to store. `began`: where the change log began in the server's log (None:
        here)."""
        made = PostgresState(
            system_id=self.system.system_id,
            timeline=self.system.timeline,
            database=self.system.database,
            slot=self.names.slot,
            publication=self.names.publication,
            publication_state=found.fingerprint(self.selected.tables),
            began_at=position if began is None else began,
            is_standby=self.is_standby,
            version=self.connection.info.server_version // 10000,
            others={} if self.before is None else self.before.others,
        )
        selected = {t.rel.oid for t in self.selected.tables}
        had_more = self.before is not None and self.before.captured is not None
        # The publication may have sent more than is in the log: other tables, or changes of a table under a name that
        # it has now.
        if had_more or self.is_renamed or found.broad or found.entries.keys() - selected:
            before = None if began is None else self.before
            made = replace(made, captured=captured_now(before, self.selected, position))
        return made
