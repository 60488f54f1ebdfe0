"""PostgreSQL as a `cdcflow.ports.Source`: slot and publication created and checked, stream and chunks opened.

The checkpoint keeps a `PostgresState` (`stored_state`). With it a restart can determine whether the position in the
server's log is still valid for the change log and no change was missed. If it is not, the restart stops with
`HistoryLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdcflow.capture.interleave.messages import RowsCompared
from cdcflow.capture.ports.comparison import Comparison
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.part_readers import PartReader, Readers
from cdcflow.capture.ports.source import Prepared, Preview, Sample, SourceStatus, TablePreview, TransactionsBack
from cdcflow.capture.ports.stream import Stream
from cdcflow.config import Postgres
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine import policies
from cdcflow.sources.engine.chunks import Chunks, OwnPartReader
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.findings import of_error, ok
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.postgres import publication, samples, slot
from cdcflow.sources.postgres.catalog import Catalog, Selected
from cdcflow.sources.postgres.catch_up import Windows
from cdcflow.sources.postgres.chunks import CHUNK_BYTES_MAX, PostgresChunks, mark_prefix
from cdcflow.sources.postgres.comparison import PostgresComparison
from cdcflow.sources.postgres.connection import Connection, Connector, Secret, mapping_errors
from cdcflow.sources.postgres.identity import check_database, check_server, identify, is_replaced
from cdcflow.sources.postgres.known_tables import state_of_selected
from cdcflow.sources.postgres.lives import Life, Lives, ended_lives
from cdcflow.sources.postgres.lsn import START, Lsn, lsn_of, position_of
from cdcflow.sources.postgres.preparation import Preparation
from cdcflow.sources.postgres.rewrites import RowVersions
from cdcflow.sources.postgres.slot_names import Names, made_name
from cdcflow.sources.postgres.stored_state import PostgresState, captured_names
from cdcflow.sources.postgres.stream_start import StreamStart
from cdcflow.sources.postgres.table_names import TableNames
from cdcflow.sources.postgres.types import DescribedTable, Policy
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


CREATION_WAIT_S = 60.0
OLDER_WAIT_S = 60.0
WINDOWS = Windows()


class PostgresSource:
    """Implements `cdcflow.ports.Source`. It connects with the first query, not before.

    `secret` returns the password, and is called for every connection; None: the server needs none. `windows` decides
    when a backlog is caught up through SQL, and how. `readers` read its chunks.
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
        readers: Readers | None = None,
    ) -> None:
        self._settings = settings
        self._windows = windows
        self._chunk_bytes_max = chunk_bytes_max
        self._readers = readers
        self._connector = Connector(settings.url, secret)
        self._policy = Policy.of(settings)
        self._selection = Selection.parse(settings.tables)
        self._catalog = Catalog(self._connector, self._selection, self._policy)
        self._table_names = TableNames(self._catalog)
        self._row_versions = RowVersions(self._catalog)
        self._creation_wait_s = creation_wait_s
        self._older_wait_s = older_wait_s
        self._prepared: frozenset[TableId] | None = None
        self._left_out: tuple[TableId, ...] = ()
        self._joining: Mapping[TableId, int] = {}
        self._state: PostgresState | None = None
        self._described: tuple[DescribedTable, ...] | None = None
        self._has_binary: bool | None = None

    # ── cdcflow.ports.Source ────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        system = identify(self._connector)
        return SourceIdentity("postgres", system.system_id, system.database, str(system.timeline))

    def use_shapes(self, shape_of: Callable[[TableId], Table | None]) -> None:
        self._catalog.shape_of = shape_of

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        before = PostgresState.read(checkpoint.source)
        position = None if checkpoint.position is None else lsn_of(checkpoint.position)
        system = identify(self._connector)
        connection = self._connector.connect("prepare", statement_timeout="60s")
        try:
            with mapping_errors(f"preparing {self._connector.address}"):
                check_server(connection)
                replaced = before is not None and accept_history_loss and is_replaced(connection, before, system)
                by_oid = {} if replaced else captured_names(before)  # oids of another database mean nothing
                if not replaced:
                    self._remember_captured(before)
                selected = self._catalog.select(connection)
                end = log_end(connection)
                if position is not None:
                    known = frozenset(by_oid.values())
                    selected, self._left_out = selected.for_restart(known, self._selection)
                self._check(selected)
                names = Names.of(self._settings, log_id)
                # A new table that another session has locked is captured later: all others would wait with it.
                new = [t for t in selected.good if t.rel.oid not in by_oid]
                locked = publication.locked_tables(connection, names.publication, new)
                selected, self._left_out = selected.without(locked), (*self._left_out, *sorted(locked))
                done = Preparation(
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
                ).prepare(transactions_back, loss_accepted=accept_history_loss, replaced=replaced)
        finally:
            self._connector.discard(connection)
        self._joining = done.joining
        selected, self._left_out = selected.without(self._joining), (*self._left_out, *sorted(self._joining))
        self._prepared = frozenset(t.rel.id for t in selected.tables)
        self._table_names.capture(selected)
        earlier = () if accept_history_loss else self._found_ended(position, before, selected, end)
        self._catalog.lives = Lives({t.rel.oid: t.rel.id for t in selected.tables}, earlier, self._selection.selects)
        # The caller of `prepare` requests the tables next: what was just read of a thousand of them is not read again.
        self._described = self._catalog.tables(selected)
        kept = {d.table: d.kept for d in self._described}
        self._state = replace(done.state, policies=policies.by_table(kept), lives=self._catalog.lives.ended)
        prepared = replace(checkpoint, position=position_of(done.position), source=self._state.write())
        return Prepared(prepared, done.history, policies.tables_to_reread(before.policies if before else None, kept))

    def _remember_captured(self, before: PostgresState | None) -> None:
        """Keep in mind which names the log has captured, of those that the settings still select."""
        if before is None:
            return
        names = {*before.names_by_oid.values(), *(life.table for life in before.lives)}
        self._catalog.was_captured |= {table for table in names if self._selection.selects(table)}

    def _found_ended(
        self, position: Lsn | None, before: PostgresState | None, selected: Selected, end: Lsn
    ) -> tuple[Life, ...]:
        """The names whose end a stream that begins at the log's position has yet to pass. `end`: see `ended_lives`."""
        selects = self._selection.selects
        return ended_lives(
            [life for life in (before.lives if before else ()) if selects(life.table)],
            {oid: table for oid, table in captured_names(before).items() if selects(table)},
            {t.rel.oid: t.rel.id for t in selected.tables},
            position=position or START,
            end=end,
            is_kept=self._selection.names,
        )

    def _check(self, selected: Selected) -> None:
        """That these tables can be captured; there may be none where those that were captured are gone."""
        selected.check(may_be_empty=self._selection.only_wildcards or bool(self._catalog.was_captured))

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        try:
            before = PostgresState.read(newest().source)
        except ConfigurationError as error:
            return (of_error("position", error),)
        if before is None:
            return ()  # nothing was created at the server for this log
        names = Names.of(self._settings, log_id)
        where = f"slot {before.slot} and publication {before.publication}"
        connection = self._connector.connect("doctor", statement_timeout="60s")
        try:
            with mapping_errors(f"checking {where} at {self._connector.address}"):
                # Read the slot before the log, and the server's end after it: a daemon may be running, and it confirms
                # only positions that its log has when it confirms them.
                ours = slot.read(connection, before.slot)
                checkpoint = newest()
                now, position = PostgresState.read(checkpoint.source) or before, lsn_of(checkpoint.position or "0/0")
                system = identify(self._connector)
                self._remember_captured(now)
                known = self._known_state(connection, now)
                check_unbroken(self._connector, connection, position, now, names, system, ours, known)
        except (HistoryLost, ConfigurationError) as error:
            return (of_error("position", error),)
        finally:
            self._connector.discard(connection)
        return (ok("position", f"{where} exist, and have everything since {position}"),)

    def _known_state(self, connection: Connection, before: PostgresState) -> str:
        """The publication's fingerprint in the change log, for those tables that are still selected."""
        state = before.publication_state
        try:
            return state_of_selected(state, self._catalog.select(connection))
        except ConfigurationError:
            return state  # errors in the selection are another finding

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
                # The slot first: it is what costs the server something.
                name = names.slot if before is None else before.slot
                published = names.publication if before is None else before.publication
                return [
                    slot.remove(connection, name, is_ours=before is not None or names.slot_is_ours),
                    publication.remove(connection, published, made_name(log_id)),
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
        selected = self._catalog.selected_tables()
        if self._prepared is not None:
            everything, selected = selected, selected.only(self._prepared)
            waiting = self._waiting(selected, self._prepared)
            refused = everything.left_out_of(selected)
            selected, self._left_out = selected.without(waiting), tuple(sorted({*refused, *waiting}))
        self._check(selected)
        return selected

    def _waiting(self, selected: Selected, captured: frozenset[TableId]) -> Collection[TableId]:
        """The tables that came up since and that cannot be captured yet: the publication would wait for their locks, or
        transactions run that began before they were published."""
        new = [t for t in selected.good if t.id not in captured]
        if not new or self._state is None:
            return ()
        name = self._state.publication

        def ask(connection: Connection) -> Collection[TableId]:
            oldest = publication.oldest_transaction(connection)
            joining = {t.id for t in new if self._joining.get(t.id, 0) > oldest}
            return joining | publication.locked_tables(connection, name, new).keys()

        return self._catalog.ask("listing new tables", ask)

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        if checkpoint is None:
            return self._left_out
        before = PostgresState.read(checkpoint.source)
        known = frozenset(captured_names(before).values())
        self._remember_captured(before)
        return self._catalog.selected_tables().for_restart(known, self._selection)[1]

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        before, left_out = PostgresState.read(checkpoint.source), tuple[TableId, ...]()
        system = identify(self._connector)
        self._remember_captured(before)
        selected = self._catalog.selected_tables()
        if before is not None:
            check_names(before, Names.of(self._settings, log_id))
            self._catalog.ask("looking for the log's slot", lambda c: check_database(c, before, system))
            selected, left_out = selected.for_restart(frozenset(before.names_by_oid.values()), self._selection)
        self._check(selected)
        described = self._catalog.tables(selected)
        kept = {d.table: d.kept for d in described}
        then = before.policies if before else None
        why, other = policies.reread(then, kept), policies.otherwise(then, kept)
        oids = [d.table.incarnation for d in described]
        found = self._catalog.ask("reading the statistics of tables", lambda c: sizes(c, oids))
        return Preview(
            tuple(
                TablePreview(
                    t.id,
                    t.incarnation,
                    *found.get(t.incarnation, (None, None)),
                    why.get(t.id, ""),
                    other.get(t.id, ""),
                )
                for t in (d.table for d in described)
            ),
            left_out,
        )

    def compare_rows(self, known: Mapping[TableId, str | None]) -> RowsCompared:
        return self._row_versions.compare(known)

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        name = self._state.publication if self._state else ""
        return self._catalog.ask(
            f"checking publication {name}", lambda c: publication.uncovered_tables(c, name, captured)
        )

    def sample(self, table: TableId, key: Sequence[str]) -> Sample | None:
        return self._catalog.ask(f"reading rows of {table}", lambda c: samples.sample(c, table, key))

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Stream:
        if checkpoint.position is None:
            raise ValueError("a stream begins at a position; `prepare` gives the first one")
        state = PostgresState.read(checkpoint.source)
        if state is None:
            raise ValueError("a stream needs what `prepare` stored")
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
        )
        return start.open(lsn_of(checkpoint.position), binary=self._settings.binary and has_binary)

    def chunks(self) -> Chunks[Connection, Any, Any]:  # Any: the dialect's own parts
        pool = Pool(Connector(self._settings.url, self._connector.secret), "chunks")
        at_once = self._settings.backfill.ranges_at_once if self._readers is None else self._readers.count
        dialect = PostgresChunks(
            pool,
            policy=self._policy,
            parts_at_once=at_once,
            look_up=self._table_names.look_up,
            beat=self._check_publication,
            take_version=self._row_versions.take,
            prefix=mark_prefix(self._state.slot if self._state else ""),
            chunk_bytes_max=self._chunk_bytes_max,
        )
        return Chunks(
            dialect,
            pool,
            parts_at_once=at_once,
            whole_bytes_max=self._settings.backfill.whole_bytes_max,
            keys_bytes_max=self._chunk_bytes_max,
            readers=self._readers,
        )

    def part_reader(self) -> PartReader:
        """Reads parts of chunks for another process that has this source open."""
        self._table_names.capture(self._catalog.selected_tables())
        return OwnPartReader(self.chunks(), self.close)

    def comparison(self, checkpoint: Checkpoint) -> Comparison:
        self._state = PostgresState.read(checkpoint.source)
        self._remember_captured(self._state)
        selected = self._catalog.selected_tables()
        self._table_names.capture(selected)
        tables = [described.table for described in self._catalog.tables(selected)]
        return PostgresComparison(self._catalog, tables, self.chunks(), self.close)

    def doctor(self) -> Sequence[Finding]:
        from cdcflow.sources.postgres import doctor  # a daemon never needs it, and its import is slow

        return doctor.findings(self._connector, self._settings, self._selection)

    def facts(self) -> Mapping[str, str]:
        from cdcflow.sources.postgres import doctor

        return self._catalog.ask(f"querying the version of {self._connector.address}", doctor.facts)

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        name = self._state.slot if self._state else self._settings.slot
        if name is None and log_id:
            name = Names.of(self._settings, log_id).slot

        def ask(connection: Connection) -> SourceStatus:
            found = status_of(connection, name or only_slot(connection), acknowledged)
            left_out = {"left_out": ", ".join(map(str, self._left_out))} if self._left_out else {}
            return replace(found, details={**found.details, **left_out})

        return self._catalog.ask(f"querying the status of {self._connector.address}", ask)

    def close(self) -> None:
        self._connector.close()
        self._catalog.close()

    def _check_publication(self, connection: Connection) -> None:
        """Check that the publication is still what `prepare` left.

        Raises:
            HistoryLost: it was dropped or altered, or a table was dropped from it.
        """
        if self._state is None:
            return
        name = self._state.publication
        check_publication(connection, publication.read(connection, name), name, self._state.publication_state)


def sizes(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[int | None, int | None]]:
    """Rows and bytes by oid; a partitioned table's are those of its partitions. None: the server does not know."""
    return {oid: (rows, size) for oid, rows, size in connection.execute(_SIZES, (list(oids),))}


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
    at = lsn_of(acknowledged) if acknowledged else (found.confirmed if found else None)
    return SourceStatus(
        lag_bytes=None if at is None else max(end - at, 0),
        retained_bytes=None if found is None or found.restart is None else max(end - found.restart, 0),
        details=details,
        is_lost=found is not None and found.is_lost,
    )


def log_end(connection: Connection) -> Lsn:
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
