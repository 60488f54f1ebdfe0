"""PostgreSQL behind `cdcflow.ports.Source`: slot and publication made and checked, stream and chunks opened.

What the checkpoint keeps in `source`: the server's identity (`system_id`, `timeline`, `database`), the names `slot`
and `publication`, the publication's `publication_state` (see `publication.fingerprint`), `policies` and `reread`
(`engine.policies`), and `began_at`, the position where the slot was made for this log. With them a restart can tell
whether the position in the server's log is still ours and nothing went by unseen. When it cannot, it stops with
`HistoryLost`. `accept_history_loss` = "yes" in `source` always begins at a new position, and nothing else does; then
`history` = "lost" comes back in it, so that the caller reads all tables anew.
"""

from __future__ import annotations

import hashlib
import json
import string
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from cdcflow.config import Postgres
from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.interleave.messages import RowsCompared
from cdcflow.model import rereading
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.ports import (
    ChunkSource,
    Dropped,
    Finding,
    OpenSpool,
    Preview,
    Sample,
    SourceStatus,
    Stream,
    TablePreview,
    TransactionsBack,
)
from cdcflow.sources.engine import policies
from cdcflow.sources.engine.chunks import Chunks
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.findings import of_error, ok
from cdcflow.sources.engine.selection import Selection, not_there
from cdcflow.sources.postgres import estimates, overlap, publication, sampling, slot
from cdcflow.sources.postgres.catalog import Catalog, Relid, Selected, select
from cdcflow.sources.postgres.catch_up import CatchingUp, Windows, backlog_of
from cdcflow.sources.postgres.chunks import CHUNK_BYTES_MAX, PostgresChunks, mark_prefix
from cdcflow.sources.postgres.connection import Connection, Connector, Secret, history_lost, mapping_errors
from cdcflow.sources.postgres.lsn import lsn_of, position_of
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder, Relation
from cdcflow.sources.postgres.rewrites import RowVersions
from cdcflow.sources.postgres.stream import NeedsText, PostgresStream
from cdcflow.sources.postgres.types import DescribedTable, Policy

CREATION_WAIT_S = 60.0
OLDER_WAIT_S = 60.0
LOOK_UP_AGAIN_S = 2.0
WINDOWS = Windows()


@dataclass(frozen=True, slots=True)
class Names:
    """What slot and publication are called, and whether by us: then nobody else's is ever taken, and ours is mended."""

    slot: str
    publication: str
    slot_is_ours: bool
    publication_is_ours: bool

    @classmethod
    def of(cls, settings: Postgres, log_id: str) -> Names:
        made = made_name(log_id)
        return cls(
            settings.slot or made, settings.publication or made, settings.slot is None, settings.publication is None
        )


def made_name(log_id: str) -> str:
    """What slot and publication are called when the settings do not say it."""
    return f"cdcflow_{_eight_hex(log_id)}"


def _eight_hex(log_id: str) -> str:
    plain = log_id.replace("-", "").lower()
    if len(plain) >= 8 and all(c in string.hexdigits for c in plain):
        return plain[:8]
    return hashlib.sha256(log_id.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class IdentifiedSystem:
    """The server and where its log ends, as IDENTIFY_SYSTEM says it."""

    system_id: str
    timeline: int
    end: int
    database: str


class PostgresSource:
    """Implements `cdcflow.ports.Source`. Nothing is connected before it is asked something.

    `secret` gives the password, anew for every connection; None: the server wants none. `windows` says when a backlog
    is caught up through SQL, and how.
    """

    def __init__(
        self,
        settings: Postgres,
        secret: Secret,
        *,
        creation_wait_s: float = CREATION_WAIT_S,
        older_wait_s: float = OLDER_WAIT_S,
        windows: Windows = WINDOWS,
        chunk_bytes_max: int = CHUNK_BYTES_MAX,
    ) -> None:
        self._settings = settings
        self._windows = windows
        self._chunk_bytes_max = chunk_bytes_max
        self._connector = Connector(settings.url, secret)
        self._policy = Policy.of(settings)
        self._selection = Selection.parse(settings.tables)
        self._catalog = Catalog(self._connector, self._selection, self._policy)
        self._row_versions = RowVersions(self._catalog)
        self._creation_wait_s = creation_wait_s
        self._older_wait_s = older_wait_s
        self._prepared: frozenset[TableId] | None = None
        self._oids: Mapping[TableId, int] = {}
        self._left_out: tuple[TableId, ...] = ()
        self._checkpoint: Checkpoint | None = None
        self._looked_up: tuple[float, Mapping[TableId, Relid]] = (0.0, {})
        self._described: tuple[DescribedTable, ...] | None = None
        self._has_binary: bool | None = None

    # ── cdcflow.ports.Source ────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        system = self._identify_system()
        return SourceIdentity("postgres", system.system_id, system.database, str(system.timeline))

    def prepare(
        self, checkpoint: Checkpoint, log_id: str, transactions_back: TransactionsBack | None = None
    ) -> Checkpoint:
        names = Names.of(self._settings, log_id)
        accepted = checkpoint.source.get("accept_history_loss") == "yes"
        system = self._identify_system()
        connection = self._connector.connect("prepare", statement_timeout="60s")
        try:
            with mapping_errors(f"preparing {self._connector.address}"):
                _check_server(connection)
                selected = select(connection, self._selection, self._policy)
                if checkpoint.position is not None:
                    known = frozenset(_names(checkpoint.source).values())
                    selected, self._left_out = selected.for_restart(known, self._selection)
                selected.check()
                if checkpoint.position is None:
                    prepared = self._first_time(connection, checkpoint, names, system, selected)
                else:
                    try:
                        prepared = self._again(connection, checkpoint, names, system, selected, transactions_back)
                    except HistoryLost:
                        if not accepted:
                            raise
                    if accepted:
                        prepared = self._anew(connection, checkpoint, names, system, selected)
        finally:
            self._connector.discard(connection)
        self._prepared = frozenset(t.rel.id for t in selected.tables)
        self._oids = {t.rel.id: t.rel.oid for t in selected.tables}
        # A table that an earlier run captured and this one does not may still have changes on their way.
        self._catalog.captured = _names(checkpoint.source) | {oid: table for table, oid in self._oids.items()}
        self._looked_up = (0.0, {})
        # Whoever prepares asks for the tables next: what was just read of a thousand of them is not read again.
        self._described = self._catalog.tables(selected)
        kept = policies.noted(checkpoint.source, {d.table: d.kept for d in self._described})
        self._checkpoint = replace(prepared, source={**rereading.without(prepared.source), **kept})
        return self._checkpoint

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        before = newest()
        if before.position is None or "slot" not in before.source:
            return ()  # nothing was made at the server for this log
        names = Names.of(self._settings, log_id)
        where = f"slot {before.source['slot']} and publication {before.source['publication']}"
        connection = self._connector.connect("doctor", statement_timeout="60s")
        try:
            with mapping_errors(f"looking at {where} at {self._connector.address}"):
                # The slot before the log, the server's end after it: a daemon may be at work, and confirms only what
                # its log has by then.
                ours = slot.read(connection, before.source["slot"])
                now = newest()
                system = self._identify_system()
                self._check_unbroken(connection, now, names, system, ours, self._known_state(connection, now))
        except (HistoryLost, ConfigurationError) as error:
            return (of_error("position", error),)
        finally:
            self._connector.discard(connection)
        return (ok("position", f"{where} are there, and have everything since {now.position}"),)

    def _known_state(self, connection: Connection, checkpoint: Checkpoint) -> str:
        """The publication's fingerprint in our log, of those tables that are still asked for."""
        state = checkpoint.source["publication_state"]
        try:
            return _of_tables(state, select(connection, self._selection, self._policy))
        except ConfigurationError:
            return state  # which tables are asked for is another finding

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        ours = Names.of(self._settings, log_id).slot
        return self._catalog.ask("looking for slots of other logs", lambda c: slot.left_behind(c, ours))

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        names, before = Names.of(self._settings, log_id), checkpoint.source
        if before:
            self._check_database(before, self._identify_system())
        connection = self._connector.connect("drop")
        try:
            with mapping_errors(f"dropping what cdcflow made in {self._connector.address}"):
                # The slot first: it is what costs the server something.
                return [
                    slot.remove(
                        connection, before.get("slot", names.slot), is_ours="slot" in before or names.slot_is_ours
                    ),
                    publication.remove(connection, before.get("publication", names.publication), made_name(log_id)),
                ]
        finally:
            self._connector.discard(connection)

    def tables(self) -> Sequence[Table]:
        described, self._described = self._described, None
        if described is None:
            described = self._catalog.tables(self._looked_at_again())
        self._has_binary = all(d.has_binary for d in described)
        return [d.table for d in described]

    def _looked_at_again(self) -> Selected:
        selected = self._catalog.selected()
        if self._prepared is not None:
            everything, selected = selected, selected.only(self._prepared)
            self._left_out = tuple(sorted(everything.refused.keys() - selected.refused.keys()))
        selected.check()
        return selected

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        if checkpoint is None:
            return self._left_out
        known = frozenset(_names(checkpoint.source).values())
        return self._catalog.selected().for_restart(known, self._selection)[1]

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        before, left_out = checkpoint.source, tuple[TableId, ...]()
        system = self._identify_system()
        selected = self._catalog.selected()
        if checkpoint.position is not None:
            _check_names(before, Names.of(self._settings, log_id))
            self._check_database(before, system)
            selected, left_out = selected.for_restart(frozenset(_names(before).values()), self._selection)
        selected.check()
        described = self._catalog.tables(selected)
        why = policies.reread(before, {d.table: d.kept for d in described})
        oids = [d.table.incarnation for d in described]
        found = self._catalog.ask("reading the statistics of tables", lambda c: estimates.sizes(c, oids))
        return Preview(
            tuple(
                TablePreview(t.id, t.incarnation, *found.get(t.incarnation, (None, None)), why.get(t.id, ""))
                for t in (d.table for d in described)
            ),
            left_out,
        )

    def compare_rows(self, known: Mapping[TableId, str | None]) -> RowsCompared:
        return self._row_versions.compare(known)

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        name = self._checkpoint.source["publication"] if self._checkpoint else ""
        return self._catalog.ask(f"looking at publication {name}", lambda c: publication.uncovered(c, name, captured))

    def sample(self, table: TableId, key: Sequence[str]) -> Sample | None:
        return self._catalog.ask(f"looking at rows of {table}", lambda c: sampling.sample(c, table, key))

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Stream:
        if checkpoint.position is None:
            raise ValueError("a stream begins at a position; `prepare` gives the first one")
        name = checkpoint.source["slot"]
        if self._has_binary is None:
            self.tables()
        # A table that has come up since, and has no binary form, asks for text when it comes (`NeedsText`).
        has_binary = bool(self._has_binary)

        def make_decoder(after: int, binary: bool) -> PgoutputDecoder:
            return PgoutputDecoder(
                describe=self._describe_binary if binary else self._catalog.describe,
                open_spool=open_spool,
                spool_bytes_max=self._settings.spool_bytes_max,
                binary=binary,
                skip_until=after,
                mark_prefix=mark_prefix(name),
                changed=self._row_versions.changed,
                captures=captured.__contains__,
            )

        def whole_slot(position: int) -> slot.Slot:
            found = self._catalog.ask(f"looking at slot {name}", lambda c: slot.read(c, name))
            if found is None:
                raise _no_slot(name)
            found.check_whole(position)
            return found

        def open_stream(position: int, acknowledged: int, binary: bool) -> Stream:
            return PostgresStream(
                self._connector,
                slot=name,
                publication=published,
                position=position,
                acknowledged=acknowledged,
                binary=binary,
                streaming=self._settings.streaming,
                make_decoder=make_decoder,
                check_slot=whole_slot,
            )

        published = checkpoint.source["publication"]
        captured = frozenset(self._oids.values())
        position, binary = lsn_of(checkpoint.position), self._settings.binary and has_binary
        if self._settings.catch_up == "never":
            return open_stream(position, position, binary)
        # A failover slot gives nothing that a standby does not have yet; a temporary copy of it would.
        if whole_slot(position).failover:
            return open_stream(position, position, binary)
        backlog = self._catalog.ask(f"looking at slot {name}", lambda c: backlog_of(c, name))
        if not backlog.pays(self._windows):
            return open_stream(position, position, binary)
        return CatchingUp(
            self._connector,
            slot=name,
            publication=published,
            position=position,
            binary=binary,
            make_decoder=make_decoder,
            check_slot=whole_slot,
            open_stream=open_stream,
            windows=self._windows,
        )

    def chunks(self) -> ChunkSource:
        pool = Pool(Connector(self._settings.url, self._connector.secret), "chunks")
        at_once = self._settings.backfill.ranges_at_once
        dialect = PostgresChunks(
            pool,
            policy=self._policy,
            parts_at_once=at_once,
            look_up=self._look_up,
            beat=self._check_publication,
            take_version=self._row_versions.take,
            prefix=mark_prefix(self._checkpoint.source["slot"] if self._checkpoint else ""),
            chunk_bytes_max=self._chunk_bytes_max,
        )
        return Chunks(
            dialect,
            pool,
            parts_at_once=at_once,
            whole_bytes_max=self._settings.backfill.whole_bytes_max,
            keys_bytes_max=self._chunk_bytes_max,
        )

    def doctor(self) -> Sequence[Finding]:
        from cdcflow.sources.postgres import doctor  # a daemon never asks, and it takes its time to start

        return doctor.findings(self._connector, self._settings, self._selection)

    def facts(self) -> Mapping[str, str]:
        from cdcflow.sources.postgres import doctor

        return self._catalog.ask(f"asking {self._connector.address} what it is", doctor.facts)

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        name = (self._checkpoint.source.get("slot") if self._checkpoint else None) or self._settings.slot
        if name is None and log_id:
            name = Names.of(self._settings, log_id).slot

        def ask(connection: Connection) -> SourceStatus:
            found = status_of(connection, name or _only_slot(connection), acknowledged)
            left_out = {"left_out": ", ".join(map(str, self._left_out))} if self._left_out else {}
            return replace(found, details={**found.details, **left_out})

        return self._catalog.ask(f"asking {self._connector.address} for its status", ask)

    def close(self) -> None:
        self._connector.close()
        self._catalog.close()

    # ── preparing ───────────────────────────────────────────────────────────────────────────────────────────

    def _identify_system(self) -> IdentifiedSystem:
        connection = self._connector.replicate()
        try:
            with mapping_errors(f"identifying {self._connector.address}"):
                row = connection.execute("IDENTIFY_SYSTEM").fetchone()
                assert row is not None  # noqa: S101  the command's only row
                return IdentifiedSystem(row[0], int(row[1]), lsn_of(row[2]), row[3])
        finally:
            self._connector.discard(connection)

    def _first_time(
        self, connection: Connection, checkpoint: Checkpoint, names: Names, system: IdentifiedSystem, selected: Selected
    ) -> Checkpoint:
        # The publication first: changes from before it cannot be decoded (P60).
        state = publication.ensure(connection, names.publication, selected.tables, ours=names.publication_is_ours)
        found = slot.read(connection, names.slot)
        if found is not None:
            found.check_kind(system.database)
        if found is not None and not names.slot_is_ours:
            position = self._adopted(connection, found)
        else:
            if found is not None:
                # It bears our log's name and the log is empty: a first start that did not get far enough to use it.
                slot.drop(connection, names.slot)
            position = self._created(names)
        return self._checkpoint_at(checkpoint, position, names, system, state, selected)

    def _anew(
        self, connection: Connection, checkpoint: Checkpoint, names: Names, system: IdentifiedSystem, selected: Selected
    ) -> Checkpoint:
        """A new position, because an operator accepted the loss."""
        state = publication.ensure(connection, names.publication, selected.tables, ours=names.publication_is_ours)
        found = slot.read(connection, names.slot)
        if found is not None:
            found.check_kind(system.database)
            slot.drop(connection, names.slot)
        position = self._created(names)
        made = self._checkpoint_at(checkpoint, position, names, system, state, selected)
        return replace(made, source={**made.source, "history": "lost"})

    def _again(
        self,
        connection: Connection,
        checkpoint: Checkpoint,
        names: Names,
        system: IdentifiedSystem,
        selected: Selected,
        transactions_back: TransactionsBack | None,
    ) -> Checkpoint:
        before = checkpoint.source
        assert checkpoint.position is not None  # noqa: S101  the caller's question
        position = lsn_of(checkpoint.position)
        known = _of_tables(before["publication_state"], selected)
        ours = slot.read(connection, names.slot)
        found_now = self._check_unbroken(connection, checkpoint, names, system, ours, known)
        assert ours is not None  # noqa: S101  looked at just now
        if ours.confirmed is None:
            raise SourceUnavailable(f"slot {names.slot} is still being made by somebody (it has no position yet)")
        # A log of an earlier cdcflow does not say where it began: what is before this start is not compared.
        began = lsn_of(before.get("began_at", checkpoint.position))
        since = max(ours.confirmed, began)
        if transactions_back is not None and since < position:
            captured = _captured_since(before, selected, since) if found_now and found_now.broad else None
            overlap.check_same(self._connector, ours, names.publication, since, position, transactions_back, captured)
        state = publication.ensure(connection, names.publication, selected.tables, ours=names.publication_is_ours)
        self._check_publication_since(
            connection, state, names, known
        )  # again: between the two looks it may have been mended, and a loss with it
        fingerprint = state.fingerprint(selected.tables)
        # What our log knew counts, not what the publication had just now: this may be the second try, or somebody else
        # has added the tables.
        if publication.has_newcomers(known, fingerprint):
            publication.wait_for_older(connection, self._older_wait_s, "adding tables to the publication")
        return self._checkpoint_at(checkpoint, position, names, system, state, selected, began)

    def _check_unbroken(
        self,
        connection: Connection,
        checkpoint: Checkpoint,
        names: Names,
        system: IdentifiedSystem,
        ours: slot.Slot | None,
        known: str,
    ) -> publication.Publication | None:
        """That this server still gives everything behind our log's end through this slot and publication, whose
        fingerprint is `known`. Returns the publication.

        Raises:
            HistoryLost, ConfigurationError: it does not.
        """
        before = checkpoint.source
        position = lsn_of(checkpoint.position or "0/0")
        _check_names(before, names)
        self._check_system(before, system, position)
        found = publication.read(connection, names.publication)
        self._check_publication_since(connection, found, names, known)
        if ours is None:
            raise _no_slot(names.slot)
        ours.check_kind(system.database)
        ours.check_whole(position)
        # `synced` is not asked: it has no meaning on a primary, and whether this slot gives what our log has is
        # compared by whoever goes on.
        if str(system.timeline) != before.get("timeline") and not ours.failover:
            raise history_lost(
                f"the server went from timeline {before.get('timeline')} to {system.timeline}, and slot {names.slot} "
                "was not carried over from the old one",
                runbook="restored-source",
            )
        return found

    def _check_publication_since(
        self, connection: Connection, found: publication.Publication | None, names: Names, known: str
    ) -> None:
        publication.check_unbroken(found, names.publication, known, partial(_exists, connection))

    def _check_database(self, before: Mapping[str, str], system: IdentifiedSystem) -> None:
        if (before.get("system_id"), before.get("database")) != (system.system_id, system.database):
            raise ConfigurationError(
                f"this log belongs to database {before.get('database')} of server {before.get('system_id')}, but "
                f"{self._connector.address} is database {system.database} of server {system.system_id}",
                remedy="set source.url back, or use another log.path for this source",
                runbook="other-log",
            )

    def _check_system(self, before: Mapping[str, str], system: IdentifiedSystem, position: int) -> None:
        self._check_database(before, system)
        if str(system.timeline) != before.get("timeline"):
            switch = self._switched(system.timeline, int(before.get("timeline") or 0))
            if switch is None or switch < position:
                raise history_lost(
                    f"the server was restored or promoted to timeline {system.timeline}, which left ours before "
                    f"{position_of(position)}: changes that our log has never happened there",
                    runbook="restored-source",
                )
        if system.end < position:
            raise history_lost(
                f"the server's log ends at {position_of(system.end)}, before our position {position_of(position)}: "
                "it was restored from an older state",
                runbook="restored-source",
            )

    def _switched(self, timeline: int, before: int) -> int | None:
        """Where this timeline's history leaves `before`; None when it does not descend from it."""
        connection = self._connector.replicate()
        try:
            with mapping_errors(f"reading the history of timeline {timeline}"):
                row = connection.execute(f"TIMELINE_HISTORY {timeline}".encode()).fetchone()
        except SourceUnavailable:
            if timeline == 1:
                return None  # the first timeline has no history
            raise
        finally:
            self._connector.discard(connection)
        text = "" if row is None else row[1]
        lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
        for line in lines:
            words = line.split("\t")
            if len(words) >= 2 and words[0].strip() == str(before):
                return lsn_of(words[1])
        return None

    def _created(self, names: Names) -> int:
        return slot.create(
            self._connector, names.slot, failover=self._settings.failover, timeout_s=self._creation_wait_s
        )

    def _adopted(self, connection: Connection, found: slot.Slot) -> int:
        """Take over a slot that somebody made for us, at a position after the publication: the log is empty, and the
        backfill has what came before."""
        if found.is_lost or found.confirmed is None:
            raise ConfigurationError(
                f"slot {found.name} has no position to begin at (wal_status {found.wal_status})",
                remedy=f"run SELECT pg_drop_replication_slot('{found.name}'); cdcflow makes it again",
                runbook="slot-unusable",
            )
        publication.wait_for_older(connection, self._older_wait_s, f"taking over slot {found.name}")
        row = connection.execute(
            "SELECT (pg_catalog.pg_replication_slot_advance(%s, pg_catalog.pg_current_wal_flush_lsn())).end_lsn::text",
            (found.name,),
        ).fetchone()
        assert row is not None  # noqa: S101  a function's result
        return max(lsn_of(row[0]), found.confirmed)

    def _checkpoint_at(
        self,
        checkpoint: Checkpoint,
        position: int,
        names: Names,
        system: IdentifiedSystem,
        state: publication.Publication,
        selected: Selected,
        began: int | None = None,
    ) -> Checkpoint:
        """A checkpoint for this system. `began`: where our log's part of the server's log began (None: here)."""
        kept = {k: v for k, v in checkpoint.source.items() if k not in ("accept_history_loss", "captured")}
        ours = {
            "system_id": system.system_id,
            "timeline": str(system.timeline),
            "database": system.database,
            "slot": names.slot,
            "publication": names.publication,
            "publication_state": state.fingerprint(selected.tables),
            "began_at": position_of(position if began is None else began),
        }
        if state.broad:
            before = checkpoint.source if began is not None else {}
            ours["captured"] = _captured(before, selected, position_of(position))
        return replace(checkpoint, position=position_of(position), source={**kept, **ours})

    # ── for stream and chunks ───────────────────────────────────────────────────────────────────────────────

    def _describe_binary(self, relation: Relation) -> DescribedTable:
        described = self._catalog.describe(relation)
        if not described.has_binary:
            raise NeedsText
        return described

    def _look_up(self, table: TableId) -> Relid:
        # Asked for each table of a thousand in turn, and the catalog answers for all of them at once.
        seen_at, known = self._looked_up
        stale = table not in known or time.monotonic() - seen_at > LOOK_UP_AGAIN_S
        if stale or not self._catalog.ask(f"looking for {table}", lambda c: _is_still(c, known[table])):
            known = {found.rel.id: found.rel for found in self._catalog.selected().tables}
            self._looked_up = time.monotonic(), known
        self._check_captured(table, known)
        if table in known:
            return known[table]
        raise not_there(table)

    def _check_captured(self, table: TableId, known: Mapping[TableId, Relid]) -> None:
        """That this name still is that of the table whose changes come under it.

        Raises:
            SourceUnavailable: it is not. The next look at the tables takes that up; rows that were read before would
                miss changes.
        """
        oid = self._oids.get(table)
        if oid is None or (table in known and known[table].oid == oid):
            return
        if self._catalog.ask(f"looking for {table}", lambda c: _exists(c, "pg_class", oid)):
            raise SourceUnavailable(f"table {table} has another name now; the next look at the tables takes it up")
        if table in known:
            raise SourceUnavailable(f"table {table} is another one now; the next look at the tables takes it up")

    def _check_publication(self, connection: Connection) -> None:
        """Whether the publication still is what `prepare` left.

        Raises:
            HistoryLost: somebody dropped or altered it, or took a table out.
        """
        if self._checkpoint is None:
            return
        before = self._checkpoint.source
        name = before["publication"]
        publication.check_unbroken(
            publication.read(connection, name), name, before["publication_state"], partial(_exists, connection)
        )


def _check_server(connection: Connection) -> None:
    row = connection.execute("SELECT current_setting('wal_level'), pg_catalog.pg_is_in_recovery()").fetchone()
    assert row is not None  # noqa: S101  one row by construction
    if row[1]:
        raise ConfigurationError(
            "the server is a standby: backfill writes marks, which only a primary takes",
            remedy="point source.url at the primary",
            runbook="read-only-source",
        )
    if row[0] != "logical":
        raise ConfigurationError(
            f"the server has wal_level = {row[0]}, which leaves out what a stream of changes needs",
            remedy="run ALTER SYSTEM SET wal_level = logical, and restart the server",
            runbook="server-settings",
        )


def _check_names(before: Mapping[str, str], names: Names) -> None:
    for what, then, now in (
        ("slot", before["slot"], names.slot),
        ("publication", before["publication"], names.publication),
    ):
        if then != now:
            raise ConfigurationError(
                f"this log was begun with source.{what} = {then}; {now} has never carried its changes",
                remedy=f"set source.{what}: {then}, or begin a new log",
                runbook="other-log",
            )


def _no_slot(name: str) -> HistoryLost:
    return history_lost(f"slot {name} is gone: somebody dropped it, or the server was restored or upgraded")


def _exists(connection: Connection, catalog: Literal["pg_class", "pg_namespace"], oid: int) -> bool:
    found = connection.execute(f"SELECT FROM pg_catalog.{catalog} WHERE oid = %s", (oid,))
    return found.fetchone() is not None


def _is_still(connection: Connection, rel: Relid) -> bool:
    """Whether this is still the table of its name, and its old rows are told apart as they were."""
    found = connection.execute(
        "SELECT oid::bigint, relreplident::text FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%s)",
        (rel.sql,),
    ).fetchone()
    return found == (rel.oid, rel.identity)


def _names(source: Mapping[str, str]) -> dict[int, TableId]:
    """The tables that an earlier run captured, by oid."""
    tables = json.loads(source.get("publication_state", '{"tables": {}}'))["tables"]
    captured = json.loads(source.get("captured", "{}"))
    return {entry[0]: TableId(*json.loads(name)) for name, entry in (*tables.items(), *captured.items())}


def _captured_since(source: Mapping[str, str], selected: Selected, since: int) -> frozenset[int] | None:
    """Those of the captured tables whose changes are in our log from here on; None: all that the publication gave, as
    a log of an earlier cdcflow has it."""
    if "captured" not in source:
        return None
    known = {oid for oid, at in json.loads(source["captured"]).values() if lsn_of(at) <= since}
    return frozenset(known & {t.rel.oid for t in selected.tables})


def _captured(before: Mapping[str, str], selected: Selected, position: Position) -> str:
    """The captured tables where the publication gives others too: each with its oid, and since when it is captured."""
    then = {entry[0]: entry[1] for entry in json.loads(before.get("captured", "{}")).values()}
    names = {json.dumps([t.rel.id.schema, t.rel.id.name]): t.rel.oid for t in selected.tables}
    return json.dumps({name: [oid, then.get(oid, position)] for name, oid in names.items()}, separators=(",", ":"))


def _only_slot(connection: Connection) -> str | None:
    """The slot that cdcflow made in this database, where it made just one."""
    rows = connection.execute(
        "SELECT slot_name FROM pg_catalog.pg_replication_slots "
        "WHERE database = current_database() AND slot_name ~ '^cdcflow_[0-9a-f]{8}$'"
    ).fetchall()
    return str(rows[0][0]) if len(rows) == 1 else None


def _of_tables(state: str, selected: Selected) -> str:
    """A fingerprint without the tables that are no longer asked for: what became of them is nobody's loss."""
    value = json.loads(state)
    wanted = {t.rel.oid for t in selected.tables}
    for kind in ("tables", "members"):
        if kind in value:
            value[kind] = {name: entry for name, entry in value[kind].items() if entry[0] in wanted}
    if "schemas" in value:
        schemas = {t.rel.id.schema for t in selected.tables}
        value["schemas"] = {name: entry for name, entry in value["schemas"].items() if name in schemas}
    return json.dumps(value)


def status_of(connection: Connection, name: str | None, acknowledged: Position | None) -> SourceStatus:
    """Lag and retained log of a slot; `name` None where no slot was made yet."""
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
