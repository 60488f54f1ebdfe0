"""Existing rows by key: ranges of a table in the order of its key, each in one snapshot, compared by the server.

    key      1 ─────────▶ 20,000 ─────────▶ 40,000 ─────────▶ … bound           (the greatest key when it was planned)
    chunk    rows ≤ size │ the next after the last row's key │ …                 later inserts are in the log

A plan pins the bound (W28) and the meaning of the cursors: if the key's columns change, literals for the old ones
become meaningless and the table is read from the start. The machine handles a row that an update moves across the
cursor (see `capture.interleave.backlog`).

Termination. Rows above the bound are never read. Rows inserted below it during the backfill are read if they are ahead
of the cursor, and the range ahead only shrinks: with N rows, i inserts and r rows read per second, keys uniformly up to
the bound, it takes N / i * (e^(i/r) - 1) seconds, whatever the ratio of r and i, and so also under a rate limit. The
exception is a key that grows in the middle of the table (tenant, number): the cursor must get past the end of the
busiest tenant, so r must exceed that tenant's inserts, or the rows read exceed those that were planned (`cdcflow
status`).

Memory. A range ends at `CHUNK_BYTES_MAX` in all of its parts, whatever the server reports as the size of rows, and rows
by key end at the engine's limit (the first of them is always returned). Beyond that, each part holds one row, and the
data that the socket returned with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cdcflow.capture.interleave.messages import Chunk, Planned
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.chunks import ChunkProgress, Rewritten
from cdcflow.sources.engine.key_ranges import FetchedRows, KeyPartRead, KeyRange, OrderedTable, sizes, stride
from cdcflow.sources.engine.table_key import Literals

FIRST_ROWS = 20_000
ROWS_MIN = 1000
"""The least number of rows of a chunk. A chunk's fixed cost (snapshot, catalog) is many times the cost of this many
rows: smaller chunks would nearly stop a backfill on a busy table, and shorten no wait."""
PART_ROWS_MIN = 10_000
"""The least number of rows of a part: with fewer, a second connection costs more than it saves."""
CHUNK_BYTES_MAX = 64 << 20
"""A chunk ends early at this size, however many rows it may have: rows may be large."""

C = TypeVar("C")
F = TypeVar("F", bound=FetchedRows)


@dataclass(frozen=True, slots=True)
class LastChunk:
    """Properties of a table's last chunk: bytes per row, and how far apart its keys were (see `key_ranges.stride`)."""

    row_bytes: int
    stride: float | None


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The pinned plan of a table's backfill: `digest` of its key's columns, and the greatest key (None if the table was
    empty). Stored as JSON in the log with the backfill's progress."""

    digest: str
    bound: Literals | None

    def to_json(self) -> str:
        return json.dumps({"version": 1, "key": self.digest, "bound": self.bound}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> KeyPlan:
        value = json.loads(text)
        return cls(value["key"], None if value["bound"] is None else tuple(value["bound"]))


@dataclass(frozen=True, slots=True)
class KeyCursor:
    """The row after which the next chunk begins, and the number of rows so far."""

    row: Literals | None
    rows: int

    def to_json(self) -> str:
        return json.dumps([self.row, self.rows], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> KeyCursor:
        row, rows = (None, 0) if text is None else json.loads(text)
        return cls(None if row is None else tuple(row), rows)


class KeyProgress:
    """How far the chunks of tables have been read by key. Thread-safe."""

    def __init__(self) -> None:
        self._last: dict[TableId, LastChunk] = {}

    def planned_backfill(self, table: Table, generation: int, plan: KeyPlan, rows: int) -> Planned:
        """Return the plan of a backfill that reads up to the plan's bound. `rows`: the server's estimate."""
        self._last.pop(table.id, None)  # a new plan may have another key, so the old distances mean nothing
        units, whole = max(rows, 1), not table.key
        return Planned(table.id, generation, plan.to_json(), FIRST_ROWS, units, shape=table, whole=whole)

    def check(self, table: KeyedTable[Any, Any], chunk: Chunk) -> None:
        """Check that an open table is the one that was planned, and give it the properties of the table's last chunk.

        Raises:
            Rewritten: the table has another key than the planned one.
        """
        if KeyPlan.from_json(chunk.plan).digest != table.key.digest:
            raise Rewritten
        table.last = self._last.get(chunk.table)

    def after(self, chunk: Chunk, found: Sequence[KeyPartRead]) -> ChunkProgress:
        """Return the progress after a chunk whose parts were read. See `ChunkDialect.progress_after`."""
        cursor = KeyCursor.from_json(chunk.after)
        if not found:
            return ChunkProgress(cursor.to_json(), cursor.rows, exhausted=True)
        rows = sum(part.rows for part in found)
        if rows:
            self._last[chunk.table] = LastChunk(sum(part.bytes for part in found) // rows, stride(cursor.row, found))
        reached = KeyCursor(found[-1].reached, cursor.rows + rows)
        return ChunkProgress(reached.to_json(), reached.rows, found[-1].exhausted)


class KeyedTable(OrderedTable[C, F]):
    """Implements `engine.chunks.DigestingTable`. `last`: the properties of the table's last chunk."""

    last: LastChunk | None = None

    def parts(self, chunk: Chunk, at_once: int) -> list[KeyRange]:
        """Return the parts that the chunk reads; empty if the table was empty when it was planned."""
        bound = KeyPlan.from_json(chunk.plan).bound
        if bound is None:
            return []
        rows, last = _rows(chunk), self.last
        if last is not None and last.row_bytes:
            # Aim at half the limit on bytes: if a part reaches its limit and ends early, the rows of later parts were
            # read in vain.
            rows = min(rows, max(1, CHUNK_BYTES_MAX // 2 // last.row_bytes))
        wanted = sizes(rows, at_once if self.key.is_sought else 1, PART_ROWS_MIN)
        after = KeyCursor.from_json(chunk.after).row
        apart = None if last is None else last.stride
        return self.split(after, bound, wanted, CHUNK_BYTES_MAX, apart)

    def parts_to_end(self, chunk: Chunk, at_once: int) -> list[KeyRange]:
        bound = KeyPlan.from_json(chunk.plan).bound
        if bound is None:
            return []
        wanted = sizes(_rows(chunk), at_once if self.key.is_sought else 1, PART_ROWS_MIN)
        after = KeyCursor.from_json(chunk.after).row
        return self.split_to_end(after, bound, wanted, CHUNK_BYTES_MAX)


def _rows(chunk: Chunk) -> int:
    """Return the number of rows that a chunk reads: its size, but at least `ROWS_MIN`, and never more than its
    limit."""
    rows = max(chunk.size, ROWS_MIN)
    return rows if chunk.rows_max is None else max(1, min(rows, chunk.rows_max))
