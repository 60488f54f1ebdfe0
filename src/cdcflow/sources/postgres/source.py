"""PostgreSQL as a `cdcflow.ports.Source`: slot and publication created and checked, stream and chunks opened.

The checkpoint keeps a `PostgresState` (`stored_state`). With it a restart can determine whether the position in the
server's log is still valid for the change log and no change was missed. If it is not, the restart stops with
`HistoryLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from cdcflow.capture.interleave.messages import KnownRows, RowsCompared
from cdcflow.capture.ports.comparison import Comparison
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.moves import MovePlan
from cdcflow.capture.ports.part_readers import PartReader, Readers
from cdcflow.capture.ports.source import Sample, SourceHistory, SourceStatus
from cdcflow.capture.ports.stream import Stream
from cdcflow.config import Postgres
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.chunks import Chunks, OwnPartReader
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.moves import check_tables
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.engine.policies import ByShape, Policies
from cdcflow.sources.engine.replica_wait import check_at_first_start, executors_read_elsewhere
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.engine.source import Begun, MovableSource, Sizes, Start
from cdcflow.sources.postgres import publication, samples, slot, slot_release
from cdcflow.sources.postgres.backfill_standby import BackfillFences, BackfillStandby, find_problem
from cdcflow.sources.postgres.catalog import Catalog, Selected, describe_all
from cdcflow.sources.postgres.catalog_entries import CatalogTable, loose_collations
from cdcflow.sources.postgres.catch_up import Windows
from cdcflow.sources.postgres.chunks import CHUNK_BYTES_MAX, PostgresChunks, mark_prefix
from cdcflow.sources.postgres.comparison import PostgresComparison
from cdcflow.sources.postgres.connection import Connection, Connector, mapping_errors, query_row
from cdcflow.sources.postgres.fences import PrimaryFences, ServerFences, StandbyFences, StandbyRun
from cdcflow.sources.postgres.identity import IdentifiedSystem, check_database, check_server, identify, is_replaced
from cdcflow.sources.postgres.known_tables import state_of_selected
from cdcflow.sources.postgres.lives import Life, Lives, ended_lives
from cdcflow.sources.postgres.lsn import START, Lsn, lsn_of, position_of
from cdcflow.sources.postgres.moves import Finder, Route, is_no_target, server_text, steps
from cdcflow.sources.postgres.preparation import Preparation
from cdcflow.sources.postgres.recovery import RECEIVED_END, is_standby, log_end
from cdcflow.sources.postgres.replay_fences import DeliveredCommits
from cdcflow.sources.postgres.rewrites import RowVersions
from cdcflow.sources.postgres.slot_names import Names, made_name
from cdcflow.sources.postgres.standby import check_replayed, check_standby
from cdcflow.sources.postgres.stored_state import PostgresState, captured_names
from cdcflow.sources.postgres.stream_start import StreamStart
from cdcflow.sources.postgres.table_names import TableNames
from cdcflow.sources.postgres.table_numbers import TableNumbers
from cdcflow.sources.postgres.types import Policy
from cdcflow.sources.postgres.unbroken import check_names, check_publication, check_unbroken

# A table that was never analyzed has -1 rows: the number is unknown. Indexes are not read, so they do not count.
_SIZES = """
SELECT r.oid::bigint, CASE WHEN bool_and(c.reltuples >= 0) THEN sum(c.reltuples)::bigint END,
       sum(pg_catalog.pg_table_size(c.oid))::bigint
FROM unnest(%s::oid[]) AS r (oid)
LEFT JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) AS p ON p.isleaf
JOIN pg_catalog.pg_class c ON c.oid = coalesce(p.relid, r.oid)
GROUP BY r.oid
"""


_log = structlog.get_logger()
CREATION_WAIT_S = 60.0
OLDER_WAIT_S = 60.0
WINDOWS = Windows()


class PostgresSource(MovableSource[Connection, PostgresState, CatalogTable]):
    """Implements `cdcflow.ports.Source`. It connects with the first query, not before.

    `secret` returns the password, and is called for every connection; None: the server needs none. `windows` decides
    when a backlog is caught up through SQL, and how. `readers`: other processes that read parts of its chunks; None:
    this process reads them. `replaces_reader`: end the process that still reads the slot, because this one has taken
    its place. `numbers`: the numbers of the log's tables, if no checkpoint is passed later.
    """

    _connector: Connector

    def __init__(
        self,
        settings: Postgres,
        secret: Secret,
        *,
        creation_wait_s: float = CREATION_WAIT_S,
        older_wait_s: float = OLDER_WAIT_S,
        windows: Windows = WINDOWS,
        chunk_bytes_max: int = CHUNK_BYTES_MAX,
        readers: Readers | None = None,
        replaces_reader: bool = False,
        numbers: TableNumbers | None = None,
    ) -> None:
        connector = Connector.of(settings, secret)
        self._replaces_reader = replaces_reader
        self._settings = settings
        self._windows = windows
        self._chunk_bytes_max = chunk_bytes_max
        self._readers = readers
        self._policy = Policy.of(settings, numbers)
        self._selected_by_settings = Selection.parse(settings.tables)
        self._catalog = Catalog(connector, self._selected_by_settings, self._policy)
        super().__init__(connector, self._catalog)
        self._table_names = TableNames(self._catalog)
        self._row_versions = RowVersions(self._catalog)
        self._creation_wait_s = creation_wait_s
        self._older_wait_s = older_wait_s
        self._joining: Mapping[TableId, int] = {}
        self._standby: StandbyRun | None = None
        self._commits: DeliveredCommits | None = None
        self._system: IdentifiedSystem | None = None
        self._backfill_standby: BackfillStandby | None = None
        self._has_binary: bool | None = None

    # ── engine.source ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def _selection(self) -> Selection:
        return self._selected_by_settings

    def _connect(self, purpose: str) -> Connection:
        return self._connector.connect(purpose, statement_timeout="60s")

    def _read_state(self, stored: Mapping[str, str]) -> PostgresState | None:
        return PostgresState.read(stored)

    def _captured_by(self, state: PostgresState | None) -> frozenset[TableId]:
        return frozenset(captured_names(state).values())

    def _policies_of(self, state: PostgresState) -> Policies | None:
        return state.policies

    def _with_policies(self, state: PostgresState, kept: Policies) -> PostgresState:
        return replace(state, policies=kept)

    def _begin(self, connection: Connection, start: Start[PostgresState]) -> Begun[PostgresState, CatalogTable]:
        before, names = start.before, Names.of(self._settings, start.log_id)
        position = None if start.checkpoint.position is None else lsn_of(start.checkpoint.position)
        system = identify(self._connector)
        check_server(connection)
        at_standby = is_standby(connection)
        route = self._route(connection, start, names, system, at_standby=at_standby)
        if at_standby:
            check_standby(connection, self._settings, names.slot, before, is_loss_accepted=start.is_loss_accepted)
            check_replayed(connection, position)
        elif position is None and (reading := self._backfill_connector()) is not None:
            check_at_first_start(reading.address, lambda: find_problem(reading, system))
        if self._replaces_reader:
            slot.end_reader(connection, names.slot)
        replaced = self._is_replaced(connection, start, system) if route is None else route.kind == "other"
        by_oid = {} if replaced else captured_names(before)  # oids of another database mean nothing
        if not replaced:
            self._remember_captured(before)
        selected = self._catalog.select(connection)
        self._use_numbers(self._numbers(connection, before, selected, route, is_replaced=replaced))
        end = log_end(connection)
        known, is_first = frozenset(by_oid.values()), position is None
        selected, self._left_out = selected.for_start(known, self._selection, is_first=is_first)
        same = frozenset(t.id for t in selected.tables if by_oid.get(t.rel.oid) == t.id)
        selected = self._fail_alone(selected, same, start.checkpoint)
        self._check(selected)
        for text in selected.ignored:
            if any(text.startswith(f"{table} is ") for table in by_oid.values()):
                _log.warning("table no longer captured", found=text)
        # A new table that another session has locked is captured later: all others would wait with it.
        new = [t for t in selected.good if t.rel.oid not in by_oid]
        if at_standby:
            named = self._selection.names
            later = [] if position is None else [t for t in new if not named(t.rel.id)]
            locked = publication.unpublished_tables(connection, names.publication, later)
        else:
            locked = publication.locked_tables(connection, names.publication, new)
        selected, self._left_out = selected.without(locked), (*self._left_out, *sorted(locked))
        preparation = Preparation(
            self._connector,
            connection,
            names,
            system,
            selected,
            position,
            before,
            failover=self._settings.failover,
            creation_wait_s=self._creation_wait_s,
            older_wait_s=self._older_wait_s,
            is_renamed=bool(self._found_ended(position, before, selected, end)),
            releases=self._settings.releases,
            is_standby=at_standby,
        )
        if route is None:
            done = preparation.prepare(start.transactions_back, loss_accepted=start.is_loss_accepted, replaced=replaced)
        else:
            self._check_moved(route, before, selected)
            done = preparation.move(route, start.transactions_back)
        self._joining = done.joining
        self._standby = StandbyRun.beginning_at(done.position, system.timeline) if at_standby else None
        self._system = system
        self._commits = None if self._settings.backfill.url is None else DeliveredCommits(done.position)
        selected, self._left_out = selected.without(self._joining), (*self._left_out, *sorted(self._joining))
        self._table_names.capture(selected)
        is_unbroken = done.history is SourceHistory.CONTINUES
        earlier = self._found_ended(position, before, selected, end) if is_unbroken else ()
        lives = Lives({t.rel.oid: t.rel.id for t in selected.tables}, earlier, self._selection.selects)
        self._catalog.lives = lives
        state = replace(done.state, lives=lives.ended, numbers=self._policy.numbers)
        self._remember_captured(state)
        return Begun(position_of(done.position), state, selected, done.history)

    def _is_replaced(self, connection: Connection, start: Start[PostgresState], system: IdentifiedSystem) -> bool:
        before = start.before
        return before is not None and start.is_loss_accepted and is_replaced(connection, before, system)

    def _numbers(
        self,
        connection: Connection,
        before: PostgresState | None,
        selected: Selected,
        route: Route | None,
        *,
        is_replaced: bool,
    ) -> TableNumbers:
        """Return the numbers of the log's tables at this server. `is_replaced`: it is not the server that the log has
        used so far."""
        if before is None or not is_replaced:
            return TableNumbers() if before is None else before.numbers
        if route is None:
            return TableNumbers(before.numbers.moves)
        captured = {table: oid for oid, table in captured_names(before).items()}
        there = [t for t in selected.good if t.id in captured]
        tables = [d.table for d in describe_all(connection, there, Policy.of(self._settings))]
        return before.numbers.after_move(tables, captured, self._catalog.shape_of)

    def _use_numbers(self, numbers: TableNumbers) -> None:
        if numbers != self._policy.numbers:
            self._policy = replace(self._policy, numbers=numbers)
            self._catalog.use_policy(self._policy)

    def _route(
        self,
        connection: Connection,
        start: Start[PostgresState],
        names: Names,
        system: IdentifiedSystem,
        *,
        at_standby: bool,
    ) -> Route | None:
        """Return the route of a log that moves here; None if it does not move, or has not begun yet.

        Raises:
            ConfigurationError: the log cannot continue here.
        """
        position, before = start.checkpoint.position, start.before
        if start.move is None or before is None or position is None:
            return None
        if at_standby:
            raise is_no_target()
        known = self._known_state(connection, before) if before.system_id == system.system_id else ""
        finder = Finder(self._connector, connection, before, names, system, lsn_of(position), known)
        return finder.find(compares=start.move.compares)

    def _check_moved(self, route: Route, before: PostgresState | None, selected: Selected) -> None:
        """Check that another server has the log's tables. If it is the same server, they may have been dropped or
        renamed."""
        captured = frozenset(captured_names(before).values() if route.kind == "other" else ())
        check_tables(captured, [t.id for t in selected.tables], self._selection.selects)

    def _check_log(self, before: PostgresState | None, log_id: str) -> None:
        system = identify(self._connector)
        if before is not None:
            check_names(before, Names.of(self._settings, log_id))
            self._catalog.ask("looking for the log's slot", lambda c: check_database(c, before, system))

    def _select(self, before: PostgresState | None) -> Selected:
        self._remember_captured(before)
        if before is not None:
            self._use_numbers(before.numbers)
        return self._catalog.selected_tables()

    def _check(self, selected: Selected, captured: frozenset[TableId] = frozenset()) -> None:
        selected.check(may_be_empty=self._selection.only_wildcards or bool(self._catalog.was_captured))

    def _describe(self, selected: Selected) -> ByShape:
        described = self._catalog.tables(selected)
        self._has_binary = all(d.has_binary for d in described)
        return {d.table: d.kept for d in described}

    def _sizes(self, connection: Connection, tables: Sequence[Table]) -> Sizes:
        by_oid = {self._policy.numbers.oid(t.incarnation): t.id for t in tables}
        rows = connection.execute(_SIZES, (list(by_oid),))
        return {by_oid[oid]: (count, size) for oid, count, size in rows}

    def _waiting(self, new: Sequence[CatalogTable]) -> Collection[TableId]:
        """Return the tables for whose locks the publication would wait, or that running transactions changed before
        they were published."""
        if not new or self._state is None:
            return ()
        name = self._state.publication

        def ask(connection: Connection) -> Collection[TableId]:
            oldest = publication.oldest_transaction(connection)
            joining = {t.id for t in new if self._joining.get(t.id, 0) > oldest}
            waiting = publication.locked_tables if self._standby is None else publication.unpublished_tables
            return joining | waiting(connection, name, new).keys()

        return self._catalog.ask("listing new tables", ask)

    def _open_stream(self, position: Position, state: PostgresState, open_spool: OpenSpool) -> Stream:
        if self._has_binary is None:
            self.tables()
        # A table that appears later, and has no binary form, restarts the stream in text when it arrives (`NeedsText`).
        has_binary = bool(self._has_binary)
        start = StreamStart(
            self._connector,
            self._catalog,
            self._row_versions,
            self._settings,
            self._windows,
            slot=state.slot,
            publication=state.publication,
            open_spool=open_spool,
            standby=self._standby,
            commits=self._commits,
        )
        return start.open(lsn_of(position), binary=self._settings.binary and has_binary)

    def _compare(self, selected: Selected, tables: Sequence[Table]) -> Comparison:
        self._table_names.capture(selected)
        return PostgresComparison(self._catalog, tables, self.chunks(), self.close)

    def _check_continues(
        self, before: PostgresState, position: Position, newest: Callable[[], Checkpoint], log_id: str
    ) -> str:
        names = Names.of(self._settings, log_id)
        where = f"slot {before.slot} and publication {before.publication}"
        connection = self._connect("doctor")
        try:
            with mapping_errors(f"checking {where} at {self._connector.address}"):
                # Read the slot before the log, and the server's end after it: a daemon may be running, and the log that
                # is read here has every position that the daemon had confirmed before.
                ours = slot.read(connection, before.slot)
                if (released := self._release_text(connection, before, ours)) is not None:
                    return released
                checkpoint = newest()
                now, end = PostgresState.read(checkpoint.source) or before, lsn_of(checkpoint.position or position)
                system = identify(self._connector)
                self._remember_captured(now)
                known = self._known_state(connection, now)
                check_unbroken(self._connector, connection, end, now, names, system, ours, known)
        finally:
            self._connector.discard(connection)
        return f"{where} exist, and have everything since {end}"

    def _release_text(self, connection: Connection, before: PostgresState, ours: slot.Slot | None) -> str | None:
        """Return a text for operators if the slot was released, or will be by the next start.

        Return None if it was not, or if the settings do not let the capture continue after that.
        """
        if not self._settings.releases:
            return None
        note = slot_release.find(connection, before.slot)
        is_noted = note is not None and note.id != before.release
        if not is_noted and not (ours is not None and ours.is_discarded):
            return None
        return f"slot {before.slot} was released: the next start takes a new position, and the tables are repaired"

    def _read_status(self, connection: Connection, acknowledged: Position | None, log_id: str) -> SourceStatus:
        name = self._state.slot if self._state else self._settings.slot
        if name is None and log_id:
            name = Names.of(self._settings, log_id).slot
        return status_of(connection, name or only_slot(connection), acknowledged)

    def _remember_captured(self, before: PostgresState | None) -> None:
        """Remember which names the log has captured, among those that the settings still select."""
        if before is None:
            return
        names = {*before.names_by_oid.values(), *(life.table for life in before.lives)}
        self._catalog.was_captured |= {table for table in names if self._selection.selects(table)}

    def _found_ended(
        self, position: Lsn | None, before: PostgresState | None, selected: Selected, end: Lsn
    ) -> tuple[Life, ...]:
        """Return the names whose end a stream that begins at the log's position has yet to pass. `end`: see
        `ended_lives`."""
        selects = self._selection.selects
        return ended_lives(
            [life for life in (before.lives if before else ()) if selects(life.table)],
            {oid: table for oid, table in captured_names(before).items() if selects(table)},
            {t.rel.oid: t.rel.id for t in selected.tables},
            position=position or START,
            end=end,
            is_kept=self._selection.names,
        )

    def _known_state(self, connection: Connection, before: PostgresState) -> str:
        """Return the publication's fingerprint in the change log, for those tables that are still selected."""
        state = before.publication_state
        try:
            return state_of_selected(state, self._catalog.select(connection))
        except ConfigurationError:
            return state  # another check reports errors in the selection

    # ── engine.source: moves ─────────────────────────────────────────────────────────────────

    def _plan_move(self, connection: Connection, start: Start[PostgresState], before: PostgresState) -> MovePlan:
        system, names = identify(self._connector), Names.of(self._settings, start.log_id)
        check_server(connection)
        route = self._route(connection, start, names, system, at_standby=is_standby(connection))
        assert route is not None  # noqa: S101  the start is a move
        selected = self._catalog.select(connection)
        self._check_moved(route, before, selected)
        known = frozenset[TableId]() if route.kind == "other" else self._captured_by(before)
        is_other = route.kind == "other"
        self._use_numbers(self._numbers(connection, before, selected, route, is_replaced=is_other))
        selected, self._left_out = selected.for_start(known, self._selection)
        self._check(selected)
        tables = self._previews(connection, selected)
        version = connection.info.server_version // 10000
        return MovePlan(
            route.kind,
            not route.has_gap,
            server_text(before.system_id, before.database, before.version, before.timeline),
            server_text(system.system_id, system.database, version, system.timeline),
            route.text,
            tables,
            tuple(steps(connection, names, route)),
        )

    # ── cdcflow.ports.Source ────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        system = identify(self._connector)
        return SourceIdentity("postgres", system.system_id, system.database, str(system.timeline))

    def refuse_with(self, check: Callable[[Table], object]) -> None:
        self._catalog.fits = check

    def use_shapes(self, shape_of: Callable[[TableId], Table | None]) -> None:
        self._catalog.shape_of = shape_of

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        ours = Names.of(self._settings, log_id).slot
        return self._catalog.ask("looking for slots of other logs", lambda c: slot.left_behind(c, ours))

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        names, before = Names.of(self._settings, log_id), PostgresState.read(checkpoint.source)
        connection = self._connector.connect("drop")
        try:
            with mapping_errors(f"dropping what cdcflow created in {self._connector.address}"):
                if before is not None:
                    check_database(connection, before, identify(self._connector))
                # The slot is dropped first, because it makes the server keep its log.
                name = names.slot if before is None else before.slot
                published = names.publication if before is None else before.publication
                return [
                    slot.remove(connection, name, is_ours=before is not None or names.slot_is_ours),
                    publication.remove(connection, published, made_name(log_id)),
                ]
        finally:
            self._connector.discard(connection)

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        return replace(self._row_versions.compare(known), refused=self._refused)

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        name = self._state.publication if self._state else ""
        oids = {table: self._policy.numbers.oid(number) for table, number in captured.items()}
        return self._catalog.ask(f"checking publication {name}", lambda c: publication.uncovered_tables(c, name, oids))

    def sample(self, table: TableId, key: Sequence[str]) -> Sample | None:
        return self._catalog.ask(f"reading rows of {table}", lambda c: samples.sample(c, table, key))

    def chunks(self) -> Chunks[Connection, Any, Any]:  # Any: the dialect's own parts
        pool = Pool(Connector.of(self._settings, self._connector.secret), "chunks")
        at_once = self._settings.backfill.ranges_at_once if self._readers is None else self._readers.count
        standby = self._backfill_standby = self._open_backfill_standby()
        dialect = PostgresChunks(
            pool,
            policy=self._policy,
            parts_at_once=at_once,
            look_up=self._table_names.look_up,
            beat=self._check_publication,
            take_version=self._row_versions.take,
            fences=self._fences(standby),
            chunk_bytes_max=self._chunk_bytes_max,
        )
        return Chunks(
            dialect,
            pool,
            parts_at_once=at_once,
            whole_bytes_max=self._settings.backfill.whole_bytes_max,
            keys_bytes_max=self._chunk_bytes_max,
            readers=self._readers,
            reading=None if standby is None else standby.pool,
        )

    def _backfill_connector(self) -> Connector | None:
        """Return the connector to the standby that rows are read from; None if they are read at `source.url`."""
        url = self._settings.backfill.url
        return None if url is None else Connector(url, self._connector.secret, self._settings.ssh)

    def _open_backfill_standby(self) -> BackfillStandby | None:
        connector = self._backfill_connector()
        if connector is None:
            return None
        if self._readers is not None:
            raise executors_read_elsewhere()
        return BackfillStandby(connector, self._system or identify(self._connector), self._catalog)

    def rows_from(self) -> str:
        return "" if self._backfill_standby is None else self._backfill_standby.waits.status

    def _fences(self, backfill_from: BackfillStandby | None) -> ServerFences:
        """Return the run's fences; in a process without a run, fences that fit the server now."""
        marks = PrimaryFences(mark_prefix(self._state.slot if self._state else ""))
        if backfill_from is not None:
            return BackfillFences(marks, backfill_from, self._commits)
        is_prepared = self._captured is not None
        if self._standby or (not is_prepared and self._catalog.ask("looking for a standby", is_standby)):
            return StandbyFences(self._standby)
        return marks

    def part_reader(self) -> PartReader:
        """Return a reader of parts of chunks, for another process that has this source open."""
        self._table_names.capture(self._catalog.selected_tables())
        return OwnPartReader(self.chunks(), self.close)

    def doctor(self) -> Sequence[Finding]:
        from cdcflow.sources.postgres import doctor  # a daemon never needs it, and its import is slow

        return doctor.findings(self._connector, self._settings, self._selection)

    def loose_collations(self) -> Mapping[TableId, Mapping[str, str]]:
        return self._catalog.ask(f"querying the collations of {self._connector.address}", loose_collations)

    def facts(self) -> Mapping[str, str]:
        from cdcflow.sources.postgres import doctor

        return self._catalog.ask(f"querying the version of {self._connector.address}", doctor.facts)

    def _check_publication(self, connection: Connection) -> None:
        """Check that the publication is still as `prepare` left it.

        Raises:
            HistoryLost: the publication was dropped or altered, or a table was dropped from it.
        """
        if self._state is None:
            return
        name = self._state.publication
        check_publication(connection, publication.read(connection, name), name, self._state.publication_state)


def status_of(connection: Connection, name: str | None, acknowledged: Position | None) -> SourceStatus:
    """Return lag and retained log of a slot; `name` is None if no slot was created yet."""
    found = None if name is None else slot.read(connection, name)
    row = query_row(
        connection,
        f"""
        SELECT {RECEIVED_END}::text, s.safe_wal_size, age(s.catalog_xmin)
        FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = %s
        """,  # noqa: S608  constants
        (name,),
    )
    end = Lsn.parse(row[0])
    details = {"server_end": str(end), "slot": name or "none"}
    if found is not None:
        details |= {
            "wal_status": found.wal_status or "unknown",
            "active": "yes" if found.active_pid else "no",
            "catalog_xmin_age": str(row[2] or 0),
            "safe_wal_bytes": "unlimited" if row[1] is None else str(row[1]),
        }
        if found.invalidation:
            details["invalidation_reason"] = found.invalidation
    at = lsn_of(acknowledged) if acknowledged is not None else (found.confirmed if found else None)
    return SourceStatus(
        lag_bytes=None if at is None else max(end - at, 0),
        retained_bytes=None if found is None or found.restart is None else max(end - found.restart, 0),
        details=details,
        is_lost=found is not None and found.is_lost,
    )


def only_slot(connection: Connection) -> str | None:
    """Return the slot that cdcflow created in this database, if it is the only one."""
    rows = connection.execute(
        "SELECT slot_name FROM pg_catalog.pg_replication_slots "
        "WHERE database = current_database() AND slot_name ~ '^cdcflow_[0-9a-f]{8}$'"
    ).fetchall()
    return str(rows[0][0]) if len(rows) == 1 else None
