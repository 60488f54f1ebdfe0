"""Existing rows of a polled source: the rows that its items had when the chunk was read, from the ledger.

A chunk reads whole items, in the order of their names, and its cursor is the name of the last. An item that changes
between two chunks needs no pinning: each change is a record with whole rows, in the stream after the plan. Only a table
with other columns is read again from the start.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Planned
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import NO_KEYS, KeySet, Run, reads
from cdcflow.model.position import Token
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.changes import absent, after_deletes, after_truncate
from cdcflow.sources.engine.chunks import predicate_refused, too_large, without_key
from cdcflow.sources.polled.differences import has_key
from cdcflow.sources.polled.discovery import live_rows
from cdcflow.sources.polled.ledger import Ledger, SeenThrough, StoredItem, position_of

ITEMS_AT_FIRST = 10
TRIES_MAX = 20
_COMPARISON = re.compile(r"\s*(\w+)\s*(=|<>|<=|>=|<|>)\s*(?:'((?:[^']|'')*)'|(-?\d+(?:\.\d+)?))\s*")
_COMPARE = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class LedgerChunks:
    """Implements `cdcflow.ports.ChunkSource`. `wrote`: called after a mark is in the ledger. Thread-safe."""

    def __init__(self, ledger: Ledger, slot: str, whole_bytes_max: int, wrote: Callable[[], None]) -> None:
        self._ledger = ledger
        self._slot = slot
        self._whole_bytes_max = whole_bytes_max
        self._wrote = wrote
        self._is_closed = False

    def plan(self, table: TableId, generation: int) -> Planned:
        end, shape, items = self._snapshot(table)
        return Planned(
            table=table,
            generation=generation,
            plan=json.dumps({"columns": [c.number for c in shape.columns]}),
            size=ITEMS_AT_FIRST,
            units=max(len(items), 1),
            shape=shape,
            whole=not shape.key,
            visibilities=(SeenThrough(end),),
            rows_per_unit_max=max([1, *(item.count for item in items)]),
        )

    def write_mark(self, token: Token) -> None:
        self._check_open()
        self._ledger.add_mark(self._slot, token)
        self._wrote()

    def heartbeat(self) -> None:
        self._check_open()
        self._ledger.add_mark(self._slot, None)
        self._wrote()

    def snapshot(self) -> SeenThrough:
        self._check_open()
        return SeenThrough(self._ledger.end)

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        for _ in range(TRIES_MAX):
            try:
                return self._read_once(chunk)
            except FileNotFoundError:
                continue  # an item was replaced after the snapshot
        raise SourceUnavailable(f"reading {chunk.table}: its items are replaced again and again while they are read")

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        """Return the keys of matching rows. One kind of predicate is supported: a column, an operator and a value."""
        _, shape, items = self._snapshot(table)
        if not shape.key:
            raise without_key(table)
        found = _COMPARISON.fullmatch(predicate)
        if found is None or found[1] not in shape.row_schema.names:
            raise predicate_refused(table, "it is not a comparison of a column with a value, such as id = 7")
        kind = shape.row_schema.field(found[1]).type
        text = found[4] if found[3] is None else found[3].replace("''", "'")
        try:
            value = pa.array([text]).cast(kind)[0]
        except pa.ArrowException:
            raise predicate_refused(table, f"the value does not have the column's type, {kind}") from None
        keys = [shape.row_schema.empty_table().select(list(shape.key))]
        for item in items:
            rows = live_rows(self._ledger, item, shape)
            keys.append(rows.filter(_COMPARE[found[2]](rows.column(found[1]), value)).select(list(shape.key)))
        return KeySet(pa.concat_tables(keys).slice(0, keys_max))

    def close(self) -> None:
        self._is_closed = True

    # ── kinds of chunks ─────────────────────────────────────────────────────────────────────────────────────

    def _read_once(self, chunk: Chunk) -> ChunkRead:
        began = time.monotonic()
        end, shape, items = self._snapshot(chunk.table)
        opening = time.monotonic() - began
        if json.loads(chunk.plan)["columns"] != [c.number for c in shape.columns]:
            return ChunkRead(chunk, None, None, (), rewritten=True, seconds=time.monotonic() - began)
        found, reached, done, exhausted, deleted = self._rows_of(chunk, shape, items, end)
        return ChunkRead(
            chunk=chunk,
            run=found,
            shape=shape,
            visibilities=(SeenThrough(end),),
            reached=reached,
            units_done=done,
            exhausted=exhausted,
            seconds=time.monotonic() - began,
            opening_seconds=opening,
            deleted=deleted,
        )

    def _rows_of(
        self, chunk: Chunk, shape: Table, items: Sequence[StoredItem], end: int
    ) -> tuple[Run, str | None, int, bool, int]:
        """Return a chunk's rows, its cursor, how many items are done, whether that is all of them, and how many deletes
        the rows begin with."""
        match chunk.kind:
            case "range":
                left = [item for item in items if chunk.after is None or item.name > chunk.after]
                taken = _first_items(left, chunk)
                reached = taken[-1].name if taken else chunk.after
                rows = [live_rows(self._ledger, item, shape) for item in taken]
                done = len(items) - len(left) + len(taken)
                return _run(shape, rows, end), reached, done, len(taken) == len(left), 0
            case "whole":
                rows = [live_rows(self._ledger, item, shape) for item in items]
                if sum(one.nbytes for one in rows) > self._whole_bytes_max:
                    raise too_large(chunk.table, self._whole_bytes_max)
                return after_truncate(_run(shape, rows, end), shape), chunk.after, len(items), True, 0
            case "keys":
                return self._with_keys(chunk, chunk.keys or NO_KEYS, shape, items, end)

    def _with_keys(
        self, chunk: Chunk, keys: KeySet, shape: Table, items: Sequence[StoredItem], end: int
    ) -> tuple[Run, str | None, int, bool, int]:
        schema = pa.schema([shape.row_schema.field(name) for name in shape.key])
        asked = keys.keys.select(list(shape.key)).cast(schema)
        found: list[pa.Table] = []
        for item in items:
            rows = live_rows(self._ledger, item, shape)
            found.append(rows.filter(has_key(rows, asked, shape.key)))
        run = _run(shape, found, end)
        if not chunk.repairs:
            return run, chunk.after, len(items), True, 0
        gone = absent(asked, [batch for one in found for batch in one.to_batches()])
        return after_deletes(run, shape, gone), chunk.after, len(items), True, gone.num_rows

    def _snapshot(self, table: TableId) -> tuple[int, Table, list[StoredItem]]:
        self._check_open()
        end, shape, items = self._ledger.snapshot(table)
        if shape is None:
            raise SourceUnavailable(f"reading {table}: the ledger has no such table")
        return end, shape, items

    def _check_open(self) -> None:
        if self._is_closed:
            raise SourceUnavailable("reading existing rows: this source is closed")


def _first_items(left: Sequence[StoredItem], chunk: Chunk) -> list[StoredItem]:
    """Return the first items that the chunk reads, by its size and its limit on rows; at least one."""
    taken: list[StoredItem] = []
    rows = 0
    for item in left[: max(chunk.size, 1)]:
        rows += item.count
        if taken and chunk.rows_max is not None and rows > chunk.rows_max:
            break
        taken.append(item)
    return taken


def _run(shape: Table, rows: Sequence[pa.Table], end: int) -> Run:
    batches = [batch for one in rows for batch in one.combine_chunks().to_batches()]
    return reads(shape, batches, position_of(end), time.time_ns() // 1000)
