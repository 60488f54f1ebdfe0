"""The ledger's records as events, and the thread that polls while the stream is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import ChangeBatch, Run, SpooledTransaction
from cdcflow.model.position import Position
from cdcflow.model.table import TableId
from cdcflow.sources.engine.descriptors import WakeDescriptor
from cdcflow.sources.engine.spooled import SpooledRows
from cdcflow.sources.polled.discovery import Discovery
from cdcflow.sources.polled.ledger import FoundChanges, Ledger, Record, number_of, position_of

RECORDS_MAX = 200
ACKNOWLEDGE_EVERY_S = 1.0


class PolledStream:
    """Implements `cdcflow.ports.Stream`. A record with more than `spool_bytes_max` is spooled."""

    def __init__(
        self,
        ledger: Ledger,
        discovery: Discovery,
        *,
        slot: str,
        position: int,
        captured: Collection[TableId],
        open_spool: OpenSpool,
        poll_every_s: float,
        spool_bytes_max: int,
    ) -> None:
        self._ledger = ledger
        self._discovery = discovery
        self._slot = slot
        self._at = position
        self._captured = frozenset(captured)
        self._open_spool = open_spool
        self._poll_every_s = poll_every_s
        self._spool_bytes_max = spool_bytes_max
        self._descriptor = WakeDescriptor()
        self._is_more = True
        self._acknowledged = self._stored = position
        self._acknowledged_at = time.monotonic()
        self._failure: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._poll_source, name="cdcflow-poll", daemon=True)
        self._thread.start()

    # ── cdcflow.ports.Stream ────────────────────────────────────────────────────────────────────────────────

    def fileno(self) -> int:
        return self._descriptor.fileno()

    @property
    def ready(self) -> bool:
        return self._is_more or self._failure is not None

    def poll(self) -> Sequence[StreamEvent]:
        if self._closed.is_set():
            raise SourceUnavailable("reading the ledger: this stream is closed")
        self._descriptor.drain()
        self._store_acknowledged()
        found = self._ledger.records_after(self._at, RECORDS_MAX)
        events: list[StreamEvent] = []
        size = 0
        self._is_more = len(found) == RECORDS_MAX
        for record in found:
            size += record.bytes
            if events and size > self._spool_bytes_max:
                self._is_more = True
                break
            events.append(self._event(record))
            self._at = record.number
        if not events and self._failure is not None:
            raise self._failure
        return events

    def acknowledge(self, position: Position) -> None:
        self._acknowledged = max(self._acknowledged, number_of(position))

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            self._store_acknowledged(now=True)
            self._descriptor.close()

    # ── records ─────────────────────────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """Wake the stream, because the ledger has grown."""
        if not self._closed.is_set():
            self._descriptor.wake()

    def _event(self, record: Record) -> StreamEvent:
        at, changes = position_of(record.number), record.changes
        if changes is None and record.token is not None and record.slot == self._slot:
            return MarkSeen(record.token, at, record.at)
        if changes is None or changes.shape.id not in self._captured:
            return Advanced(at, record.at)
        if record.bytes <= self._spool_bytes_max:
            return Committed(self._run(record, changes))
        spooled = self._spool(record, changes)
        return Advanced(at, record.at) if spooled is None else Committed(spooled)

    def _run(self, record: Record, changes: FoundChanges) -> Run:
        batches = list(self._ledger.batches(changes.file))
        ends = np.cumsum([0, *map(len, batches)])
        return Run(
            np.array([record.number], np.uint64),
            pa.array([position_of(record.number).text], pa.string()),
            np.array([record.at], np.int64),
            ends[-1:],
            tuple(
                ChangeBatch(changes.shape, np.arange(first, first + len(batch), dtype=np.int64), batch)
                for first, batch in zip(ends, batches, strict=False)
            ),
        )

    def _spool(self, record: Record, changes: FoundChanges) -> SpooledTransaction | None:
        """Write a record's changes into a spool, batch by batch: memory does not hold all of them at once."""
        rows = SpooledRows()
        for batch in self._ledger.batches(changes.file):
            index = np.arange(len(batch), dtype=np.int64)
            rows.write(self._open_spool, [ChangeBatch(changes.shape, index, batch)], None)
        return rows.commit(record.number, position_of(record.number), record.at)

    def _store_acknowledged(self, *, now: bool = False) -> None:
        if self._acknowledged == self._stored:
            return
        if now or time.monotonic() - self._acknowledged_at >= ACKNOWLEDGE_EVERY_S:
            self._ledger.acknowledge(self._slot, self._acknowledged)
            self._stored, self._acknowledged_at = self._acknowledged, time.monotonic()

    # ── polling ─────────────────────────────────────────────────────────────────────────────────────────────

    def _poll_source(self) -> None:
        """Poll periodically, in the stream's own thread, until the stream is closed."""
        seen = self._at
        while not self._closed.wait(self._poll_every_s):
            try:
                self._discovery.poll()
                if self._ledger.end > seen:
                    seen = self._ledger.end
                    self.wake()
            except Exception as error:  # noqa: BLE001  `poll` raises it: a fault of the poller must not pass unseen
                self._failure = error
                self.wake()
                return
