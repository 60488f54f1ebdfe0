"""Existing rows by key (`engine.key_chunks`): plans, snapshots and predicates, as MySQL and MariaDB have them.

A part's snapshot: take it; touch the table, which prevents changes of its shape until the transaction ends; then read
the shape through another connection, which sees the current catalog; then read the rows. If a table was altered between
snapshot and touch, the server reports it ("table definition has changed", M55): the chunk is read again.
"""

# ruff: noqa: S608 - names go through `quote_name`, values through `literal`
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pymysql

from cdcflow.capture.interleave.messages import Chunk, Planned, Visibility
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.model.digest import Hash
from cdcflow.model.position import Token
from cdcflow.model.table import TableId
from cdcflow.sources.engine.chunks import (
    KEYS_WHERE_WAIT_S,
    ChunkDialect,
    ChunkProgress,
    Rewritten,
    predicate_refused,
    predicate_too_slow,
    without_key,
)
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.key_chunks import KeyPlan, KeyProgress
from cdcflow.sources.engine.key_ranges import KeyPartRead, KeyRange
from cdcflow.sources.engine.slices import SlicePaces
from cdcflow.sources.engine.table_key import Literals
from cdcflow.sources.mysql.backfill_replica import BackfillReplica
from cdcflow.sources.mysql.catalog import CatalogTable
from cdcflow.sources.mysql.connection import Connection, query
from cdcflow.sources.mysql.decoders import decode
from cdcflow.sources.mysql.errors import NO_SUCH_COLUMN, NO_SUCH_FUNCTION, NO_SUCH_INDEX, NO_SUCH_TABLE
from cdcflow.sources.mysql.fetch import fetch
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.marks import Marking
from cdcflow.sources.mysql.ranges import Ordered
from cdcflow.sources.mysql.rights import reading
from cdcflow.sources.mysql.snapshots import SnapshotTaker
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types.registry import select_expression

TIMED_OUT = (3024, 1969)
"""The errors for a statement that took too long: ER_QUERY_TIMEOUT of MySQL, ER_STATEMENT_TIMEOUT of MariaDB."""
CLIENT_ERRORS = range(2000, 3000)

LookUp = Callable[[TableId], CatalogTable]
Describe = Callable[[CatalogTable], DescribedTable]


class MySQLChunks(ChunkDialect[Connection, KeyRange, KeyPartRead]):
    """Implements `engine.chunks.ChunkDialect` and `DigestingDialect`. Thread-safe.

    `look_up` returns a captured table's current definition, and `describe` its shape. `pool` provides a second
    connection. `replica`: the replica that rows are read from; None: they are read at the server whose log is captured.
    """

    def __init__(
        self,
        pool: Pool[Connection],
        *,
        snapshots: SnapshotTaker,
        marking: Marking,
        look_up: LookUp,
        describe: Describe,
        replica: BackfillReplica | None = None,
    ) -> None:
        self._replica = replica
        self._pool = pool
        self._snapshots = snapshots
        self._marking = marking
        self._look_up = look_up
        self._describe = describe
        self._progress = KeyProgress()
        self._paces = SlicePaces()

    def plan(self, connection: Connection, table: TableId, generation: int) -> Planned:
        entry, described = self._current(table)
        if self._replica is not None:
            self._replica.require(connection)
        with reading(connection, table), self._snapshots.snapshot(connection) as snapshot:
            ordered = Ordered(connection, snapshot, entry, described)
            plan = KeyPlan(ordered.key.digest, _greatest(ordered))
        planned = self._progress.planned_backfill(ordered.shape, generation, plan, entry.rows)
        return replace(planned, visibilities=snapshot.visibilities)

    def write_mark(self, connection: Connection, token: Token) -> None:
        if self._replica is None:
            self._marking.write(connection, token)
            return
        self._replica.waits.end_waits()
        self._marking.write(connection, token)
        self._replica.require(connection)

    def heartbeat(self, connection: Connection) -> None:
        self._marking.beat(connection)

    def visibility(self, connection: Connection) -> Visibility:
        return (self._replica or self._snapshots).visibility(connection)

    def hash(self, connection: Connection) -> Hash:
        """Return MD5 if the server has it, otherwise SHA-256: since 9.6 MySQL has MD5 only if a component is
        installed."""
        try:
            query(connection, "SELECT MD5('')")
        except pymysql.Error as error:
            if error.args and error.args[0] in NO_SUCH_FUNCTION:
                return "sha256"
            raise
        return "md5"

    def keys_where(self, connection: Connection, table: TableId, predicate: str, keys_max: int) -> KeySet:
        entry, described = self._current(table)
        if not described.table.key:
            raise without_key(table)
        query(connection, "START TRANSACTION READ ONLY")
        try:
            with reading(connection, table):
                return _keys_where(connection, entry.sql, _only_key(described), predicate, keys_max)
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
    def open_table(self, connection: Connection, chunk: Chunk, part: KeyRange | None) -> Iterator[Ordered]:
        snapshots = self._replica or self._snapshots
        with reading(connection, chunk.table), snapshots.snapshot(connection) as snapshot:
            ordered = Ordered(connection, snapshot, *self._pin_shape(connection, chunk.table))
            self._progress.check(ordered, chunk)
            if chunk.kind == "range" and chunk.share < 1:
                pace = self._paces.of(chunk.table)
                pace.measure_round_trip(lambda: query(connection, "SELECT 1"))
                ordered.slices = pace.slices(chunk.share)
            yield ordered

    @contextlib.contextmanager
    def opened_whole(self, connection: Connection, chunk: Chunk) -> Iterator[Ordered]:
        with contextlib.ExitStack() as stack:
            name = f"{quote_name(chunk.table.schema)}.{quote_name(chunk.table.name)}"
            snapshots = self._replica or self._snapshots
            lock = (self._pool if self._replica is None else self._replica.pool).another
            snapshot = stack.enter_context(snapshots.whole(connection, name, lambda: stack.enter_context(lock())))
            yield Ordered(connection, snapshot, *self._pin_shape(connection, chunk.table))

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[Callable[[KeyPartRead], KeyPartRead]]:
        with self._snapshots.elsewhere() as here:
            yield lambda part: replace(part, snapshot=here(part.snapshot))

    def progress_after(self, chunk: Chunk, found: Sequence[KeyPartRead]) -> ChunkProgress:
        return self._progress.after(chunk, found)

    def _pin_shape(self, connection: Connection, table: TableId) -> tuple[CatalogTable, DescribedTable]:
        """Return the table's shape, which cannot change until the transaction ends."""
        try:
            query(connection, f"SELECT 1 FROM {quote_name(table.schema)}.{quote_name(table.name)} LIMIT 0")
        except pymysql.Error as error:
            if error.args and error.args[0] == NO_SUCH_TABLE:
                raise Rewritten from None  # dropped or recreated in between: it must be planned again
            raise
        return self._current(table) if self._replica is None else self._replica.current(table)

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()

    def _current(self, table: TableId) -> tuple[CatalogTable, DescribedTable]:
        entry = self._look_up(table)
        return entry, self._describe(entry)


def _keys_where(connection: Connection, source: str, key: DescribedTable, predicate: str, keys_max: int) -> KeySet:
    columns = ", ".join(select_expression(c) for c in key.columns)
    # Each server's own way to limit a statement's time, each a comment to the other. The predicate is on separate
    # lines: a comment in it ends there. The connection accepts one statement at a time, so the predicate cannot add
    # others.
    limits = f"/*M! SET STATEMENT max_statement_time={KEYS_WHERE_WAIT_S} FOR */ "
    hint = f"/*+ MAX_EXECUTION_TIME({KEYS_WHERE_WAIT_S * 1000}) */"
    select = f"SELECT {hint} {columns} FROM {source} WHERE (\n{predicate}\n) LIMIT {keys_max}"
    rows = fetch(connection, limits + select)
    return KeySet(pa.Table.from_batches([decode(key, rows.data, Extents(rows.start, rows.end))]))


def _only_key(described: DescribedTable) -> DescribedTable:
    """Return the description of the table reduced to its key's columns."""
    names = [c.name for c in described.columns]
    at = [names.index(name) for name in described.table.key]
    columns = {c.name: c for c in described.table.columns}
    return DescribedTable(
        replace(described.table, columns=tuple(columns[name] for name in described.table.key)),
        tuple(described.columns[i] for i in at),
        tuple(described.codecs[i] for i in at),
    )


def _greatest(table: Ordered) -> Literals | None:
    """Return the table's greatest key. The table may have changed since it was looked up."""
    try:
        return table.greatest()
    except pymysql.Error as error:
        if error.args and error.args[0] in (NO_SUCH_TABLE, NO_SUCH_COLUMN, NO_SUCH_INDEX):
            raise SourceUnavailable(f"{table.entry.id} was altered or renamed while it was planned") from None
        raise
