"""The position in the server's log at which to begin: created for a new log, or an earlier run's, checked to be whole.

For a new log, publication and slot are created, or adopted if the settings name them. Those of an earlier run are
checked to be the ones that the log was captured from (`unbroken`, `overlap`), and the publication is repaired for the
currently selected tables. What was lost stays lost: only an operator who accepts it gets a new position.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from cdcflow.capture.ports.source import SourceHistory, TransactionsBack
from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import TableId
from cdcflow.sources.postgres import overlap, publication, slot
from cdcflow.sources.postgres.catalog import Selected
from cdcflow.sources.postgres.connection import Connection, Connector
from cdcflow.sources.postgres.identity import IdentifiedSystem
from cdcflow.sources.postgres.known_tables import captured_since, captured_text, state_of_selected
from cdcflow.sources.postgres.lsn import lsn_of, position_of
from cdcflow.sources.postgres.naming import Names
from cdcflow.sources.postgres.unbroken import check_publication, check_unbroken

_log = structlog.get_logger()
NEW_TABLE_WAIT_S = 2.0
"""How long all tables wait for transactions that are older than a new table's entry in the publication."""
JOINING = "joining"
"""In a checkpoint's `source`: the entries of new tables whose older transactions had not ended, each with the id below
which they are."""


@dataclass(frozen=True, slots=True)
class PositionAtServer:
    """A checkpoint to start from. `joining`: the selected tables that are not captured yet, because transactions still
    run that began before they were published, each with the id below which these are."""

    checkpoint: Checkpoint
    joining: Mapping[TableId, int] = field(default_factory=dict)
    history: SourceHistory = SourceHistory.CONTINUES


@dataclass(frozen=True, slots=True)
class Preparing:
    """One start at one server, through one connection.

    `before` is the log's checkpoint, `selected` the tables to capture. Older transactions may take `creation_wait_s` to
    end before a slot is created, and `older_wait_s` before one is adopted. A new table is left for later while they
    run: the others must not wait for a transaction that takes hours. `is_renamed`: a captured table no longer exists,
    or has another name.
    """

    connector: Connector
    connection: Connection
    names: Names
    system: IdentifiedSystem
    selected: Selected
    before: Checkpoint
    failover: bool
    creation_wait_s: float
    older_wait_s: float
    is_renamed: bool = False

    def prepare(
        self, transactions_back: TransactionsBack | None, *, loss_accepted: bool, replaced: bool = False
    ) -> PositionAtServer:
        """The checkpoint to start from. With `loss_accepted` always one at a new position; `replaced`: in another
        database, which has taken the place of the log's.

        Raises:
            HistoryLost, ConfigurationError: see `cdcflow.ports.Source.prepare`.
        """
        if self.before.position is None:
            return PositionAtServer(self._first_time())
        if replaced:
            return self._anew()
        try:
            prepared = self._again(lsn_of(self.before.position), transactions_back)
        except HistoryLost:
            if not loss_accepted:
                raise
        return self._anew() if loss_accepted else prepared

    def _first_time(self) -> Checkpoint:
        # The publication first: changes from before it cannot be decoded (P60).
        state = self._ensure_publication()
        found = slot.read(self.connection, self.names.slot)
        if found is not None:
            found.check_kind(self.system.database)
        if found is not None and not self.names.slot_is_ours:
            position = self._adopt_slot(found)
        else:
            if found is not None:
                # It bears our log's name and the log is empty: a first start that did not get far enough to use it.
                slot.drop(self.connection, self.names.slot)
            position = self._create_slot()
        return self._checkpoint_at(position, state)

    def _anew(self) -> PositionAtServer:
        """A new position, because an operator accepted the loss."""
        state = self._ensure_publication()
        found = slot.read(self.connection, self.names.slot)
        if found is not None:
            found.check_kind(self.system.database)
            slot.drop(self.connection, self.names.slot)
        return PositionAtServer(self._checkpoint_at(self._create_slot(), state), history=SourceHistory.LOST)

    def _again(self, position: int, transactions_back: TransactionsBack | None) -> PositionAtServer:
        before, names = self.before.source, self.names
        known = state_of_selected(before["publication_state"], self.selected)
        ours = slot.read(self.connection, names.slot)
        check_unbroken(self.connector, self.connection, self.before, names, self.system, ours, known)
        assert ours is not None  # noqa: S101  `check_unbroken` raises if missing
        if ours.confirmed is None:
            raise SourceUnavailable(f"slot {names.slot} is still being created (it has no position yet)")
        # A log of an earlier cdcflow does not record where it began: what is before this start is not compared.
        began = lsn_of(before["began_at"]) if "began_at" in before else position
        since = max(ours.confirmed, began)
        if transactions_back is not None and since < position:
            captured = captured_since(before, self.selected, since)
            overlap.check_same(self.connector, ours, names.publication, since, position, transactions_back, captured)
        state = self._ensure_publication()
        # Again: between the two reads it may have been repaired, which would hide a loss.
        check_publication(self.connection, state, names.publication, known)
        # Compare with what the change log knew, not with the publication before this start: this may be the second
        # attempt, or an operator may have added the tables.
        if state.broad:
            if publication.has_newcomers(known, state.fingerprint(self.selected.tables)):
                publication.wait_for_older(self.connection, self.older_wait_s, "adding tables to the publication")
            return PositionAtServer(self._checkpoint_at(position, state, began))
        joining = self._joining(publication.newcomers(known, state, self.selected.tables))
        bounds = {entry.table_oid: bound for entry, bound in joining.items()}
        waiting = {t.id: bounds[t.rel.oid] for t in self.selected.tables if t.rel.oid in bounds}
        made = replace(self, selected=self.selected.without(waiting))._checkpoint_at(position, state, began)
        if joining:
            told = json.dumps({str(entry.number): bound for entry, bound in joining.items()}, separators=(",", ":"))
            made = replace(made, source={**made.source, JOINING: told})
        return PositionAtServer(made, waiting)

    def _joining(self, new: Sequence[publication.PublishedTable]) -> dict[publication.PublishedTable, int]:
        """Those of these entries that transactions may have rows for which are not decoded, each with the id below
        which such transactions are."""
        if not new:
            return {}
        told = json.loads(self.before.source.get(JOINING, "{}"))
        now = publication.next_transaction(self.connection)
        bounds = {entry: told.get(str(entry.number), now) for entry in new}
        deadline = time.monotonic() + min(self.older_wait_s, NEW_TABLE_WAIT_S)
        while True:
            oldest = publication.oldest_transaction(self.connection)
            joining = {entry: bound for entry, bound in bounds.items() if bound > oldest}
            if not joining or time.monotonic() > deadline:
                return joining
            time.sleep(0.05)

    def _ensure_publication(self) -> publication.Publication:
        ours = self.names.publication_is_ours
        return publication.ensure(self.connection, self.names.publication, self.selected.tables, ours=ours)

    def _create_slot(self) -> int:
        return slot.create(self.connector, self.names.slot, failover=self.failover, timeout_s=self.creation_wait_s)

    def _adopt_slot(self, found: slot.Slot) -> int:
        """Adopt a slot that an operator created for cdcflow, at a position after the publication: the log is empty, and
        the backfill reads the earlier rows."""
        if found.is_lost or found.confirmed is None:
            raise ConfigurationError(
                f"slot {found.name} has no position to begin at (wal_status {found.wal_status})",
                remedy=f"run SELECT pg_drop_replication_slot('{found.name}'); cdcflow creates it again",
                runbook="slot-unusable",
            )
        publication.wait_for_older(self.connection, self.older_wait_s, f"adopting slot {found.name}")
        row = self.connection.execute(
            "SELECT (pg_catalog.pg_replication_slot_advance(%s, pg_catalog.pg_current_wal_flush_lsn())).end_lsn::text",
            (found.name,),
        ).fetchone()
        assert row is not None  # noqa: S101  a function's result
        _log.warning(
            "slot taken over",
            slot=found.name,
            passed=f"what it held since {position_of(found.confirmed)}",
            remedy="if another log was captured through it, that log has ended: its daemon must not be started again",
        )
        return max(lsn_of(row[0]), found.confirmed)

    def _checkpoint_at(self, position: int, state: publication.Publication, began: int | None = None) -> Checkpoint:
        """A checkpoint for this system. `began`: where the change log began in the server's log (None: here)."""
        kept = {k: v for k, v in self.before.source.items() if k not in ("captured", JOINING)}
        ours = {
            "system_id": self.system.system_id,
            "timeline": str(self.system.timeline),
            "database": self.system.database,
            "slot": self.names.slot,
            "publication": self.names.publication,
            "publication_state": state.fingerprint(self.selected.tables),
            "began_at": position_of(position if began is None else began),
        }
        selected = {t.rel.oid for t in self.selected.tables}
        # Of a table that has another name now not all that the publication gave is in our log.
        gives_more = state.broad or state.entries.keys() - selected
        if gives_more or self.is_renamed or "captured" in self.before.source:
            before = self.before.source if began is not None else {}
            ours["captured"] = captured_text(before, self.selected, position_of(position))
        return replace(self.before, position=position_of(position), source={**kept, **ours})
