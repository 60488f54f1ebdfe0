"""Looks up, in the log, the keys of rows that lack columns: a new machine and a resumed table need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdcflow.capture.interleave.messages import Command, Input, Order, Resume
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.observations import OnEvent
from cdcflow.capture.ports.log import Log
from cdcflow.errors import KeysUnknown
from cdcflow.model.change import NO_KEYS, KeySet
from cdcflow.model.table import Table, TableId


class PartialKeys:
    """Queries the log for the keys of partial rows. `tables`: the tables captured now."""

    def __init__(self, log: Log, tables: Sequence[Table], on_event: OnEvent) -> None:
        self._log = log
        self._tables = tables
        self._on_event = on_event

    def of(self, table: TableId, progress: Progress) -> KeySet | None:
        """Return the keys of a table's partial rows in the log; None if they are no longer all known."""
        known = progress.tables[table]
        try:
            for order in known.to_repair:
                self._check_key(table, KeySet.from_text(order.keys), "repaired")
            found = self._log.partial_keys(table, known.collects_from or known.since) or NO_KEYS
            return self._with_ordered(table, found, known.keys_ordered)
        except KeysUnknown as unknown:
            self._on_event("partial rows unknown", {"table": str(table), "reason": str(unknown).split("\n")[0]})
            return None

    def _with_ordered(self, table: TableId, found: KeySet, text: str | None) -> KeySet:
        """Return the keys in `found` and the keys in `text`, which operators requested to be read again; the log's rows
        do not show those."""
        if text is None:
            return found
        ordered = KeySet.from_text(text)
        self._check_key(table, ordered, "read again")
        return found.union(ordered) if len(found) else ordered

    def _check_key(self, table: TableId, keys: KeySet, wanted: str) -> None:
        key = next((t.key_columns for t in self._tables if t.id == table), ())
        if set(keys.keys.column_names) != set(key):
            raise KeysUnknown(f"rows of {table} are to be {wanted} by a key that it no longer has")

    def looked_up(self, request: Input, progress: Progress) -> Input:
        """Return the request with facts that only the log has: for a resumed table, the keys of its partial rows."""
        match request:
            case Command():
                return replace(request, orders=tuple(self._with_keys(order, progress) for order in request.orders))
            case Resume():
                return self._with_keys(request, progress)
            case _:
                return request

    def _with_keys(self, order: Order, progress: Progress) -> Order:
        known = progress.tables.get(order.table) if isinstance(order, Resume) else None
        if not isinstance(order, Resume) or known is None or known.state != "paused" or known.collects_from is None:
            return order
        return replace(order, partial=self.of(order.table, progress))
