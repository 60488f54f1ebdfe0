"""Implements `cdcflow.ports.Source` for a database in memory: creates and checks positions, opens stream and chunks.

The checkpoint keeps a `MemoryState` (`stored_state`). A position is still valid if the slot exists, the database has
all history after it, and the change log and the database's log contain the same transactions where they overlap.
Otherwise it raises `HistoryLost`; if an operator accepts that, `prepare` creates a new position and reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cdcflow.capture.interleave.messages import RowsCompared, RowVersion
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.source import (
    Prepared,
    Preview,
    SourceHistory,
    SourceStatus,
    TablePreview,
    TransactionsBack,
)
from cdcflow.capture.ports.stream import Stream
from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.chunks import KEYS_BYTES_MAX, Chunks
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.findings import of_error
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.memory.chunks import MemoryChunks, MemoryConnector, row_version
from cdcflow.sources.memory.database import MemoryCommit, MemoryDatabase, MemoryTable, Statement, position_of
from cdcflow.sources.memory.stored_state import MemoryState
from cdcflow.sources.memory.stream import MemoryStream

SPOOL_ROWS = 1000


class MemorySource:
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
        self._database = database
        self._selection = Selection.parse(tables)
        self._spool_rows = spool_rows
        self._parts_at_once = parts_at_once
        self._wait_s = wait_s
        self._whole_bytes_max, self._keys_bytes_max = whole_bytes_max, keys_bytes_max
        self._slot = "cdcflow"
        self._captured: frozenset[TableId] | None = None
        self._connectors: list[MemoryConnector] = []

    def identity(self) -> SourceIdentity:
        return SourceIdentity("memory", "1", self._database.name)

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        self._slot, before = f"cdcflow_{log_id[:8]}", MemoryState.read(checkpoint.source)
        history = SourceHistory.CONTINUES
        with self._database.changed:
            if checkpoint.position is None or before is None:
                position = self._first()
            else:
                _check_slot(before, self._slot)
                position = self._again(int(checkpoint.position), transactions_back, accepted=accept_history_loss)
                history = SourceHistory.LOST if accept_history_loss else history
            self._captured = frozenset(t.id for t in self._selected_tables())
        state = MemoryState(
            slot=self._slot, captured=tuple(sorted(self._captured)), others=before.others if before else {}
        )
        return Prepared(replace(checkpoint, position=position_of(position), source=state.write()), history)

    def tables(self) -> Sequence[Table]:
        with self._database.changed:
            return [t.shape for t in self._selected_tables() if self._captured is None or t.id in self._captured]

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        return ()

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        if (before := MemoryState.read(checkpoint.source)) is not None:
            _check_slot(before, f"cdcflow_{log_id[:8]}")
        with self._database.changed:
            return Preview(
                tuple(TablePreview(t.id, t.shape.incarnation, rows=len(t.rows)) for t in self._selected_tables()),
            )

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        with self._database.changed:
            there = {t.id: t.shape.incarnation for t in self._selected_tables()}
        return {t: "it is another table now" for t, incarnation in captured.items() if there.get(t) != incarnation}

    def compare_rows(self, known: Mapping[TableId, str | None]) -> RowsCompared:
        if self._database.rewrites_known_by == "log":
            return RowsCompared(())  # the log contains the statements themselves
        found = []
        with self._database.changed:
            for table, then in known.items():
                there = self._database.tables.get(table)
                now = None if there is None else row_version(self._database, there)
                if now is not None and now != then:
                    found.append(RowVersion(table, then, now, changed=then is not None))
        return RowsCompared(tuple(found))

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Stream:
        state = MemoryState.read(checkpoint.source)
        if checkpoint.position is None or state is None or self._captured is None:
            raise ValueError("a stream begins at a position; `prepare` gives the first one")
        return MemoryStream(
            self._database,
            slot=state.slot,
            position=int(checkpoint.position),
            captured=self._captured,
            open_spool=open_spool,
            spool_rows=self._spool_rows,
        )

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
        with self._database.changed:
            found = [self._finding(table) for table in self._selected_tables()]
        return found or [Finding("error", "tables", "no table is selected", "mend source.tables")]

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        try:
            before = MemoryState.read(newest().source)
        except ConfigurationError as error:
            return (of_error("position", error),)
        if before is None or before.slot in self._database.slots:
            return ()
        return (Finding("error", "position", f"slot {before.slot} is gone", "run with accept_history_loss"),)

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        ours = f"cdcflow_{log_id[:8]}"
        return [
            Finding("warning", slot, "holds history for a log that may be gone", f"drop slot {slot}")
            for slot in sorted(self._database.slots)
            if slot != ours
        ]

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        before = MemoryState.read(checkpoint.source)
        slot = before.slot if before else f"cdcflow_{log_id[:8]}"
        with self._database.changed:
            was_there = self._database.slots.pop(slot, None) is not None
        return [Dropped(f"slot {slot}", "removed" if was_there else "absent")]

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        with self._database.changed:
            end = self._database.end
            kept = min(self._database.slots.values(), default=end)
        return SourceStatus(
            None if acknowledged is None else end - int(acknowledged), end - kept, {"end": position_of(end)}
        )

    def close(self) -> None:
        for connector in self._connectors:
            connector.close()

    # ── preparing ───────────────────────────────────────────────────────────────────────────────────────────

    def _first(self) -> int:
        """A position at the log's end. An invisible transaction before it would be in no chunk and in no stream."""
        if not self._database.changed.wait_for(lambda: not self._database.invisible, self._wait_s):
            raise SourceUnavailable(f"waited {self._wait_s:g} s until what is in the log can be seen")
        self._database.slots[self._slot] = self._database.end
        return self._database.end

    def _again(self, position: int, transactions_back: TransactionsBack | None, *, accepted: bool) -> int:
        """The position at which the change log ended, or a new one if an operator accepted the loss of history."""
        try:
            self._check_whole(position, transactions_back)
        except HistoryLost:
            if not accepted:
                raise
        return self._first() if accepted else position

    def _check_whole(self, position: int, transactions_back: TransactionsBack | None) -> None:
        database = self._database
        if self._slot not in database.slots:
            raise _history_lost(f"slot {self._slot} is gone")
        kept_from = database.slots[self._slot]
        if kept_from > position:
            raise _history_lost(
                f"the database no longer has what follows {position}: it keeps history from {kept_from}"
            )
        if position > database.end:
            raise _history_lost(
                f"the database's log ends at {database.end}, before the change log's position {position}"
            )
        if transactions_back is None:
            return
        ours = transactions_back(lambda at: int(at) <= kept_from)
        there = {r.position: r.xid for r in database.log if isinstance(r, MemoryCommit | Statement)}
        for at, xid in zip(ours.column("position").to_pylist(), ours.column("xid").to_pylist(), strict=True):
            if kept_from < int(at) <= position and there.get(int(at)) != xid:
                raise _history_lost(
                    f"at {at} the database's log differs from the change log: the database was restored from a copy"
                )

    def _selected_tables(self) -> list[MemoryTable]:
        return [t for _, t in sorted(self._database.tables.items()) if self._selection.selects(t.id)]

    def _finding(self, table: MemoryTable) -> Finding:
        if table.id in self._database.unreadable:
            remedy = f"run GRANT SELECT ON {table.id} TO the user of the capture"
            return Finding("error", str(table.id), "SELECT is not granted", remedy)
        return Finding("ok", str(table.id), "can be captured")


def _check_slot(before: MemoryState, slot: str) -> None:
    if before.slot != slot:
        raise ConfigurationError(
            f"this log was begun with slot {before.slot}, but the settings name {slot}",
            remedy="use the log that this position belongs to",
            runbook="other-log",
        )


def _history_lost(why: str) -> HistoryLost:
    return HistoryLost(
        why,
        remedy="run with --accept-history-loss: cdcflow takes a new position, and reads every table again",
        runbook="slot-lost",
    )
