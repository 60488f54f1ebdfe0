"""Existing rows by place: pages of a table's file, through COPY, each part in one snapshot.

A heap table is a file of pages, and a TID range scan reads pages [a, b) without an index, a sort or a collation, also
without a primary key. A plan pins the file (`relfilenode`) and its length at the start; rows that come later are in
the log. When the file is another one (VACUUM FULL, TRUNCATE, a rewriting ALTER TABLE), places mean nothing any more
and the table is read from the start (W27, P26). A partitioned table is its leaves' pages one after another:

    leaf      orders_2023        orders_2024   orders_2025
    pages     0 ······· 999      0 ··· 299     0 ···· 499
    units     0 ······· 999   1000 ·· 1299   1300 ·· 1799      a chunk is any stretch of units

Each part of a chunk: begin a REPEATABLE READ transaction; take the lock that keeps DDL away, which takes no snapshot;
then look at file, columns and `pg_current_snapshot()` together with the first snapshot; then COPY with that snapshot.
Whatever the table was when the lock was granted it still is when the rows are read.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import pq

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.interleave.messages import Chunk, ChunkRead, Planned, XidSnapshot
from cdcflow.model.change import TRUNCATE, ChangeBatch, Kind, Run, reads
from cdcflow.model.position import Position, Token
from cdcflow.model.table import OP, Table, TableId
from cdcflow.sources.postgres import keys as key_texts
from cdcflow.sources.postgres.arrivals import Arrivals
from cdcflow.sources.postgres.catalog import CatalogTable, Relid, describe_all, load, refusals
from cdcflow.sources.postgres.connection import Connection, Connector, explained, literal, quoted
from cdcflow.sources.postgres.copy import decode_copy
from cdcflow.sources.postgres.lsn import lsn_of, position_of
from cdcflow.sources.postgres.types import DescribedTable, Policy
from cdcflow.sources.postgres.wire import Joined

T = TypeVar("T")

HEARTBEAT = "heartbeat"
FIRST_PAGES = 256
LOCK_WAIT = "5s"
PART_PAGES_MIN = 128
"""Below this a second connection costs more than it reads."""
PIECE_PAGES_MIN = 256
PIECES_MAX = 4

_PLAN = """
SELECT c.oid::bigint, n.nspname, c.relname, pg_catalog.pg_relation_filenode(c.oid)::bigint,
       coalesce(pg_catalog.pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::oid[]) ORDER BY c.oid
"""

# The first statement after the lock: it takes the snapshot that it reports. `xmin` of the catalog's rows change with
# every change of the table's shape, so unchanged ones save asking for the shape itself. A column's constant for older
# rows is kept with the partitions, and a rewrite of one forgets it.
_LOOK = """
SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       (SELECT pg_catalog.array_agg(ARRAY[c.oid::bigint, pg_catalog.pg_relation_filenode(c.oid)::bigint])
        FROM pg_catalog.pg_class c
        WHERE c.oid = ANY (%(leaves)s::oid[]) AND coalesce(pg_catalog.pg_partition_root(c.oid), c.oid) = %(root)s),
       (SELECT concat_ws(':', c.relname, c.relnamespace, c.relreplident)
        FROM pg_catalog.pg_class c WHERE c.oid = %(root)s),
       (SELECT string_agg(concat_ws(':', a.attnum, a.xmin, a.attname), ',' ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = %(root)s AND a.attnum > 0),
       (SELECT string_agg(concat_ws(':', i.indexrelid, i.xmin), ',' ORDER BY i.indexrelid)
        FROM pg_catalog.pg_index i WHERE i.indrelid = %(root)s),
       (WITH RECURSIVE tree (oid) AS (
            SELECT %(root)s::oid
            UNION ALL
            SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid)
        SELECT count(*) FROM tree t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.atthasmissing)
"""


class _Rewritten(Exception):
    """The table's file is no longer the one that was planned."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One file of the plan: a plain table, or one partition. `first` is its first page's unit."""

    rel: Relid
    filenode: int
    pages: int
    first: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a table's backfill reads, pinned. Stored as JSON in the log with the backfill's progress."""

    root: int
    leaves: tuple[Leaf, ...]

    @property
    def units(self) -> int:
        return sum(leaf.pages for leaf in self.leaves)

    def to_json(self) -> str:
        leaves = [[x.rel.oid, x.rel.id.schema, x.rel.id.name, x.filenode, x.pages] for x in self.leaves]
        return json.dumps({"version": 1, "root": self.root, "leaves": leaves}, separators=(",", ":"))

    def extended(self, found: Plan) -> Plan:
        """This plan, and then the leaves that `found` has besides."""
        known = {leaf.rel.oid for leaf in self.leaves}
        return _numbered(self.root, [*self.leaves, *(leaf for leaf in found.leaves if leaf.rel.oid not in known)])

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value = json.loads(text)
        leaves = [Leaf(Relid(row[0], TableId(row[1], row[2])), row[3], row[4], 0) for row in value["leaves"]]
        return _numbered(value["root"], leaves)

    def parts(self, a: int, b: int) -> list[Part]:
        """The stretches of pages that units [a, b) are."""
        found = []
        for leaf in self.leaves:
            low, high = max(a, leaf.first), min(b, leaf.first + leaf.pages)
            if low < high:
                found.append(Part(leaf, low - leaf.first, high - leaf.first))
        return found


def _numbered(root: int, leaves: Sequence[Leaf]) -> Plan:
    firsts = accumulate((leaf.pages for leaf in leaves), initial=0)
    return Plan(root, tuple(replace(leaf, first=first) for leaf, first in zip(leaves, firsts, strict=False)))


@dataclass(frozen=True, slots=True)
class Part:
    """Pages [a, b) of one leaf."""

    leaf: Leaf
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Look:
    """What a part's transaction saw first: its snapshot, when, and the table's shape in it."""

    visibility: XidSnapshot
    position: Position
    clock_us: int
    described: DescribedTable


@dataclass(frozen=True, slots=True)
class PartRead:
    look: Look
    batches: tuple[pa.RecordBatch, ...]


class PostgresChunks:
    """Implements `cdcflow.ports.ChunkSource`.

    `look_up` finds a captured table by name; `beat` is called with every heartbeat and may raise (the source watches
    its publication there). `take_version` gives a table's row version (see `rewrites`). Thread-safe.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        policy: Policy,
        parts_at_once: int,
        look_up: Callable[[TableId], Relid],
        beat: Callable[[Connection], None],
        take_version: Callable[[Connection, Relid], str | None],
        prefix: str,
    ) -> None:
        self._connector = connector
        self._prefix = prefix
        self._policy = policy
        self._parts_at_once = parts_at_once
        self._look_up = look_up
        self._beat = beat
        self._take_version = take_version
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._shapes: dict[int, tuple[str, DescribedTable]] = {}
        self._readers = ThreadPoolExecutor(parts_at_once * 4, thread_name_prefix="cdcflow-part")
        self._decoders = ThreadPoolExecutor(2, thread_name_prefix="cdcflow-decode")

    # ── cdcflow.ports.ChunkSource ───────────────────────────────────────────────────────────────────────────

    def plan(self, table: TableId, generation: int) -> Planned:
        rel = self._look_up(table)

        def ask(connection: Connection) -> Planned:
            entry = load(connection, [rel]).get(rel.oid)
            if entry is None:
                raise SourceUnavailable(f"planning the backfill of {table}: it was dropped just now, or made anew")
            if problems := refusals(entry, connection.info.server_version):
                raise ConfigurationError(problems[0][0], remedy=f"run {problems[0][1]}")
            described = describe_all(connection, [entry], self._policy)[0]
            # Before the files are pinned: what a statement does in between is then found later, never missed.
            version = self._take_version(connection, rel)
            planned = self._planned(connection, table, generation, entry, described.table)
            return replace(planned, row_version=version)

        return self._with(f"planning the backfill of {table}", ask)

    def write_mark(self, token: Token) -> None:
        self._emit(token, "local")

    def heartbeat(self) -> None:
        """A mark that nobody waits for; and a look whether the publication is still what it was."""
        self._with("looking at the publication", self._beat)
        self._emit(HEARTBEAT, "off")

    def snapshot(self) -> XidSnapshot:
        def ask(connection: Connection) -> XidSnapshot:
            row = connection.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
            assert row is not None  # noqa: S101  a function's result
            return snapshot_of(row[0])

        return self._with("taking a snapshot", ask)

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        began = time.monotonic()
        try:
            match chunk.kind:
                case "range":
                    return self._range(chunk, began)
                case "keys":
                    return self._keys(chunk, began)
                case "whole":
                    return self._whole(chunk, began)
        except _Rewritten:
            return ChunkRead(chunk, None, None, (), rewritten=True, seconds=time.monotonic() - began)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._connector.discard(connection)
        self._connector.close()
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._decoders.shutdown(wait=True, cancel_futures=True)

    # ── plan ────────────────────────────────────────────────────────────────────────────────────────────────

    def _planned(
        self, connection: Connection, table: TableId, generation: int, entry: CatalogTable, shape: Table
    ) -> Planned:
        rels = entry.leaves if entry.rel.kind == "p" else (entry.rel,)
        plan = _pinned(connection, entry.rel.oid, rels)
        return Planned(
            table=table,
            generation=generation,
            plan=plan.to_json(),
            size=FIRST_PAGES,
            units=plan.units,
            shape=shape,
            whole=not shape.key,
        )

    # ── chunks ──────────────────────────────────────────────────────────────────────────────────────────────

    def _range(self, chunk: Chunk, began: float) -> ChunkRead:
        planned = Plan.from_json(chunk.plan)
        done, _, later = (chunk.after or "0").partition("+")
        plan = Plan.from_json(later) if later else planned
        a = int(done)
        b = min(a + max(chunk.size, 1), plan.units)
        shares = _shares(plan.parts(a, b), 1 if chunk.gently else self._parts_at_once)
        futures = [self._readers.submit(self._read_parts, chunk.table, plan.root, share) for share in shares[1:]]
        try:
            found = [self._read_parts(chunk.table, plan.root, shares[0])]
        finally:
            settle(futures)  # nobody goes on reading for a chunk that was given up
        found += [f.result() for f in futures]
        shapes = {read.look.described.table for read in found}
        if len(shapes) > 1:
            raise SourceUnavailable(f"reading {chunk.table}: its columns changed between two parts of a chunk")
        if b >= plan.units and not later:
            plan = self._attached(chunk.table, plan)
            later = plan.to_json() if plan.units > planned.units else ""
        return ChunkRead(
            chunk=chunk,
            run=_run(found[0].look, [batch for read in found for batch in read.batches]),
            shape=found[0].look.described.table,
            visibilities=tuple(read.look.visibility for read in found),
            reached=f"{b}+{later}" if later else str(b),
            units_done=min(b, planned.units),
            exhausted=b >= plan.units,
            seconds=time.monotonic() - began,
        )

    def _attached(self, table: TableId, plan: Plan) -> Plan:
        """At the end of a plan: the plan with partitions that came since. One that was attached had rows before,
        and they are in no log (P12). Once is enough: later ones are for a later backfill."""
        rel = self._look_up(table)
        if rel.kind != "p":
            return plan

        def ask(connection: Connection) -> Plan:
            leaves = load(connection, [rel])[rel.oid].leaves
            known = {leaf.rel.oid for leaf in plan.leaves}
            return plan.extended(_pinned(connection, plan.root, [x for x in leaves if x.oid not in known]))

        return self._with(f"looking for new partitions of {table}", ask)

    def _read_parts(self, table: TableId, root: int, parts: Sequence[Part]) -> PartRead:
        def read(connection: Connection) -> PartRead:
            leaves = {p.leaf.rel.oid: p.leaf for p in parts}
            with self._transaction(connection, table, root, list(leaves.values())) as look:
                # Decoded beside the next piece's transfer, so that the server need not wait for it.
                decoded = [
                    self._decoders.submit(
                        decode_copy,
                        _drained(connection, _copy(look.described, f"ONLY {p.leaf.rel.sql}", pages(a, b))),
                        look.described,
                    )
                    for p in parts
                    for a, b in _pieces(p)
                ]
            return PartRead(look, tuple(future.result() for future in decoded))

        return self._with(f"reading {table}", read)

    def _keys(self, chunk: Chunk, began: float) -> ChunkRead:
        """The rows that have these keys now, found through the index; a key without a row gives none."""
        assert chunk.keys is not None  # noqa: S101  what kind "keys" means
        wanted = chunk.keys
        root = Plan.from_json(chunk.plan).root

        def read(connection: Connection) -> PartRead:
            with self._transaction(connection, chunk.table, root, []) as look:
                condition = key_texts.condition(wanted, look.described)
                source = _whole_of(connection, root, chunk.table)
                return PartRead(look, (_copied(connection, look.described, source, condition),))

        found = self._with(f"reading keys of {chunk.table}", read)
        return ChunkRead(
            chunk=chunk,
            run=_run(found.look, found.batches),
            shape=found.look.described.table,
            visibilities=(found.look.visibility,),
            reached=chunk.after,
            exhausted=True,
            seconds=time.monotonic() - began,
        )

    def _whole(self, chunk: Chunk, began: float) -> ChunkRead:
        """The whole table in one snapshot, after a truncate: rows without a key cannot be replayed over each other."""
        plan = Plan.from_json(chunk.plan)

        def read(connection: Connection) -> PartRead:
            with self._transaction(connection, chunk.table, plan.root, plan.leaves) as look:
                source = _whole_of(connection, plan.root, chunk.table)
                return PartRead(look, (_copied(connection, look.described, source, "true"),))

        found = self._with(f"reading {chunk.table} whole", read)
        return ChunkRead(
            chunk=chunk,
            run=_after_truncate(_run(found.look, found.batches), found.look.described.table),
            shape=found.look.described.table,
            visibilities=(found.look.visibility,),
            reached=str(plan.units),
            units_done=plan.units,
            exhausted=True,
            seconds=time.monotonic() - began,
        )

    # ── one transaction ─────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _transaction(self, connection: Connection, table: TableId, root: int, leaves: Sequence[Leaf]) -> Iterator[Look]:
        """A snapshot in which root and leaves are locked against DDL and are the files that were planned."""
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'".encode())
            named = [quoted(table.schema, table.name), *(x.rel.sql for x in leaves if x.rel.oid != root)]
            try:
                connection.execute(f"LOCK TABLE {', '.join(f'ONLY {n}' for n in named)} IN ACCESS SHARE MODE".encode())
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.WrongObjectType):
                raise _Rewritten from None  # renamed, detached and dropped, or made anew: it must be planned again
            yield self._look(connection, table, root, leaves)
        finally:
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK")

    def _look(self, connection: Connection, table: TableId, root: int, leaves: Sequence[Leaf]) -> Look:
        oids = [leaf.rel.oid for leaf in leaves]
        row = connection.execute(_LOOK, {"leaves": oids, "root": root}).fetchone()
        assert row is not None  # noqa: S101  one row by construction
        snapshot, position, clock, files, *shape = row
        if {tuple(f) for f in files or ()} != {(leaf.rel.oid, leaf.filenode) for leaf in leaves}:
            raise _Rewritten
        described = self._shape(connection, table, root, json.dumps(shape))
        return Look(snapshot_of(snapshot), position_of(lsn_of(position)), int(clock), described)

    def _shape(self, connection: Connection, table: TableId, root: int, digest: str) -> DescribedTable:
        with self._lock:
            known = self._shapes.get(root)
        if known is not None and known[0] == digest:
            return known[1]
        rel = self._look_up(table)
        if rel.oid != root:
            raise _Rewritten  # another table of the same name (P25)
        described = describe_all(connection, list(load(connection, [rel]).values()), self._policy)[0]
        with self._lock:
            self._shapes[root] = digest, described
        return described

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────

    def _with(self, attempted: str, work: Callable[[Connection], T]) -> T:
        """Do something on a connection of the pool. One that died while it lay idle is replaced, once."""
        while True:
            connection, fresh = self._take()
            try:
                result = work(connection)
            except psycopg.Error as error:
                if connection.broken and not fresh:
                    self._connector.discard(connection)
                    continue
                self._give_back(connection)
                raise explained(error, attempted) from None
            except BaseException:
                self._give_back(connection)
                raise
            self._give_back(connection)
            return result

    def _take(self) -> tuple[Connection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return self._connector.connect("chunks"), True

    def _give_back(self, connection: Connection) -> None:
        usable = not connection.closed and connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if usable and not self._connector.closed:
            with self._lock:
                self._idle.append(connection)
        else:
            self._connector.discard(connection)

    def _emit(self, content: str, synchronous_commit: str) -> None:
        def emit(connection: Connection) -> None:
            # A mark must not wait for a standby: it would then wait for what it is to bracket (E1).
            connection.execute(
                f"SET synchronous_commit = {synchronous_commit}; "
                f"SELECT pg_catalog.pg_logical_emit_message(true, {literal(self._prefix)}, {literal(content)})".encode()
            )

        self._with("writing a mark", emit)


def settle(futures: Sequence[Future[T]]) -> None:
    """Wait until none of them runs or is to run, whatever comes of them.

    Not `concurrent.futures.wait`: it waits for ever for one that was cancelled by its executor's shutdown.
    """
    for future in futures:
        with contextlib.suppress(CancelledError):
            future.exception()


def mark_prefix(slot: str) -> str:
    """The prefix of the marks of one slot. Several logs may follow one database, and none may take another's mark."""
    return f"cdcflow.{slot}"


def _pinned(connection: Connection, root: int, rels: Sequence[Relid]) -> Plan:
    """These files as they are now."""
    rows = connection.execute(_PLAN, ([rel.oid for rel in rels],))
    return _numbered(root, [Leaf(Relid(row[0], TableId(row[1], row[2])), row[3], row[4], 0) for row in rows])


# ── SQL and rows ────────────────────────────────────────────────────────────────────────────────────────────


def pages(a: int, b: int) -> str:
    """The condition on a table `t` that makes the server read pages [a, b) and no others."""
    return f"t.ctid >= '({a},0)'::pg_catalog.tid AND t.ctid < '({b},0)'::pg_catalog.tid"


def _whole_of(connection: Connection, root: int, table: TableId) -> str:
    """A table in a FROM: with its partitions, but without tables that merely inherit from it."""
    row = connection.execute("SELECT relkind::text FROM pg_catalog.pg_class WHERE oid = %s", (root,)).fetchone()
    return ("" if row == ("p",) else "ONLY ") + quoted(table.schema, table.name)


def _shares(parts: Sequence[Part], at_once: int) -> list[list[Part]]:
    """The parts, dealt out to as many of `at_once` connections as pay; at least one share, which may be empty."""
    pages = sum(p.b - p.a for p in parts)
    count = max(1, min(at_once, pages // PART_PAGES_MIN))
    shares: list[list[Part]] = [[]]
    room = target = -(-pages // count)
    for part in parts:
        a = part.a
        while a < part.b:
            if room == 0:
                shares.append([])
                room = target
            b = min(part.b, a + room)
            shares[-1].append(Part(part.leaf, a, b))
            room -= b - a
            a = b
    return shares


def _pieces(part: Part) -> list[tuple[int, int]]:
    """A part's pages in stretches for one COPY each."""
    count = max(1, min(PIECES_MAX, (part.b - part.a) // PIECE_PAGES_MIN))
    ends = [part.a + (part.b - part.a) * i // count for i in range(count + 1)]
    return list(pairwise(ends))


def _copy(described: DescribedTable, source: str, condition: str) -> str:
    expressions = ", ".join(described.copy_expressions)
    selected = f"SELECT {expressions} FROM {source} AS t WHERE {condition}"  # noqa: S608  quoted by `connection`
    return f"COPY ({selected}) TO STDOUT (FORMAT binary)"


def _copied(connection: Connection, described: DescribedTable, source: str, condition: str) -> pa.RecordBatch:
    return decode_copy(_drained(connection, _copy(described, source, condition)), described)


def _drained(connection: Connection, query: str) -> Joined:
    """Run a COPY TO STDOUT; its CopyData messages, in order."""
    pg = connection.pgconn
    result = pg.exec_(query.encode())
    if result.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    messages = Arrivals(pg, "rows").take_all()
    while (result_after := pg.get_result()) is not None:
        if result_after.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result_after)
    return messages


def _run(look: Look, batches: Sequence[pa.RecordBatch]) -> Run:
    return reads(look.described.table, batches, look.position, look.clock_us)


def _after_truncate(run: Run, table: Table) -> Run:
    """The same rows behind a truncate of the table."""
    schema = table.change_schema
    columns = [pa.array([TRUNCATE], pa.string()) if f.name == OP else pa.nulls(1, f.type) for f in schema]
    truncate = ChangeBatch(table, np.zeros(1, np.int64), pa.RecordBatch.from_arrays(columns, schema=schema))
    shifted = tuple(ChangeBatch(b.table, b.index + 1, b.rows) for b in run.batches)
    return Run(run.xid, run.position, run.commit_ts, run.ends + 1, (truncate, *shifted), Kind.READ)


def snapshot_of(text: str) -> XidSnapshot:
    """`pg_current_snapshot()`: xmin:xmax:ids."""
    xmin, xmax, running = text.split(":")
    return XidSnapshot(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x))
