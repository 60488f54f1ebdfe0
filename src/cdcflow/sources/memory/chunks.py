"""Existing rows by row number: a `ChunkDialect` for the engine, which does the rest.

A plan pins the table's file and the greatest visible row number. That bound depends on what is visible, so the plan
contains what its snapshot saw: a row that the stream has delivered and that no snapshot shows yet is above the bound,
so no chunk would contain it, and the end of the backfill would treat it as deleted.

A snapshot here is a copy of the table's rows, taken together with what is visible at the same time. The rows and the
fence, which determines the transactions that they show, must never be separated.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from cdcflow.capture.interleave.messages import Chunk, Planned, Visibility
from cdcflow.errors import CdcflowError, SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.model.position import Token
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.chunks import (
    ChunkDialect,
    ChunkProgress,
    PartRead,
    Rewritten,
    Snapshot,
    TooLarge,
    predicate_refused,
    without_key,
)
from cdcflow.sources.engine.connections import Connector
from cdcflow.sources.memory_database import MemoryDatabase, MemoryTable, Row, position_of

FIRST_ROWS = 1000
PART_ROWS_MIN = 50
"""The least number of rows of a part: with fewer, a second snapshot costs more than it saves."""

_COMPARISON = re.compile(r"(\w+) = (?:'([^']*)'|(-?\d+))")

Part = tuple[int, int]
"""The row numbers of a part: after the first, up to and including the second."""


class MemoryConnection:
    """One user's connection to the database; it holds no resources."""


class MemoryConnector(Connector[MemoryConnection]):
    """Opens connections, which never break by themselves. Closing it wakes all threads that wait for a locked table."""

    error = ConnectionError

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database.name)
        self._database = database

    def connect(self, purpose: str) -> MemoryConnection:
        self.check_open()
        return self._register(MemoryConnection())

    def map_error(self, error: Exception, attempted: str) -> CdcflowError:
        return SourceUnavailable(f"{attempted}: {error}")

    def is_broken(self, connection: MemoryConnection) -> bool:
        return self.closed

    def is_idle(self, connection: MemoryConnection) -> bool:
        return not self.closed

    def _break_off(self, connection: MemoryConnection) -> None:
        with self._database.changed:
            self._database.changed.notify_all()

    def _drop(self, connection: MemoryConnection) -> None:
        """Do nothing: no resource is open."""


class MemoryChunks(ChunkDialect[MemoryConnection, Part, PartRead]):
    """Implements `engine.chunks.ChunkDialect`. Thread-safe. `is_closed`: whether waiting calls must stop."""

    def __init__(self, database: MemoryDatabase, slot: str, is_closed: Callable[[], bool]) -> None:
        self._database = database
        self._slot = slot
        self._is_closed = is_closed

    def plan(self, connection: MemoryConnection, table: TableId, generation: int) -> Planned:
        with self._database.changed:
            found = self._database.readable(table, self._is_closed)
            bound = max(found.rows, default=0)
            return Planned(
                table=table,
                generation=generation,
                plan=json.dumps({"incarnation": found.incarnation, "file": found.file, "bound": bound}),
                size=FIRST_ROWS,
                units=max(bound, 1),
                shape=found.shape,
                whole=not found.key,
                visibilities=(self.visibility(connection),),
                row_version=row_version(self._database, found),
            )

    def write_mark(self, connection: MemoryConnection, token: Token) -> None:
        self._database.write_mark(self._slot, token)

    def heartbeat(self, connection: MemoryConnection) -> None:
        self._database.write_mark(self._slot, None)

    def visibility(self, connection: MemoryConnection) -> Visibility:
        return self._database.snapshot()

    def keys_where(self, connection: MemoryConnection, table: TableId, predicate: str, keys_max: int) -> KeySet:
        """Return the keys of matching rows. This database supports one kind of predicate: a column, an equals sign, and
        a value."""
        comparison = _COMPARISON.fullmatch(predicate)
        with self._database.changed:
            found = self._database.readable(table, self._is_closed)
            if not found.key:
                raise without_key(table)
            if comparison is None or comparison[1] not in {c.name for c in found.shape.columns}:
                raise predicate_refused(table, "it is not a comparison of a column with a value")
            name, text, number = comparison.groups()
            wanted = text if number is None else int(number)
            rows = [row for row in found.rows.values() if row[name] == wanted][:keys_max]
        schema = pa.schema([found.shape.row_schema.field(column) for column in found.key])
        return KeySet(pa.Table.from_pylist([{k: row[k] for k in found.key} for row in rows], schema=schema))

    @contextlib.contextmanager
    def open_table(self, connection: MemoryConnection, chunk: Chunk, part: Part | None) -> Iterator[OpenTable]:
        pinned = json.loads(chunk.plan)
        with self._database.changed:
            found = self._database.readable(chunk.table, self._is_closed)
            if (found.incarnation, found.file) != (pinned["incarnation"], pinned["file"]):
                raise Rewritten
            at = self._database.end
            snapshot = Snapshot((self.visibility(connection),), position_of(at), at)
            opened = OpenTable(snapshot, found.shape, dict(found.rows))
        yield opened

    @contextlib.contextmanager
    def opened_whole(self, connection: MemoryConnection, chunk: Chunk) -> Iterator[OpenTable]:
        # One exact position: this database shows commits at once, or reports which of them it does not show.
        with self.open_table(connection, chunk, None) as opened:
            yield opened

    def progress_after(self, chunk: Chunk, found: Sequence[PartRead]) -> ChunkProgress:
        _, last, bound = _bounds_of(chunk)
        return ChunkProgress(str(last), last, exhausted=last >= bound)


@dataclass(frozen=True, slots=True)
class OpenTable:
    """Implements `engine.chunks.OpenTable`."""

    snapshot: Snapshot
    shape: Table
    rows: dict[int, Row]

    def parts(self, chunk: Chunk, at_once: int) -> Sequence[Part]:
        first, last, _ = _bounds_of(chunk)
        count = max(1, min(at_once, (last - first) // PART_ROWS_MIN))
        ends = [first + (last - first) * i // count for i in range(count + 1)]
        return list(pairwise(ends)) if last > first else []

    def read(self, part: Part) -> Callable[[], PartRead]:
        first, last = part
        rows = [row for number, row in sorted(self.rows.items()) if first < number <= last]
        return lambda: PartRead(self.snapshot, self.shape, (self._batch(rows),))

    def rows_with(self, keys: KeySet, bytes_max: int) -> tuple[Sequence[pa.RecordBatch], KeySet | None]:
        names = keys.keys.column_names
        there = {tuple(row[n] for n in names): row for row in self.rows.values()}
        found: list[pa.RecordBatch] = []
        for looked_for, key in enumerate(keys.keys.to_pylist(), start=1):
            row = there.get(tuple(key[n] for n in names))
            found += [self._batch([row])] if row is not None else []
            if sum(batch.nbytes for batch in found) >= bytes_max and looked_for < len(keys):
                return found, keys.take(looked_for)[1]
        return found, None

    def all_rows(self, bytes_max: int) -> Sequence[pa.RecordBatch]:
        batch = self._batch(list(self.rows.values()))
        if batch.nbytes > bytes_max:
            raise TooLarge
        return [batch]

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(rows, schema=self.shape.row_schema)


def row_version(database: MemoryDatabase, table: MemoryTable) -> str | None:
    return str(table.version) if database.rewrites_known_by == "catalog" else None


def _bounds_of(chunk: Chunk) -> tuple[int, int, int]:
    """Return the row number after which a range chunk reads, the last one that it reads, and the plan's bound."""
    bound: int = json.loads(chunk.plan)["bound"]
    first = int(chunk.after or 0)
    return first, min(first + max(chunk.size, 1), bound), bound
