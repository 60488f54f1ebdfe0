"""Implements `cdcflow.ports.Source` for MySQL and MariaDB: creates and checks positions, opens the stream and the
chunks.

The checkpoint keeps a `MySQLState` (`stored_state`). If the position is no longer valid, or log after it is gone, it
raises `HistoryLost`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdcflow.capture.interleave.messages import RowsCompared
from cdcflow.capture.ports.comparison import Comparison
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.part_readers import PartReader, Readers
from cdcflow.capture.ports.source import (
    EventComparison,
    Prepared,
    Preview,
    Sample,
    SourceHistory,
    SourceStatus,
    TablePreview,
    TransactionsBack,
)
from cdcflow.capture.ports.stream import Stream
from cdcflow.config import MySQL
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine import policies
from cdcflow.sources.engine.chunks import Chunks, OwnPartReader
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.findings import of_error, ok
from cdcflow.sources.engine.policies import ColumnPolicy
from cdcflow.sources.engine.selection import Selection, table_id
from cdcflow.sources.mysql import binlog_status, doctor, overlap, samples, second_opinion
from cdcflow.sources.mysql.binlog import BinlogDecoder
from cdcflow.sources.mysql.catalog import CapturedTables, CaptureSelection, Catalog, CatalogTable, Selected
from cdcflow.sources.mysql.chunks import MySQLChunks
from cdcflow.sources.mysql.comparison import MySQLComparison
from cdcflow.sources.mysql.connection import Connection, Connector, Secret, query
from cdcflow.sources.mysql.decoders import split
from cdcflow.sources.mysql.dump import Dump, ServerIdConflicts
from cdcflow.sources.mysql.event_samples import EventSamples
from cdcflow.sources.mysql.fences import DeliveredGtids, NoStream
from cdcflow.sources.mysql.lives import Lives, ended_tables, new_tables
from cdcflow.sources.mysql.marks import Expectations, Marking, ReadOnlyMarks, WrittenMarks
from cdcflow.sources.mysql.opinion_exclusions import can_read
from cdcflow.sources.mysql.position import BinlogPosition
from cdcflow.sources.mysql.preparation import WAIT_S, Before, Begun, Preparation
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


class MySQLSource:
    """Implements `cdcflow.ports.Source`. Connects only when a method needs it.

    `secret` returns the password, read again for every connection; None: the server requires none. `wait_s` is how long
    `prepare` waits for logged transactions to become visible. `readers` read its chunks.
    """

    def __init__(
        self, settings: MySQL, secret: Secret, *, wait_s: float = WAIT_S, readers: Readers | None = None
    ) -> None:
        self._settings = settings
        self._readers = readers
        self._flavor = settings.kind
        self._connector = Connector(settings, secret)
        marks_table = table_id(settings.marks_table)
        wanted = CaptureSelection(Selection.parse(settings.tables), marks_table, settings.tables_without_key == "whole")
        policy = Policy(settings.zero_dates, settings.bad_text, dict(settings.columns))
        self._catalog = Catalog(self._connector, wanted, policy)
        self._marks_table = marks_table
        self._wait_s = wait_s
        self._conflicts = ServerIdConflicts()
        self._log_id = ""
        self._state: MySQLState | None = None
        self._captured: tuple[CatalogTable, ...] = ()
        self._selected: Selected | None = None
        self._lives = Lives()
        self._shape_of: Callable[[TableId], Table | None] = lambda table: None
        self._left_out: tuple[TableId, ...] = ()
        self._delivered = DeliveredGtids()
        self._expectations = Expectations()
        self._has_gtids = True
        self._samples = EventSamples(can_read)
        self._is_opinion_missing = False

    # ── cdcflow.ports.Source ────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        # A promoted replica has another uuid and continues with the same transactions. Whether it does is checked in
        # `prepare`, where both sets of transactions are available.
        self._catalog.ask(f"identifying {self._connector.address}", binlog_status.end)
        return SourceIdentity(self._flavor, "by transactions", "")

    def use_shapes(self, shape_of: Callable[[TableId], Table | None]) -> None:
        self._shape_of = shape_of

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        self._log_id = log_id
        slot, before = slot_of(log_id), MySQLState.read(checkpoint.source)
        is_lost = accept_history_loss and before is not None
        connection = self._connector.connect("prepare")
        try:
            with self._connector.mapping_errors(f"preparing {self._connector.address}"):
                doctor.check(connection, self._settings)
                self._expectations = Expectations()
                marking = self._marking(slot)
                marking.ensure(connection)
                selected = self._select(before)
                address = str(self._connector.address)
                preparation = Preparation(connection, self._flavor, marking, address=address, wait_s=self._wait_s)
                begun, state = self._prepare_position(
                    preparation, checkpoint, before, slot, transactions_back, is_loss_accepted=accept_history_loss
                )
                self._lives = Lives()
                if before is not None and not is_lost:
                    self._lives = self._found_lives(connection, preparation, before, begun, selected)
        finally:
            self._connector.discard(connection)
        self._delivered = DeliveredGtids()
        self._has_gtids = preparation.has_gtids
        if self._readers is not None and self._flavor == "mysql" and not self._has_gtids:
            raise ConfigurationError(
                f"reading with executors from {self._connector.address}: its transactions have no GTIDs, and what an"
                " executor's snapshot sees cannot be determined without them",
                remedy="set gtid_mode=ON at the server, or run the same command without --on",
                runbook="settings",
            )
        self._captured, self._selected = selected.good, selected
        kept = self._policies_by_table(selected)
        captured = tuple(sorted({*(t.id for t in selected.good), *self._lives.gone_tables}))
        self._state = replace(state, policies=policies.by_table(kept), captured=captured, lives=self._lives)
        prepared = replace(checkpoint, position=begun.position.text, source=self._state.write())
        history = SourceHistory.LOST if is_lost else SourceHistory.CONTINUES
        reread = policies.tables_to_reread(before.policies if before else None, kept)
        return Prepared(prepared, history, reread)

    def tables(self) -> Sequence[Table]:
        # First those that the stream captures. A table that was created since `prepare` is not among them: the stream
        # would never deliver its changes.
        taken, self._selected = self._selected, None
        selected = taken or self._catalog.selected_tables()
        if taken is None and self._state is not None:
            everything, selected = selected, selected.only(t.id for t in self._captured)
            self._left_out = everything.left_out_of(selected)
        self._catalog.check(selected, had_some=self._has_had_tables)
        return [self._catalog.describe_entry(t).table for t in selected.good]

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        if checkpoint is None:
            return self._left_out
        known = _captured_tables(MySQLState.read(checkpoint.source))
        return self._catalog.selected_tables(known).for_restart(known, self._catalog.wanted.selection)[1]

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        before = MySQLState.read(checkpoint.source)
        known = _captured_tables(before)
        selected, left_out = self._catalog.selected_tables(known), tuple[TableId, ...]()
        if before is not None:
            _check_slot(before, slot_of(log_id))
            selected, left_out = selected.for_restart(known, self._catalog.wanted.selection)
        self._catalog.check(selected, had_some=self._still_selects(known))
        kept = self._policies_by_table(selected)
        then = before.policies if before else None
        why, other = policies.reread(then, kept), policies.otherwise(then, kept)
        found = self._catalog.ask("reading the statistics of tables", sizes)
        unknown = (None, None)
        return Preview(
            tuple(
                TablePreview(
                    t.id,
                    t.incarnation,
                    *found.get((t.id.schema, t.id.name), unknown),
                    why.get(t.id, ""),
                    other.get(t.id, ""),
                )
                for t in kept
            ),
            left_out,
        )

    def compare_rows(self, known: Mapping[TableId, str | None]) -> RowsCompared:
        return RowsCompared(())  # the binary log contains the statements themselves

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

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Stream:
        state = MySQLState.read(checkpoint.source)
        if checkpoint.position is None or state is None:
            raise ValueError("a stream begins at a position; `prepare` gives the first one")
        position = BinlogPosition.parse(checkpoint.position)
        by_gtid = state.foreign == checkpoint.position
        is_mysql = self._flavor == "mysql"
        tables = CapturedTables(self._catalog, self._captured, self._lives, self._shape_of)
        decoder = BinlogDecoder(
            flavor=self._flavor,
            position=position,
            tables=tables,
            marks=Marks(state.slot, tables.marks if self._settings.fence == "marks" else None),
            open_spool=open_spool,
            spool_bytes_max=self._settings.spool_bytes_max,
            by_gtid=by_gtid,
            on_gtids=self._delivered.add if is_mysql else None,
            samples=self._samples,
        )
        dump = self._dump(position, by_gtid=by_gtid)
        stream = BinlogStream(self._connector, dump, decoder, conflicts=self._conflicts, split=split)
        self._expectations.attach(stream)
        return stream

    def _dump(self, position: BinlogPosition, *, by_gtid: bool) -> Dump:
        return Dump(
            flavor=self._flavor,
            position=position,
            by_gtid=by_gtid,
            server_id=self._settings.server_id or server_id_of(self._log_id),
            replica=replica_of(self._log_id),
            heartbeat_s=self._settings.heartbeat,
        )

    def chunks(self) -> Chunks[Connection, Any, Any]:  # Any: the dialect's own parts
        return self._chunks(self._delivered)

    def part_reader(self) -> PartReader:
        """Reads parts of chunks for another process that has this source open."""
        return OwnPartReader(self._chunks(NoStream()), self.close)

    def _chunks(self, delivered: DeliveredGtids | NoStream) -> Chunks[Connection, Any, Any]:
        marking = self._marking(self._state.slot if self._state else "")
        snapshots = SnapshotTaker(self._flavor, has_gtids=self._has_gtids, delivered=delivered, marking=marking)
        pool = Pool(Connector(self._settings, self._connector.secret), "chunks")
        dialect = MySQLChunks(
            pool,
            snapshots=snapshots,
            marking=marking,
            look_up=self._catalog.look_up,
            describe=self._catalog.describe_entry,
        )
        backfill = self._settings.backfill
        return Chunks(
            dialect,
            pool,
            parts_at_once=backfill.ranges_at_once if self._readers is None else self._readers.count,
            whole_bytes_max=backfill.whole_bytes_max,
            readers=self._readers,
        )

    def comparison(self, checkpoint: Checkpoint) -> Comparison:
        self._state = MySQLState.read(checkpoint.source)
        selected = self._catalog.selected_tables(_captured_tables(self._state))
        self._has_gtids = self._catalog.ask(
            f"querying the GTIDs of {self._connector.address}", lambda c: binlog_status.has_gtids(c, self._flavor)
        )
        tables = sorted((self._catalog.describe_entry(t).table for t in selected.good), key=lambda t: t.id)
        return MySQLComparison(self._flavor, self._catalog, tables, self.chunks(), self.close)

    def doctor(self) -> Sequence[Finding]:
        return doctor.findings(self._connector, self._settings, self._catalog)

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        checkpoint = newest()
        try:
            before = MySQLState.read(checkpoint.source)
        except ConfigurationError as error:
            return (of_error("position", error),)
        if checkpoint.position is None or before is None:
            return ()  # nothing was created at the server for this log
        stored = _before(checkpoint.position, before)
        position = stored.position.start
        where = f"{position.file} at byte {position.pos}"

        def question(connection: Connection) -> None:
            # Nothing is written: these marks have no stream to report them.
            marking = ReadOnlyMarks(self._flavor, Expectations())
            address = str(self._connector.address)
            preparation = Preparation(connection, self._flavor, marking, address=address, wait_s=LOOK_WAIT_S)
            preparation.again(stored)

        try:
            self._catalog.ask(f"checking {where} at {self._connector.address}", question)
        except (HistoryLost, ConfigurationError) as error:
            return (of_error("position", error),)
        return (ok("position", f"the binary log has everything since {where}"),)

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        """Nothing: the server does not keep its log for particular readers."""
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

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        def question(connection: Connection) -> SourceStatus:
            found = status_of(connection, self._flavor, acknowledged)
            return replace(found, details={**found.details, **self._unlogged_tables(connection)})

        found = self._catalog.ask(f"querying the status of {self._connector.address}", question)
        left_out = {"left_out": ", ".join(map(str, self._left_out))} if self._left_out else {}
        opinion = {"second_opinion": second_opinion.NOT_INSTALLED} if self._is_opinion_missing else {}
        return replace(found, details={**found.details, **left_out, **opinion})

    def _unlogged_tables(self, connection: Connection) -> dict[str, str]:
        """Captured tables that may differ from the source: foreign keys change them without being logged."""
        wanted = self._catalog.wanted
        found = doctor.unlogged_tables(
            connection, self._flavor, lambda t: wanted.selects(t) and not wanted.is_shadow(t)
        )
        return {"cascades_not_logged": ", ".join(map(str, found))} if found else {}

    def close(self) -> None:
        self._connector.close()
        self._catalog.close()

    # ── preparing ───────────────────────────────────────────────────────────────────────────────────────────

    def _marking(self, slot: str) -> Marking:
        if self._settings.fence == "read-only":
            return ReadOnlyMarks(self._flavor, self._expectations)
        return WrittenMarks(self._marks_table, slot)

    def _policies_by_table(self, selected: Selected) -> dict[Table, Mapping[int, ColumnPolicy]]:
        """How the values of the captured tables are kept, for columns that a setting concerns."""
        found: dict[Table, Mapping[int, ColumnPolicy]] = {}
        for described in map(self._catalog.describe_entry, selected.good):
            columns = zip(described.table.columns, described.columns, described.codecs, strict=True)
            kept = {column.number: kept_as(server, codec) for column, server, codec in columns}
            found[described.table] = {number: one for number, one in kept.items() if one is not None}
        return found

    def _select(self, before: MySQLState | None) -> Selected:
        known = _captured_tables(before)
        selected = self._catalog.selected_tables(known)
        if before is not None:
            selected, self._left_out = selected.for_restart(known, self._catalog.wanted.selection)
        self._catalog.check(selected, had_some=self._still_selects(known))
        return selected

    def _still_selects(self, known: Iterable[TableId]) -> bool:
        """The settings still select some of these tables, which were captured."""
        return any(self._catalog.wanted.selects(t) for t in known)

    @property
    def _has_had_tables(self) -> bool:
        """There were tables to capture; if none are left, they are gone."""
        return bool(self._captured or self._lives.gone_tables)

    def _found_lives(
        self,
        connection: Connection,
        preparation: Preparation,
        before: MySQLState,
        begun: Begun,
        selected: Selected,
    ) -> Lives:
        """Which tables are gone, or new, for a stream that begins there; the catalog was read before."""
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
        self,
        preparation: Preparation,
        checkpoint: Checkpoint,
        before: MySQLState | None,
        slot: str,
        transactions_back: TransactionsBack | None,
        *,
        is_loss_accepted: bool,
    ) -> tuple[Begun, MySQLState]:
        """Where the stream begins, and what to store of it."""
        others = before.others if before else {}
        new = MySQLState(
            server=preparation.server,
            has_all_gtids=preparation.has_gtids,
            slot=slot,
            compared_from=checkpoint.next_transaction,
            others=others,
        )
        if checkpoint.position is None or before is None:
            return preparation.first(), new
        _check_slot(before, slot)
        try:
            begun = preparation.again(_before(checkpoint.position, before))
            if transactions_back is not None and not begun.by_gtid and before.compared_from is not None:
                dump = self._dump(begun.position, by_gtid=False)
                overlap.check_file(self._connector, dump)
                overlap.check_same(self._connector, dump, before.compared_from, transactions_back)
        except HistoryLost:
            if not is_loss_accepted:
                raise
        if is_loss_accepted:
            # Also if the old position still exists: the cause that stopped the stream may be right after it.
            return preparation.first(), new
        again = replace(new, has_all_gtids=before.has_all_gtids)
        if begun.by_gtid:
            return begun, replace(again, foreign=begun.position.text)
        # The transactions already in the change log are from this server's log, too.
        return begun, again if before.compared_from is None else replace(again, compared_from=before.compared_from)


def _check_slot(before: MySQLState, slot: str) -> None:
    if before.slot != slot:
        raise ConfigurationError(
            f"this log's marks have the name {before.slot}, but the settings name {slot}",
            remedy="use the log that this position belongs to",
            runbook="other-log",
        )


def _captured_tables(before: MySQLState | None) -> frozenset[TableId]:
    """The tables that were captured before."""
    return frozenset(before.captured) if before else frozenset()


def _before(position: Position, state: MySQLState) -> Before:
    """What an earlier run stored."""
    return Before(
        position=BinlogPosition.parse(position),
        server=state.server,
        has_all_gtids=state.has_all_gtids,
        by_gtid=state.foreign == position,
    )


# ── names that only this log uses ───────────────────────────────────────────────────────────────────────────


def _digest(log_id: str) -> bytes:
    return hashlib.sha256(log_id.encode()).digest()


def slot_of(log_id: str) -> str:
    """The name of a log's marks: several logs may follow one server."""
    return f"cdcflow_{_digest(log_id).hex()[:8]}"


def server_id_of(log_id: str) -> int:
    return FIRST_SERVER_ID | int.from_bytes(_digest(log_id)[:4], "big") >> 1


def replica_of(log_id: str) -> str:
    """The uuid by which the server identifies this log's reader."""
    return str(uuid.UUID(bytes=_digest(log_id)[:16]))


# ── status ──────────────────────────────────────────────────────────────────────────────────────────────────


def status_of(connection: Connection, flavor: str, acknowledged: Position | None) -> SourceStatus:
    """How far the log's end is ahead, and how long the server keeps the log that cdcflow still needs."""
    files = binlog_status.files(connection)
    found = doctor.variables(connection, "binlog_expire_logs_seconds", "expire_logs_days", "max_binlog_total_size")
    details: dict[str, str] = {"oldest_file": files[0][0], "newest_file": files[-1][0]} if files else {}
    details |= _retention(found)
    lag: int | None = None
    if acknowledged is not None:
        position = BinlogPosition.parse(acknowledged)
        lag = binlog_status.bytes_behind(files, position)
        names = [name for name, _ in files]
        if lag is None:
            details["position_file"] = f"{position.file} is gone"
        else:
            details |= {"position_file": position.file, "files_until_lost": str(names.index(position.file))}
    is_lost = acknowledged is not None and lag is None
    return SourceStatus(lag, sum(size for _, size in files), details, is_lost)


def _retention(found: Mapping[str, object]) -> dict[str, str]:
    seconds = float(str(found.get("binlog_expire_logs_seconds") or 0))
    if not seconds:
        seconds = 86400 * float(str(found.get("expire_logs_days") or 0))
    kept = {"kept_seconds": "unlimited" if not seconds else str(int(seconds))}
    size = str(found.get("max_binlog_total_size") or "0")
    return kept | ({"kept_bytes_max": size} if size != "0" else {})


def sizes(connection: Connection) -> dict[tuple[str, str], tuple[int | None, int | None]]:
    """Rows and bytes by schema and name; None if the server does not know. InnoDB estimates rows from a sample, and a
    server may report statistics that are a day old."""
    return {(schema, name): (_number(rows), _number(size)) for schema, name, rows, size in query(connection, _SIZES)}


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))
