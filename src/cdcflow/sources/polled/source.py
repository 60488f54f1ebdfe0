"""Implements `cdcflow.ports.Source` for the items that a `Poller` finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.messages import KnownRows, RowsCompared, Visibility
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.comparison import Comparison, DigestSource
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
from cdcflow.config.sources import SourceSettings
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.errors import position_lost
from cdcflow.sources.engine.findings import of_error, ok, problem, warning
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.engine.source import position_to_begin
from cdcflow.sources.engine.stored_state import StoredEntries
from cdcflow.sources.polled.chunks import LedgerChunks
from cdcflow.sources.polled.discovery import Discovery, unknown_tables
from cdcflow.sources.polled.items import Poller
from cdcflow.sources.polled.ledger import Ledger, number_of, position_of
from cdcflow.sources.polled.stream import PolledStream

STATE_VERSION = 1
SPOOL_BYTES_MAX = 64 << 20
FIRST_PAUSE_S = 1.0


class PolledSource:
    """A source whose log is a ledger in the folder `state`, which is created at the first start.

    `poll_every_s`: the pause between two polls. A record with more than `spool_bytes_max` is not held in memory.
    """

    def __init__(
        self,
        settings: SourceSettings,
        poller: Poller,
        state: Path,
        *,
        poll_every_s: float = 5.0,
        spool_bytes_max: int = SPOOL_BYTES_MAX,
    ) -> None:
        self._settings = settings
        self._poller = poller
        self._ledger = Ledger(state)
        self._discovery = Discovery(poller, self._ledger)
        self._selection = Selection.parse(settings.tables)
        self._poll_every_s = poll_every_s
        self._spool_bytes_max = spool_bytes_max
        self._captured: frozenset[TableId] | None = None
        self._prepared: Sequence[Table] | None = None
        self._slot = ""
        self._streams: list[PolledStream] = []
        self._chunks: list[LedgerChunks] = []

    # ── cdcflow.ports.Source ────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        return SourceIdentity(self._settings.kind, self._ledger.id, self._poller.name)

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        stored = self._stored_state(checkpoint, log_id)
        slot = self._slot = slot_of(log_id)
        self._poll_first(is_new=checkpoint.position is None)
        history = SourceHistory.CONTINUES
        if checkpoint.position is None or not stored:
            number = self._ledger.begin_slot(slot)
        else:
            at = checkpoint.position

            def again() -> int:
                self._check_history(stored, slot, number_of(at), transactions_back)
                return number_of(at)

            number = position_to_begin(
                again, lambda: self._ledger.begin_slot(slot), is_loss_accepted=accept_history_loss
            )
            history = SourceHistory.LOST if accept_history_loss else history
        state = {**stored, "version": str(STATE_VERSION), "slot": slot, "ledger": self._ledger.id}
        self._prepared = self._selected_tables()
        self._captured = frozenset(table.id for table in self._prepared)
        return Prepared(replace(checkpoint, position=position_of(number), source=state), history)

    def _poll_first(self, *, is_new: bool) -> None:
        """Find the items that exist at a start. A new log polls twice: a poller may list an item only at the poll after
        the one at which it first saw the item, to be sure that the item is complete."""
        self._discovery.poll(retry=True)
        if is_new:
            self._wait_for_second_poll()
            self._discovery.poll(retry=True)

    def _wait_for_second_poll(self) -> None:
        time.sleep(min(self._poll_every_s, FIRST_PAUSE_S))

    def tables(self) -> Sequence[Table]:
        # The first call returns the tables that `prepare` found, because the stream delivers those; another process may
        # have found more since.
        found, self._prepared = self._prepared, None
        return self._selected_tables() if found is None else found

    def _selected_tables(self) -> Sequence[Table]:
        return [table for table in self._ledger.shapes() if self._selection.selects(table.id)]

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        return ()

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        self._stored_state(checkpoint, log_id)
        ledger = self._ledger if self._ledger.exists else None
        known = [] if ledger is None else ledger.shapes()
        list(self._poller.items())
        self._wait_for_second_poll()
        found = [*known, *unknown_tables(self._poller, ledger)]
        counted = {} if ledger is None else {t.id: sum(item.count for item in ledger.items(t.id)) for t in known}
        return Preview(
            tuple(
                TablePreview(table.id, table.incarnation, rows=counted.get(table.id))
                for table in sorted(found, key=lambda table: table.id)
                if self._selection.selects(table.id)
            )
        )

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        return RowsCompared(())  # every change of a row is a record

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> PolledStream:
        if checkpoint.position is None or "slot" not in checkpoint.source:
            raise ValueError("a stream begins at a position; `prepare` gives the first one")
        captured = self._captured
        made = PolledStream(
            self._ledger,
            self._discovery,
            slot=checkpoint.source["slot"],
            position=number_of(checkpoint.position),
            captured=frozenset(t.id for t in self._selected_tables()) if captured is None else captured,
            open_spool=open_spool,
            poll_every_s=self._poll_every_s,
            spool_bytes_max=self._spool_bytes_max,
        )
        self._streams.append(made)
        return made

    def chunks(self) -> LedgerChunks:
        return self._chunks_of(self._slot)

    def doctor(self) -> Sequence[Finding]:
        found = list(self._poller.doctor())
        if not any(one.level == "error" for one in found):
            found += self._table_findings()
        return found

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        checkpoint = newest()
        if checkpoint.position is None:
            return ()
        try:
            stored = self._stored_state(checkpoint, log_id)
            self._check_history(stored, slot_of(log_id), number_of(checkpoint.position), None)
        except (HistoryLost, ConfigurationError) as error:
            return (of_error("position", error),)
        return (ok("position", f"the ledger has everything since {checkpoint.position}"),)

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        if not self._ledger.exists:
            return ()
        return [
            warning(
                slot,
                f"keeps records in {self._ledger.folder} for a log that may be gone",
                "run `cdcflow drop` with that log's settings; without them, begin a new log with a new state folder",
            )
            for slot in sorted(self._ledger.slots())
            if slot != slot_of(log_id)
        ]

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        slot = slot_of(log_id)
        existed = self._ledger.exists and self._ledger.drop_slot(slot)
        return [Dropped(f"slot {slot}", "removed" if existed else "absent")]

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        details = {"ledger": str(self._ledger.folder), "end": position_of(self._ledger.end).text}
        stops = self._ledger.stops()
        if stops:
            details["stopped_tables"] = str(len(stops))
            details["stopped"] = "; ".join(f"{table}: {why.item}: {why.reason}" for table, why in sorted(stops.items()))
        lag = None if acknowledged is None else self._ledger.bytes_after(number_of(acknowledged))
        return SourceStatus(lag, self._ledger.bytes_after(0), details)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        for chunks in self._chunks:
            chunks.close()
        self._ledger.close()

    # ── what some sources add ───────────────────────────────────────────────────────────────────────────────

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        return {table: why.reason for table, why in self._ledger.stops().items() if table in captured}

    def facts(self) -> Mapping[str, str]:
        tables = self._selected_tables()
        return {
            "ledger": str(self._ledger.folder),
            "tables": str(len(tables)),
            "items": str(sum(len(self._ledger.items(t.id)) for t in tables)),
        }

    def comparison(self, checkpoint: Checkpoint) -> Comparison:
        return LedgerComparison(self, self._ledger, self._chunks_of(checkpoint.source.get("slot", "")))

    # ── positions ───────────────────────────────────────────────────────────────────────────────────────────

    def poll_now(self) -> None:
        """Poll once, in this thread."""
        self._discovery.poll()

    def _chunks_of(self, slot: str) -> LedgerChunks:
        made = LedgerChunks(self._ledger, slot, self._settings.backfill.whole_bytes_max, self._wake)
        self._chunks.append(made)
        return made

    def _wake(self) -> None:
        for stream in self._streams:
            stream.wake()

    def _stored_state(self, checkpoint: Checkpoint, log_id: str) -> dict[str, str]:
        """Return the state that an earlier start stored; empty at the first start."""
        if not checkpoint.source:
            return {}
        entries = StoredEntries(checkpoint.source, self._settings.kind, version=STATE_VERSION)
        if entries.take("slot") != slot_of(log_id):
            raise ConfigurationError(
                f"this log was begun with slot {checkpoint.source['slot']}, and its id gives {slot_of(log_id)}",
                remedy="use the log that this position belongs to",
                runbook="other-log",
            )
        return dict(checkpoint.source)

    def _check_history(
        self, stored: Mapping[str, str], slot: str, at: int, transactions_back: TransactionsBack | None
    ) -> None:
        """Check that the ledger is the log's, and has everything after a position."""
        ledger = self._ledger
        if stored.get("ledger") != ledger.id:
            raise position_lost(f"the ledger in {ledger.folder} is not the one that this log was captured from")
        kept = ledger.slots().get(slot)
        if kept is None:
            raise position_lost(f"the ledger in {ledger.folder} has no slot {slot}")
        if not kept <= at <= ledger.end:
            raise position_lost(
                f"the ledger in {ledger.folder} has records from {kept} to {ledger.end}, and the change log ends"
                f" at {at}"
            )
        if transactions_back is None:
            return
        found = transactions_back(lambda position: number_of(position) <= kept)
        times = ledger.times(kept + 1)
        for position, then in zip(
            found.column("position").to_pylist(), _microseconds(found.column("commit_ts")), strict=True
        ):
            if kept < int(position) <= at and times.get(int(position)) != then:
                raise position_lost(f"record {int(position)} in {ledger.folder} differs from the change log's")

    def _table_findings(self) -> list[Finding]:
        if not self._ledger.exists:
            return [ok("tables", "are found at the first start")]
        found = [
            problem(f"table {table}", f"stopped at {why.item}: {why.reason}", why.remedy)
            for table, why in sorted(self._ledger.stops().items())
        ]
        count = len(self._selected_tables())
        if not count:
            return [*found, warning("tables", "nothing was found yet that source.tables selects")]
        return [*found, ok("tables", f"{count} can be captured")]


class LedgerComparison:
    """Implements `cdcflow.ports.Comparison`: compares the rows that the ledger has with those of log and tables."""

    digests: DigestSource | None = None

    def __init__(self, source: PolledSource, ledger: Ledger, chunks: LedgerChunks) -> None:
        self._source = source
        self._ledger = ledger
        self._ledger_chunks = chunks

    @property
    def chunks(self) -> ChunkSource:
        return self._ledger_chunks

    def tables(self) -> Sequence[Table]:
        return self._source.tables()

    def end(self) -> Position:
        return position_of(self._ledger.end)

    def covers(self, position: Position, end: Position) -> bool:
        return number_of(position) >= number_of(end)

    def first_unseen(self, visibility: Visibility, transactions: pa.Table) -> int:
        xids = transactions.column("xid").to_numpy()
        unseen = np.flatnonzero(np.isin(xids, visibility.hidden(xids)))
        return int(unseen[0]) if len(unseen) else len(xids)

    def close(self) -> None:
        self._source.close()


def slot_of(log_id: str) -> str:
    """Return the name of a log's slot."""
    return f"cdcflow_{log_id[:8]}"


def _microseconds(times: pa.ChunkedArray) -> list[int]:
    return [int(value) for value in times.cast(pa.int64()).to_pylist()]
