"""Implements `cdcflow.ports.Source` for a database in memory: creates and checks positions, opens stream and chunks.

The checkpoint keeps a `MemoryState` (`stored_state`). A position is still valid if the slot exists, the database has
all history after it, and the change log and the database's log contain the same transactions where they overlap.
Otherwise it raises `HistoryLost`; if an operator accepts that, `prepare` creates a new position and reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cdcflow.capture.interleave.messages import KnownRows, RowsCompared, RowVersion
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.source import SourceHistory, SourceStatus, TransactionsBack
from cdcflow.capture.ports.stream import Stream
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.chunks import KEYS_BYTES_MAX, Chunks
from cdcflow.sources.engine.connections import Pool, Session
from cdcflow.sources.engine.errors import position_lost
from cdcflow.sources.engine.findings import ok, problem, warning
from cdcflow.sources.engine.policies import ByShape
from cdcflow.sources.engine.selection import Selected, Selection
from cdcflow.sources.engine.source import Begun, Sizes, SqlSource, Start, position_to_begin
from cdcflow.sources.memory.chunks import MemoryChunks, MemoryConnection, MemoryConnector, row_version
from cdcflow.sources.memory.stored_state import MemoryState
from cdcflow.sources.memory.stream import MemoryStream
from cdcflow.sources.memory_database import MemoryCommit, MemoryDatabase, MemoryTable, Statement, number_of, position_of

SPOOL_ROWS = 1000


class MemorySource(SqlSource[MemoryConnection, MemoryState, MemoryTable]):
    """Implements `cdcflow.ports.Source`. `tables` are patterns, as in the settings of other sources. `spool_rows`: a
    transaction with more rows is spooled. `wait_s`: how long `prepare` waits until logged transactions are visible."""

    def __init__(
        self,
        database: MemoryDatabase,
        tables: Sequence[str] = ("*.*",),
        *,
        spool_rows: int = SPOOL_ROWS,
        parts_at_once: int = 2,
        wait_s: float = 10.0,
        whole_bytes_max: int = 1 << 30,
        keys_bytes_max: int = KEYS_BYTES_MAX,
    ) -> None:
        connector = MemoryConnector(database)
        super().__init__(connector, Session(connector, lambda: connector.connect("catalog")))
        self._database = database
        self._patterns = Selection.parse(tables)
        self._spool_rows = spool_rows
        self._parts_at_once = parts_at_once
        self._wait_s = wait_s
        self._whole_bytes_max, self._keys_bytes_max = whole_bytes_max, keys_bytes_max
        self._slot = "cdcflow"
        self._connectors: list[MemoryConnector] = []

    # ── engine.source ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def _selection(self) -> Selection:
        return self._patterns

    def _read_state(self, stored: Mapping[str, str]) -> MemoryState | None:
        return MemoryState.read(stored)

    def _captured_by(self, state: MemoryState | None) -> frozenset[TableId]:
        return frozenset(state.captured) if state else frozenset()

    def _begin(self, connection: MemoryConnection, start: Start[MemoryState]) -> Begun[MemoryState, MemoryTable]:
        self._slot, before, checkpoint = _slot_of(start.log_id), start.before, start.checkpoint
        with self._database.changed:
            history = SourceHistory.CONTINUES
            if checkpoint.position is None or before is None:
                position = self._first()
            else:
                self._check_log(before, start.log_id)
                at, accepted = number_of(checkpoint.position), start.is_loss_accepted

                def again() -> int:
                    self._check_whole(at, start.transactions_back)
                    return at

                position = position_to_begin(again, self._first, is_loss_accepted=accepted)
                history = SourceHistory.LOST if accepted else history
            selected = self._select(before)
        captured = tuple(t.id for t in selected.good)
        state = MemoryState(slot=self._slot, captured=captured, others=before.others if before else {})
        return Begun(position_of(position), state, selected, history)

    def _check_log(self, before: MemoryState | None, log_id: str) -> None:
        if before is not None and before.slot != _slot_of(log_id):
            raise ConfigurationError(
                f"this log was begun with slot {before.slot}, but the settings name {_slot_of(log_id)}",
                remedy="use the log that this position belongs to",
                runbook="other-log",
            )

    def _select(self, before: MemoryState | None) -> Selected[MemoryTable]:
        with self._database.changed:
            found = [t for _, t in sorted(self._database.tables.items()) if self._selection.selects(t.id)]
        return Selected(tuple(found), {}, ())

    def _check(self, selected: Selected[MemoryTable], captured: frozenset[TableId]) -> None:
        """Raise an error if these tables cannot be captured. The settings may select no table, because none may exist
        yet."""
        selected.check(may_be_empty=True)

    def _describe(self, selected: Selected[MemoryTable]) -> ByShape:
        with self._database.changed:
            return {t.shape: {} for t in selected.good}

    def _sizes(self, connection: MemoryConnection, tables: Sequence[Table]) -> Sizes:
        with self._database.changed:
            return {t.id: (len(self._database.tables[t.id].rows), None) for t in tables}

    def _open_stream(self, position: Position, state: MemoryState, open_spool: OpenSpool) -> Stream:
        return MemoryStream(
            self._database,
            slot=state.slot,
            position=number_of(position),
            captured=state.captured,
            open_spool=open_spool,
            spool_rows=self._spool_rows,
        )

    def _check_continues(
        self, before: MemoryState, position: Position, newest: Callable[[], Checkpoint], log_id: str
    ) -> str:
        with self._database.changed:
            self._slot = before.slot
            self._check_whole(number_of(position), None)
        return f"slot {before.slot} has everything since {position}"

    def _read_status(self, connection: MemoryConnection, acknowledged: Position | None, log_id: str) -> SourceStatus:
        with self._database.changed:
            end = self._database.end
            kept = min(self._database.slots.values(), default=end)
        lag = None if acknowledged is None else end - number_of(acknowledged)
        return SourceStatus(lag, end - kept, {"end": position_of(end).text})

    # ── cdcflow.ports.Source ────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        return SourceIdentity("memory", "1", self._database.name)

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        there = {t.id: t.incarnation for t in self._describe(self._select(None))}
        return {t: "it is another table now" for t, incarnation in captured.items() if there.get(t) != incarnation}

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        if self._database.rewrites_known_by == "log":
            return RowsCompared((), self._refused)  # the log contains the statements themselves
        found = []
        with self._database.changed:
            for table, rows in known.items():
                then = rows.version
                there = self._database.tables.get(table)
                now = None if there is None else row_version(self._database, there)
                if now is not None and now != then:
                    found.append(RowVersion(table, then, now, changed=then is not None))
        return RowsCompared(tuple(found), self._refused)

    def chunks(self) -> ChunkSource:
        connector = MemoryConnector(self._database)
        self._connectors.append(connector)
        dialect = MemoryChunks(self._database, self._slot, lambda: connector.closed)
        return Chunks(
            dialect,
            Pool(connector, "chunks"),
            parts_at_once=self._parts_at_once,
            whole_bytes_max=self._whole_bytes_max,
            keys_bytes_max=self._keys_bytes_max,
        )

    def doctor(self) -> Sequence[Finding]:
        found = [self._finding(table) for table in self._select(None).tables]
        return found or [problem("tables", "no table is selected", "correct source.tables")]

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        return [
            warning(slot, "holds history for a log that may be gone", f"drop slot {slot}")
            for slot in sorted(self._database.slots)
            if slot != _slot_of(log_id)
        ]

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        before = self._read_state(checkpoint.source)
        slot = before.slot if before else _slot_of(log_id)
        with self._database.changed:
            was_there = self._database.slots.pop(slot, None) is not None
        return [Dropped(f"slot {slot}", "removed" if was_there else "absent")]

    def close(self) -> None:
        super().close()
        for connector in self._connectors:
            connector.close()

    # ── positions ───────────────────────────────────────────────────────────────────────────────────────────

    def _first(self) -> int:
        """Return a position at the log's end, once everything before it is visible: otherwise it would be in no chunk
        and in no stream."""
        if not self._database.changed.wait_for(lambda: not self._database.invisible, self._wait_s):
            raise SourceUnavailable(f"waited {self._wait_s:g} s until what is in the log can be seen")
        self._database.slots[self._slot] = self._database.end
        return self._database.end

    def _check_whole(self, position: int, transactions_back: TransactionsBack | None) -> None:
        """Check that the database has all history after the position at which the change log ended."""
        database = self._database
        if self._slot not in database.slots:
            raise position_lost(f"slot {self._slot} is gone")
        kept_from = database.slots[self._slot]
        if kept_from > position:
            raise position_lost(
                f"the database no longer has what follows {position}: it keeps history from {kept_from}"
            )
        if position > database.end:
            raise position_lost(
                f"the database's log ends at {database.end}, before the change log's position {position}"
            )
        if transactions_back is None:
            return
        ours = transactions_back(lambda at: number_of(at) <= kept_from)
        there = {r.position: r.xid for r in database.log if isinstance(r, MemoryCommit | Statement)}
        for at, xid in zip(ours.column("position").to_pylist(), ours.column("xid").to_pylist(), strict=True):
            if kept_from < int(at) <= position and there.get(int(at)) != xid:
                raise position_lost(
                    f"at {at} the database's log differs from the change log: the database was restored from a copy"
                )

    def _finding(self, table: MemoryTable) -> Finding:
        if table.id not in self._database.unreadable:
            return ok(str(table.id), "can be captured")
        grant = f"run GRANT SELECT ON {table.id} TO the user of the capture"
        return problem(str(table.id), "SELECT is not granted", grant)


def _slot_of(log_id: str) -> str:
    return f"cdcflow_{log_id[:8]}"
