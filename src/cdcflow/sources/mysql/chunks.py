"""Existing rows by key: ranges of a table in the order of its key, each in one snapshot, compared by the server.

    key      1 ─────────▶ 20,000 ─────────▶ 40,000 ─────────▶ … bound           (the greatest key when it was planned)
    chunk    rows ≤ size │ the next after the last row's key │ …                 later inserts are in the log

A plan pins the bound (W28) and the meaning of the cursors: if the key's columns change, literals for the old ones
become meaningless and the table is read from the start. A row that an update moves across the cursor is handled by the
machine (see `capture.interleave.backlog`).

Termination. Rows above the bound are never read. Rows inserted below it during the backfill are read if they are ahead
of the cursor, and the range ahead only shrinks: with N rows, i inserts and r rows read per second, keys uniformly up to
the bound, it takes N / i * (e^(i/r) - 1) seconds, whatever the ratio of r and i, and so also under a rate limit. The
exception is a key that grows in the middle of the table (tenant, number): the cursor must get past the end of the
busiest tenant, so r must exceed that tenant's inserts, or the rows read exceed those that were planned (`cdcflow
status`).

Memory. A range ends at `CHUNK_BYTES_MAX` in all of its parts, whatever the server reports as the size of rows, and rows
by key end at the engine's limit (the first of them is always returned). Beyond that, each part holds one row, and the
data that the socket returned with it.

A part's snapshot: take it; touch the table, which prevents changes of its shape until the transaction ends; then read
the shape through another connection, which sees the current catalog; then read the rows. If a table was altered between
snapshot and touch, the server reports it ("table definition has changed", M55): the chunk is read again.
"""

# ruff: noqa: S608 - names go through `quote_name`, values through `literal`
from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pymysql

from cdcflow.capture.interleave.messages import Chunk, Planned, Visibility
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.model.digest import Buckets, Hash
from cdcflow.model.position import Token
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.chunks import (
    KEYS_WHERE_WAIT_S,
    ChunkProgress,
    Rewritten,
    Snapshot,
    TooLarge,
    predicate_refused,
    predicate_too_slow,
    without_key,
)
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.mysql.catalog import CatalogTable
from cdcflow.sources.mysql.connection import Connection, query
from cdcflow.sources.mysql.decoders import decode
from cdcflow.sources.mysql.errors import NO_SUCH_COLUMN, NO_SUCH_FUNCTION, NO_SUCH_INDEX, NO_SUCH_TABLE
from cdcflow.sources.mysql.fetch import fetch
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.keys import KEYS_AT_ONCE, Literals, TableKey
from cdcflow.sources.mysql.marks import Marking
from cdcflow.sources.mysql.ranges import KeyRange, Ordered, PartRead, sizes, stride
from cdcflow.sources.mysql.rights import reading
from cdcflow.sources.mysql.snapshots import SnapshotTaker
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types.registry import select_expression

FIRST_ROWS = 20_000
ROWS_MIN = 1000
"""A chunk's fixed cost (snapshot, catalog) is many times the cost of this many rows: smaller chunks would nearly stop a
backfill on a busy table, and shorten no wait."""
PART_ROWS_MIN = 10_000
"""Below this a second connection costs more than it saves."""
CHUNK_BYTES_MAX = 64 << 20
"""A chunk ends early at this size, however many rows it may have: rows may be large."""

TIMED_OUT = (3024, 1969)
"""ER_QUERY_TIMEOUT of MySQL, ER_STATEMENT_TIMEOUT of MariaDB."""
CLIENT_ERRORS = range(2000, 3000)

KEYS_GROWTH = 16
"""Each query by key reads at most this many times the rows of all before: the first ones may be small."""

LookUp = Callable[[TableId], CatalogTable]
Describe = Callable[[CatalogTable], DescribedTable]


@dataclass(frozen=True, slots=True)
class _Last:
    """Properties of a table's last chunk: bytes per row, and how far apart its keys were (see `ranges.stride`)."""

    row_bytes: int
    stride: float | None


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """What a table's backfill reads, pinned: `digest` of its key's columns, and the greatest key (None if the table was
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


class MySQLChunks:
    """Implements `engine.chunks.ChunkDialect` and `DigestingDialect`. Thread-safe.

    `look_up` returns a captured table's current definition, and `describe` its shape. `pool` provides a second
    connection.
    """

    def __init__(
        self,
        pool: Pool[Connection],
        *,
        snapshots: SnapshotTaker,
        marking: Marking,
        look_up: LookUp,
        describe: Describe,
    ) -> None:
        self._pool = pool
        self._snapshots = snapshots
        self._marking = marking
        self._look_up = look_up
        self._describe = describe
        self._last: dict[TableId, _Last] = {}

    def plan(self, connection: Connection, table: TableId, generation: int) -> Planned:
        ordered = self._ordered_table(table)
        self._last.pop(table, None)  # how far apart keys were is meaningless for another key
        with reading(connection, table), self._snapshots.snapshot(connection) as snapshot:
            plan = KeyPlan(ordered.key.digest, _greatest(ordered, connection))
        shape = ordered.described.table
        return Planned(
            table=table,
            generation=generation,
            plan=plan.to_json(),
            size=FIRST_ROWS,
            units=max(ordered.entry.rows, 1),
            shape=shape,
            whole=not shape.key,
            visibilities=snapshot.visibilities,
        )

    def write_mark(self, connection: Connection, token: Token) -> None:
        self._marking.write(connection, token)

    def heartbeat(self, connection: Connection) -> None:
        self._marking.beat(connection)

    def visibility(self, connection: Connection) -> Visibility:
        return self._snapshots.visibility(connection)

    def hash(self, connection: Connection) -> Hash:
        """MD5 if the server has it, otherwise SHA-256: since 9.6 MySQL has MD5 only if a component is installed."""
        try:
            query(connection, "SELECT MD5('')")
        except pymysql.Error as error:
            if error.args and error.args[0] in NO_SUCH_FUNCTION:
                return "sha256"
            raise
        return "md5"

    def keys_where(self, connection: Connection, table: TableId, predicate: str, keys_max: int) -> KeySet:
        ordered = self._ordered_table(table)
        if not ordered.key.columns:
            raise without_key(table)
        query(connection, "START TRANSACTION READ ONLY")
        try:
            with reading(connection, table):
                return _keys_where(connection, ordered, predicate, keys_max)
        except pymysql.Error as error:
            number = error.args[0] if error.args else 0
            if number in TIMED_OUT:
                raise predicate_too_slow(table) from None
            if not connection.open or number in CLIENT_ERRORS:
                raise
            said = f"{error.args[1]} (error {number})" if number == NO_SUCH_COLUMN else f"error {number}"
            raise predicate_refused(table, said) from None
        finally:
            with contextlib.suppress(pymysql.Error):
                query(connection, "ROLLBACK")

    @contextlib.contextmanager
    def open_table(self, connection: Connection, chunk: Chunk, part: KeyRange | None) -> Iterator[OpenTable]:
        with reading(connection, chunk.table), self._snapshots.snapshot(connection) as snapshot:
            ordered = self._pin_shape(connection, chunk.table)
            if KeyPlan.from_json(chunk.plan).digest != ordered.key.digest:
                raise Rewritten
            yield OpenTable(connection, snapshot, ordered, self._last.get(chunk.table))

    @contextlib.contextmanager
    def opened_whole(self, connection: Connection, chunk: Chunk) -> Iterator[OpenTable]:
        with contextlib.ExitStack() as stack:
            name = f"{quote_name(chunk.table.schema)}.{quote_name(chunk.table.name)}"
            lock = self._pool.another
            snapshot = stack.enter_context(self._snapshots.whole(connection, name, lambda: stack.enter_context(lock())))
            yield OpenTable(connection, snapshot, self._pin_shape(connection, chunk.table))

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[Callable[[PartRead], PartRead]]:
        with self._snapshots.elsewhere() as here:
            yield lambda part: replace(part, snapshot=here(part.snapshot))

    def progress_after(self, chunk: Chunk, found: Sequence[PartRead]) -> ChunkProgress:
        cursor = KeyCursor.from_json(chunk.after)
        if not found:
            return ChunkProgress(cursor.to_json(), cursor.rows, exhausted=True)
        rows = sum(part.rows for part in found)
        if rows:
            self._last[chunk.table] = _Last(sum(part.bytes for part in found) // rows, stride(cursor.row, found))
        reached = KeyCursor(found[-1].reached, cursor.rows + rows)
        return ChunkProgress(reached.to_json(), reached.rows, found[-1].exhausted)

    def close(self) -> None:
        """Holds nothing to close."""

    def _pin_shape(self, connection: Connection, table: TableId) -> Ordered:
        """The table's shape, which cannot change until the transaction ends."""
        try:
            query(connection, f"SELECT 1 FROM {quote_name(table.schema)}.{quote_name(table.name)} LIMIT 0")
        except pymysql.Error as error:
            if error.args and error.args[0] == NO_SUCH_TABLE:
                raise Rewritten from None  # dropped or recreated in between: it must be planned again
            raise
        return self._ordered_table(table)

    def _ordered_table(self, table: TableId) -> Ordered:
        entry = self._look_up(table)
        described = self._describe(entry)
        return Ordered(entry, described, key_of(entry, described))


@dataclass(frozen=True, slots=True)
class OpenTable:
    """Implements `engine.chunks.DigestingTable`. `last`: the properties of the table's last chunk."""

    connection: Connection
    snapshot: Snapshot
    ordered: Ordered
    last: _Last | None = None

    @property
    def shape(self) -> Table:
        return self.ordered.described.table

    def parts(self, chunk: Chunk, at_once: int) -> list[KeyRange]:
        """The parts that the chunk reads; empty if the table was empty when it was planned."""
        bound = KeyPlan.from_json(chunk.plan).bound
        if bound is None:
            return []
        rows, last = _rows(chunk), self.last
        if last is not None and last.row_bytes:
            # If a part ends early, the rows of later parts are read in vain.
            rows = min(rows, max(1, CHUNK_BYTES_MAX // 2 // last.row_bytes))
        wanted = sizes(rows, at_once if self.ordered.key.is_sought else 1, PART_ROWS_MIN)
        after = KeyCursor.from_json(chunk.after).row
        apart = None if last is None else last.stride
        return self.ordered.parts(self.connection, after, bound, wanted, CHUNK_BYTES_MAX, apart)

    def parts_to_end(self, chunk: Chunk, at_once: int) -> list[KeyRange]:
        bound = KeyPlan.from_json(chunk.plan).bound
        if bound is None:
            return []
        wanted = sizes(_rows(chunk), at_once if self.ordered.key.is_sought else 1, PART_ROWS_MIN)
        after = KeyCursor.from_json(chunk.after).row
        return self.ordered.parts_to_end(self.connection, after, bound, wanted, CHUNK_BYTES_MAX)

    def sums(self, part: KeyRange, buckets: Buckets) -> PartRead:
        return self.ordered.sums(self.connection, part, self.snapshot, buckets)

    def read_among(self, part: KeyRange, buckets: Buckets) -> Callable[[], PartRead]:
        return self.ordered.read_among(self.connection, part, self.snapshot, buckets)

    def read(self, part: KeyRange) -> Callable[[], PartRead]:
        return self.ordered.read(self.connection, part, self.snapshot)

    def rows_with(self, keys: KeySet, bytes_max: int) -> tuple[Sequence[pa.RecordBatch], KeySet | None]:
        found: list[pa.RecordBatch] = []
        size = looked_for = 0
        some = 1  # their size is unknown
        while looked_for < len(keys) and some:
            _, left = keys.take(looked_for)
            these, _ = left.take(some)
            [condition] = self.ordered.key.among(these)
            room = bytes_max - size if looked_for else None
            rows = fetch(self.connection, f"{self.ordered.select} WHERE {condition}", room)
            if room is not None and (not rows.is_whole or len(rows.data) > room):
                break  # larger than those before: another chunk reads them
            found.append(self.ordered.decode(rows))
            size += len(rows.data)
            looked_for += len(these)
            # As many as will fit, if their rows are like those before.
            likely = max(bytes_max - size, 0) * looked_for // max(size, 1)
            some = min(KEYS_AT_ONCE, KEYS_GROWTH * looked_for, likely)
        _, left = keys.take(looked_for)
        return found, left if len(left) else None

    def all_rows(self, bytes_max: int) -> Sequence[pa.RecordBatch]:
        rows = fetch(self.connection, self.ordered.select, bytes_max)
        if not rows.is_whole:
            raise TooLarge
        return [self.ordered.decode(rows)]


def _keys_where(connection: Connection, ordered: Ordered, predicate: str, keys_max: int) -> KeySet:
    key = _only_key(ordered.described)
    columns = ", ".join(select_expression(c) for c in key.columns)
    # Each server's own way to limit a statement's time, each a comment to the other. The predicate is on separate
    # lines: a comment in it ends there. The connection accepts one statement at a time, so the predicate cannot add
    # others.
    limits = f"/*M! SET STATEMENT max_statement_time={KEYS_WHERE_WAIT_S} FOR */ "
    hint = f"/*+ MAX_EXECUTION_TIME({KEYS_WHERE_WAIT_S * 1000}) */"
    select = f"SELECT {hint} {columns} FROM {ordered.entry.sql} WHERE (\n{predicate}\n) LIMIT {keys_max}"
    rows = fetch(connection, limits + select)
    return KeySet(pa.Table.from_batches([decode(key, rows.data, Extents(rows.start, rows.end))]))


def _only_key(described: DescribedTable) -> DescribedTable:
    """The same table reduced to its key's columns."""
    names = [c.name for c in described.columns]
    at = [names.index(name) for name in described.table.key]
    columns = {c.name: c for c in described.table.columns}
    return DescribedTable(
        replace(described.table, columns=tuple(columns[name] for name in described.table.key)),
        tuple(described.columns[i] for i in at),
        tuple(described.codecs[i] for i in at),
    )


def _greatest(table: Ordered, connection: Connection) -> Literals | None:
    """The table's greatest key. The table may have changed since it was looked up."""
    try:
        return table.greatest(connection)
    except pymysql.Error as error:
        if error.args and error.args[0] in (NO_SUCH_TABLE, NO_SUCH_COLUMN, NO_SUCH_INDEX):
            raise SourceUnavailable(f"{table.entry.id} was altered or renamed while it was planned") from None
        raise


def key_of(entry: CatalogTable, described: DescribedTable) -> TableKey:
    """A table's key, with its columns as the server stores them."""
    columns = {c.name: c for c in described.columns}
    return TableKey(tuple(columns[name] for name in described.table.key), entry.index)


def _rows(chunk: Chunk) -> int:
    """The number of rows that a chunk reads: its size, but at least `ROWS_MIN`, and never more than its limit."""
    rows = max(chunk.size, ROWS_MIN)
    return rows if chunk.rows_max is None else max(1, min(rows, chunk.rows_max))
