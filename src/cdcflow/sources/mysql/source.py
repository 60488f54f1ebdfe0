"""Implements `cdcflow.ports.Source` for MySQL and MariaDB: creates and checks positions, opens the stream and the
chunks.

The checkpoint keeps a `MySQLState` (`stored_state`). If the position is no longer valid, or log after it is gone,
`prepare` raises `HistoryLost`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdcflow.capture.interleave.messages import KnownRows, RowsCompared
from cdcflow.capture.ports.comparison import Comparison
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.moves import MovePlan
from cdcflow.capture.ports.part_readers import PartReader, Readers
from cdcflow.capture.ports.source import (
    EventComparison,
    Sample,
    SourceHistory,
    SourceStatus,
)
from cdcflow.capture.ports.stream import Stream
from cdcflow.config import MySQL
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.chunks import Chunks, OwnPartReader
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.moves import check_tables
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.engine.policies import ByShape, ColumnPolicy, Policies
from cdcflow.sources.engine.replica_wait import check_at_first_start, executors_read_elsewhere
from cdcflow.sources.engine.selection import Selection, table_id
from cdcflow.sources.engine.source import Begun, MovableSource, Sizes, Start, position_to_begin
from cdcflow.sources.mysql import binlog_status, doctor, errant, overlap, samples, second_opinion
from cdcflow.sources.mysql.backfill_replica import BackfillReplica, find_problem, no_gtids
from cdcflow.sources.mysql.binlog import BinlogDecoder
from cdcflow.sources.mysql.captured_tables import CapturedTables
from cdcflow.sources.mysql.catalog import CaptureSelection, Catalog, CatalogTable, Selected
from cdcflow.sources.mysql.chunks import MySQLChunks
from cdcflow.sources.mysql.comparison import MySQLComparison
from cdcflow.sources.mysql.connection import Connection, Connector, OneServer, query, version_of
from cdcflow.sources.mysql.decoders import split
from cdcflow.sources.mysql.dump import Dump, ServerIdConflicts
from cdcflow.sources.mysql.errors import LogPurged
from cdcflow.sources.mysql.event_samples import EventSamples
from cdcflow.sources.mysql.fences import DeliveredGtids, NoStream
from cdcflow.sources.mysql.lives import Lives, ended_tables, new_tables
from cdcflow.sources.mysql.marks import Expectations, Marking, ReadOnlyMarks, WrittenMarks
from cdcflow.sources.mysql.moves import MysqlRoute, find, server_text, steps
from cdcflow.sources.mysql.opinion_exclusions import can_read
from cdcflow.sources.mysql.position import BinlogPosition, binlog_position_of, position_of
from cdcflow.sources.mysql.preparation import WAIT_S, Before, BeginPosition, Preparation
from cdcflow.sources.mysql.row_events import Marks
from cdcflow.sources.mysql.snapshots import SnapshotTaker
from cdcflow.sources.mysql.stored_state import MySQLState
from cdcflow.sources.mysql.stream import BinlogStream
from cdcflow.sources.mysql.types.columns import Policy
from cdcflow.sources.mysql.types.registry import kept_as

_SIZES = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH FROM information_schema.TABLES"


FIRST_SERVER_ID = 1 << 31
"""Generated server ids start here: operators usually number their servers from 1."""

LOOK_WAIT_S = 2.0
"""How long `continues` waits for logged transactions to become visible."""


class MySQLSource(MovableSource[Connection, MySQLState, CatalogTable]):
    """Implements `cdcflow.ports.Source`. Connects only when a method needs it.

    `secret` returns the password, read again for every connection; None: the server requires none. `wait_s` is how long
    `prepare` waits for logged transactions to become visible. `readers`: other processes that read parts of its chunks;
    None: this process reads them.
    """

    _connector: Connector

    def __init__(
        self, settings: MySQL, secret: Secret, *, wait_s: float = WAIT_S, readers: Readers | None = None
    ) -> None:
        connector, marks_table = Connector(settings, secret, OneServer()), table_id(settings.marks_table)
        wanted = CaptureSelection(Selection.parse(settings.tables), marks_table, settings.tables_without_key == "whole")
        policy = Policy(settings.zero_dates, settings.bad_text, dict(settings.columns))
        self._policy = policy
        self._catalog = Catalog(connector, wanted, policy)
        super().__init__(connector, self._catalog)
        self._settings = settings
        self._readers = readers
        self._flavor = settings.kind
        self._marks_table = marks_table
        self._wait_s = wait_s
        self._conflicts = ServerIdConflicts()
        self._log_id = ""
        self._entries: tuple[CatalogTable, ...] = ()
        self._lives = Lives()
        self._shape_of: Callable[[TableId], Table | None] = lambda table: None
        self._delivered = DeliveredGtids()
        self._expectations = Expectations()
        self._has_gtids = True
        self._samples = EventSamples(can_read)
        self._is_opinion_missing = False
        self._replica: BackfillReplica | None = None

    # ── engine.source ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def _selection(self) -> Selection:
        return self._catalog.wanted.selection

    def _read_state(self, stored: Mapping[str, str]) -> MySQLState | None:
        return MySQLState.read(stored)

    def _captured_by(self, state: MySQLState | None) -> frozenset[TableId]:
        return frozenset(state.captured) if state else frozenset()

    def _policies_of(self, state: MySQLState) -> Policies | None:
        return state.policies

    def _with_policies(self, state: MySQLState, kept: Policies) -> MySQLState:
        return replace(state, policies=kept)

    def _begin(self, connection: Connection, start: Start[MySQLState]) -> Begun[MySQLState, CatalogTable]:
        self._log_id, before = start.log_id, start.before
        slot = slot_of(start.log_id)
        doctor.check(connection, self._settings)
        self._expectations = Expectations()
        route = None if start.move is None else self._route(connection, start)
        marking = self._marking(slot)
        marking.ensure(connection)
        selected, self._left_out = self._select_for_start(before)
        selected = self._fail_alone(selected, self._captured_by(before), start.checkpoint)
        self._check(selected, self._captured_by(before))
        address = str(self._connector.address)
        preparation = Preparation(connection, self._flavor, marking, address=address, wait_s=self._wait_s)
        begun, state, history = self._prepare_position(preparation, start, slot, route)
        is_lost = history is not SourceHistory.CONTINUES
        self._lives = Lives()
        if before is not None and not is_lost:
            self._lives = self._found_lives(connection, preparation, before, begun, selected)
        self._delivered = DeliveredGtids()
        self._has_gtids = preparation.has_gtids
        if self._readers is not None and self._flavor == "mysql" and not self._has_gtids:
            raise ConfigurationError(
                f"reading with executors from {self._connector.address}: its transactions have no GTIDs, and what an"
                " executor's snapshot sees cannot be determined without them",
                remedy="set gtid_mode=ON at the server, or run the same command without --on",
                runbook="settings",
            )
        if (url := self._settings.backfill.url) is not None:
            if not self._has_gtids:
                raise no_gtids(self._connector.address)
            if start.checkpoint.position is None:
                reading = self._connector.to(url)
                check_at_first_start(reading.address, lambda: find_problem(reading, self._catalog))
        self._entries = selected.good
        captured = tuple(sorted({*(t.id for t in selected.good), *self._lives.gone_tables}))
        self._check(selected, frozenset(captured))
        return Begun(
            position_of(begun.position), replace(state, captured=captured, lives=self._lives), selected, history
        )

    def _check_log(self, before: MySQLState | None, log_id: str) -> None:
        if before is not None:
            _check_slot(before, slot_of(log_id))

    def _select(self, before: MySQLState | None) -> Selected:
        return self._catalog.selected_tables(self._captured_by(before))

    def _check(self, selected: Selected, captured: frozenset[TableId]) -> None:
        self._catalog.check(selected, had_some=any(self._catalog.wanted.selects(t) for t in captured))

    def _describe(self, selected: Selected) -> ByShape:
        found: dict[Table, Mapping[int, ColumnPolicy]] = {}
        for table in selected.good:
            is_failing = table.id in selected.failing
            described = (self._catalog.describe_failing if is_failing else self._catalog.describe_entry)(table)
            columns = zip(described.table.columns, described.columns, described.codecs, strict=True)
            kept = {column.number: kept_as(server, codec) for column, server, codec in columns}
            found[described.table] = {number: one for number, one in kept.items() if one is not None}
        return found

    def _sizes(self, connection: Connection, tables: Sequence[Table]) -> Sizes:
        return sizes(connection)

    def _open_stream(self, position: Position, state: MySQLState, open_spool: OpenSpool) -> Stream:
        by_gtid, begin = state.foreign == position, binlog_position_of(position)
        tables = CapturedTables(self._catalog, self._entries, self._lives, self._shape_of)
        decoder = BinlogDecoder(
            flavor=self._flavor,
            position=begin,
            tables=tables,
            marks=Marks(state.slot, tables.marks if self._settings.fence == "marks" else None),
            open_spool=open_spool,
            spool_bytes_max=self._settings.spool_bytes_max,
            by_gtid=by_gtid,
            on_gtids=self._delivered.add if self._flavor == "mysql" or self._settings.backfill.url else None,
            samples=self._samples,
        )
        dump = self._dump(begin, by_gtid=by_gtid)
        stream = BinlogStream(self._connector, dump, decoder, conflicts=self._conflicts, split=split)
        self._expectations.attach(stream)
        return stream

    def _compare(self, selected: Selected, tables: Sequence[Table]) -> Comparison:
        self._has_gtids = self._catalog.ask(
            f"querying the GTIDs of {self._connector.address}", lambda c: binlog_status.has_gtids(c, self._flavor)
        )
        first = self._state.compared_from if self._state is not None else None
        return MySQLComparison(
            self._flavor, self._catalog, tables, self.chunks(), self.close, first_transaction=first or 0
        )

    def _check_continues(
        self, before: MySQLState, position: Position, newest: Callable[[], Checkpoint], log_id: str
    ) -> str:
        stored = _before(position, before)
        where = f"{stored.position.start.file} at byte {stored.position.start.pos}"

        def question(connection: Connection) -> None:
            self._reading_preparation(connection).again(stored)

        try:
            self._catalog.ask(f"checking {where} at {self._connector.address}", question)
        except LogPurged:
            if not self._settings.releases:
                raise
            return f"the server has purged its log after {where}: the next start takes a new position, and repairs"
        return f"the binary log has everything since {where}"

    def _read_status(self, connection: Connection, acknowledged: Position | None, log_id: str) -> SourceStatus:
        found = status_of(connection, self._flavor, acknowledged)
        opinion = {"second_opinion": second_opinion.NOT_INSTALLED} if self._is_opinion_missing else {}
        return replace(found, details={**found.details, **self._unlogged_tables(connection), **opinion})

    def _unlogged_tables(self, connection: Connection) -> dict[str, str]:
        """Return the captured tables that may differ from the source, because foreign keys change them without being
        logged."""
        wanted = self._catalog.wanted
        found = doctor.unlogged_tables(
            connection, self._flavor, lambda t: wanted.selects(t) and not wanted.is_shadow(t)
        )
        return {"cascades_not_logged": ", ".join(map(str, found))} if found else {}

    def _marking(self, slot: str) -> Marking:
        if self._settings.fence == "read-only":
            return ReadOnlyMarks(self._flavor, self._expectations)
        return WrittenMarks(self._marks_table, slot)

    def _dump(self, position: BinlogPosition, *, by_gtid: bool) -> Dump:
        return Dump(
            flavor=self._flavor,
            position=position,
            by_gtid=by_gtid,
            server_id=self._settings.server_id or server_id_of(self._log_id),
            replica=replica_of(self._log_id),
            heartbeat_s=self._settings.heartbeat,
        )

    def _found_lives(
        self,
        connection: Connection,
        preparation: Preparation,
        before: MySQLState,
        begun: BeginPosition,
        selected: Selected,
    ) -> Lives:
        """Return which tables are gone, or new, for a stream that begins at `begun`; the catalog was read before."""
        wanted, present = self._catalog.wanted, frozenset(t.id for t in selected.good)
        captured = frozenset(t for t in before.captured if wanted.selects(t)) - selected.refused.keys()
        known, begin = before.lives, begun.position
        is_other = before.server != preparation.server or begun.by_gtid
        place = None if is_other else begin.coordinate
        ends = ended_tables(
            known,
            captured,
            present,
            position=place,
            end=binlog_status.end(connection).coordinate,
            is_kept=wanted.selection.names,
        )
        is_new = bool(present - captured or known.tables_ended_by(place) & present)
        visible = preparation.visible_end() if is_new and place is not None and begin.xa is None else None
        return Lives(ends, new_tables(known, captured, present, position=place, visible=visible))

    def _prepare_position(
        self, preparation: Preparation, start: Start[MySQLState], slot: str, route: MysqlRoute | None
    ) -> tuple[BeginPosition, MySQLState, SourceHistory]:
        """Return where the stream begins, the state to store, and whether the server has the log in between.

        `route`: set if the log moves here.
        """
        checkpoint, before = start.checkpoint, start.before
        new = MySQLState(
            server=preparation.server,
            has_all_gtids=preparation.has_gtids,
            slot=slot,
            compared_from=checkpoint.next_transaction,
            others=before.others if before else {},
        )
        if checkpoint.position is None or before is None:
            return preparation.first(), new, SourceHistory.CONTINUES
        _check_slot(before, slot)
        if route is not None and route.has_gap:
            return preparation.first(), new, SourceHistory.MOVED

        def again() -> tuple[BeginPosition, MySQLState]:
            begun = self._again(preparation, start, before)
            state = replace(new, has_all_gtids=before.has_all_gtids)
            if begun.by_gtid:
                return begun, replace(state, foreign=position_of(begun.position))
            # The latest transactions of the change log are from this server's log too, so a later start can compare
            # them.
            return begun, state if before.compared_from is None else replace(state, compared_from=before.compared_from)

        def first() -> tuple[BeginPosition, MySQLState]:
            return preparation.first(), new

        try:
            found = position_to_begin(again, first, is_loss_accepted=start.is_loss_accepted)
        except LogPurged:
            if not self._settings.releases:
                raise
            # No record is written before: a process that is killed here finds the log purged again at its next start.
            return *first(), SourceHistory.RELEASED
        return *found, SourceHistory.LOST if start.is_loss_accepted else SourceHistory.CONTINUES

    def _again(self, preparation: Preparation, start: Start[MySQLState], before: MySQLState) -> BeginPosition:
        """Return the log's position, checked at this server together with the transactions before it."""
        assert start.checkpoint.position is not None  # noqa: S101 the caller has checked
        begun, back = preparation.again(_before(start.checkpoint.position, before)), start.transactions_back
        dump = self._dump(begun.position, by_gtid=begun.by_gtid)
        if begun.by_gtid:
            errant.check(self._connector, dump, before.captured, back)
        elif back is not None and before.compared_from is not None:
            overlap.check_file(self._connector, dump)
            overlap.check_same(self._connector, dump, before.compared_from, back)
        return begun

    # ── engine.source: moves ─────────────────────────────────────────────────────────────────

    def _state_to_move(self, checkpoint: Checkpoint, log_id: str) -> MySQLState:
        before = super()._state_to_move(checkpoint, log_id)
        _check_slot(before, slot_of(log_id))
        self._log_id = log_id
        return before

    def _plan_move(self, connection: Connection, start: Start[MySQLState], before: MySQLState) -> MovePlan:
        doctor.check(connection, self._settings)
        route = self._route(connection, start)
        selected, self._left_out = self._select_for_start(before)
        selected = self._fail_alone(selected, self._captured_by(before), start.checkpoint)
        self._check(selected, self._captured_by(before))
        version = ".".join(map(str, version_of(connection.get_server_info())))
        return MovePlan(
            route.kind,
            not route.has_gap,
            server_text(self._flavor, "", before.server),
            server_text(self._flavor, version, binlog_status.server_of(connection, self._flavor)),
            route.text,
            self._previews(connection, selected),
            tuple(steps(route, "" if self._settings.fence == "read-only" else str(self._marks_table))),
        )

    def _route(self, connection: Connection, start: Start[MySQLState]) -> MysqlRoute:
        """Return the route of a log that moves to this server. Nothing is written.

        Raises:
            ConfigurationError: the log cannot continue here.
        """
        before = start.before
        assert before is not None and start.move is not None  # noqa: S101, PT018  `move` and `plan_move` have checked
        preparation = self._reading_preparation(connection)
        route = find(lambda: self._again(preparation, start, before), compares=start.move.compares)
        if route.has_gap and before.server != preparation.server:
            here = [t.id for t in self._catalog.selected_tables(frozenset(before.captured)).tables]
            check_tables(before.captured, here, self._selection.selects)
        return route

    def _reading_preparation(self, connection: Connection) -> Preparation:
        """Return a preparation that only reads: its marks have no stream to report them, and are not written."""
        marking = ReadOnlyMarks(self._flavor, Expectations())
        address = str(self._connector.address)
        return Preparation(connection, self._flavor, marking, address=address, wait_s=LOOK_WAIT_S)

    # ── cdcflow.ports.Source ────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        # A promoted replica has another uuid and continues with the same transactions. Whether it does is checked in
        # `prepare`, where both sets of transactions are available.
        self._catalog.ask(f"identifying {self._connector.address}", binlog_status.end)
        return SourceIdentity(self._flavor, "by transactions", "")

    def refuse_with(self, check: Callable[[Table], object]) -> None:
        self._catalog.fits = check

    def use_shapes(self, shape_of: Callable[[TableId], Table | None]) -> None:
        self._shape_of = shape_of

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        return RowsCompared((), self._refused)  # the binary log contains the statements themselves

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        return self._catalog.ask(
            f"reading the binary log filters of {self._connector.address}",
            lambda c: doctor.uncovered_tables(c, self._settings, captured),
        )

    def sample(self, table: TableId, key: Sequence[str]) -> Sample | None:
        return self._catalog.ask(f"reading rows of {table}", lambda c: samples.sample(c, table, key))

    def sample_events(self, *, wanted: bool) -> None:
        is_installed = second_opinion.is_installed()
        self._samples.wanted = wanted and is_installed
        self._is_opinion_missing = wanted and not is_installed

    def compare_event(self) -> EventComparison | None:
        kept = self._samples.take()
        return None if kept is None else second_opinion.compare(kept, self._flavor)

    def chunks(self) -> Chunks[Connection, Any, Any]:  # Any: the dialect's own parts
        return self._chunks(self._delivered)

    def part_reader(self) -> PartReader:
        """Return a reader of parts of chunks, for another process that has this source open."""
        return OwnPartReader(self._chunks(NoStream()), self.close)

    def _chunks(self, delivered: DeliveredGtids | NoStream) -> Chunks[Connection, Any, Any]:
        marking = self._marking(self._state.slot if self._state else "")
        snapshots = SnapshotTaker(self._flavor, has_gtids=self._has_gtids, delivered=delivered, marking=marking)
        pool = Pool(self._connector.again(), "chunks")
        replica = self._replica = self._open_replica(delivered)
        dialect = MySQLChunks(
            pool,
            snapshots=snapshots,
            marking=marking,
            look_up=self._catalog.look_up,
            describe=self._catalog.describe_entry,
            replica=replica,
        )
        backfill = self._settings.backfill
        return Chunks(
            dialect,
            pool,
            parts_at_once=backfill.ranges_at_once if self._readers is None else self._readers.count,
            whole_bytes_max=backfill.whole_bytes_max,
            readers=self._readers,
            reading=None if replica is None else replica.pool,
        )

    def _open_replica(self, delivered: DeliveredGtids | NoStream) -> BackfillReplica | None:
        """Return the replica that rows are read from; None if they are read at `source.url`."""
        url = self._settings.backfill.url
        if url is None:
            return None
        if self._readers is not None or isinstance(delivered, NoStream):
            raise executors_read_elsewhere()
        if not self._has_gtids:
            raise no_gtids(self._connector.address)
        connector = self._connector.to(url)
        catalog = Catalog(connector, self._catalog.wanted, self._policy)
        return BackfillReplica(connector, self._catalog, catalog, delivered)

    def rows_from(self) -> str:
        return "" if self._replica is None else self._replica.waits.status

    def doctor(self) -> Sequence[Finding]:
        return doctor.findings(self._connector, self._settings, self._catalog)

    def loose_collations(self) -> Mapping[TableId, Mapping[str, str]]:
        return self._catalog.loose_collations()

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        """Return an empty list: the server does not keep its log for particular readers."""
        return ()

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        before = MySQLState.read(checkpoint.source)
        slot = before.slot if before else slot_of(log_id)
        attempted = f"dropping what cdcflow created in {self._connector.address}"
        found = self._catalog.ask(attempted, WrittenMarks(self._marks_table, slot).drop)
        if self._settings.fence == "read-only":  # nothing is written; any marks are from an earlier setting
            return [d for d in found if d.outcome == "removed"]
        return found

    def facts(self) -> Mapping[str, str]:
        return self._catalog.ask(
            f"querying the version of {self._connector.address}", lambda c: doctor.facts(c, self._flavor)
        )


def _check_slot(before: MySQLState, slot: str) -> None:
    if before.slot != slot:
        raise ConfigurationError(
            f"this log's marks have the name {before.slot}, but the settings name {slot}",
            remedy="use the log that this position belongs to",
            runbook="other-log",
        )


def _before(position: Position, state: MySQLState) -> Before:
    """Return the state that an earlier run stored, for a preparation."""
    return Before(
        position=binlog_position_of(position),
        server=state.server,
        has_all_gtids=state.has_all_gtids,
        by_gtid=state.foreign == position,
    )


# ── names that only this log uses ───────────────────────────────────────────────────────────────────────────


def _digest(log_id: str) -> bytes:
    return hashlib.sha256(log_id.encode()).digest()


def slot_of(log_id: str) -> str:
    """Return the name of a log's marks: several logs may follow one server."""
    return f"cdcflow_{_digest(log_id).hex()[:8]}"


def server_id_of(log_id: str) -> int:
    return FIRST_SERVER_ID | int.from_bytes(_digest(log_id)[:4], "big") >> 1


def replica_of(log_id: str) -> str:
    """Return the uuid by which the server identifies this log's reader."""
    return str(uuid.UUID(bytes=_digest(log_id)[:16]))


# ── status ──────────────────────────────────────────────────────────────────────────────────────────────────


def status_of(connection: Connection, flavor: str, acknowledged: Position | None) -> SourceStatus:
    """Return how far the log's end is ahead, and how long the server keeps the log that cdcflow still needs."""
    files = binlog_status.files(connection)
    found = doctor.variables(connection, "binlog_expire_logs_seconds", "expire_logs_days", "max_binlog_total_size")
    details: dict[str, str] = {"oldest_file": files[0][0].name, "newest_file": files[-1][0].name} if files else {}
    details |= _retention(found)
    lag: int | None = None
    if acknowledged is not None:
        position = binlog_position_of(acknowledged)
        lag = binlog_status.bytes_behind(files, position)
        names = [name for name, _ in files]
        if lag is None:
            details["position_file"] = f"{position.file} is gone"
        else:
            details |= {"position_file": position.file.name, "files_until_lost": str(names.index(position.file))}
    is_lost = acknowledged is not None and lag is None
    return SourceStatus(lag, sum(size for _, size in files), details, is_lost)


def _retention(found: Mapping[str, object]) -> dict[str, str]:
    seconds = float(str(found.get("binlog_expire_logs_seconds") or 0))
    if not seconds:
        seconds = 86400 * float(str(found.get("expire_logs_days") or 0))
    kept = {"kept_seconds": "unlimited" if not seconds else str(int(seconds))}
    size = str(found.get("max_binlog_total_size") or "0")
    return kept | ({"kept_bytes_max": size} if size != "0" else {})


def sizes(connection: Connection) -> Sizes:
    """Return rows and bytes of every table.

    InnoDB estimates rows from a sample, and a server may report statistics that are a day old.
    """
    rows = query(connection, _SIZES)
    return {TableId(schema, name): (_number(count), _number(size)) for schema, name, count, size in rows}


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))
