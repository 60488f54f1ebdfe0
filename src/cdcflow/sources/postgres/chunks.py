"""Existing rows by place: pages of a table's file, through COPY, each part in one snapshot.

A heap table is a file of pages, and a TID range scan reads pages [a, b) without an index, a sort or a collation, also
without a primary key. A plan pins the file (`relfilenode`) and its length at the start; rows that come later are in
the log. When the file is another one (VACUUM FULL, TRUNCATE, a rewriting ALTER TABLE), places mean nothing any more
and the table is read from the start (W27, P26). A partitioned table is its leaves' pages one after another:

    leaf      orders_2023        orders_2024   orders_2025
    pages     0 ······· 999      0 ··· 299     0 ···· 499
    units     0 ······· 999   1000 ·· 1299   1300 ·· 1799      a chunk is any stretch of units

A part's snapshot: begin a REPEATABLE READ transaction; take the lock that keeps DDL away, which takes no snapshot;
then look at file, columns and `pg_current_snapshot()` together with the first snapshot; then COPY with that snapshot.
Whatever the table was when the lock was granted it still is when the rows are read.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import psycopg
import pyarrow as pa
from psycopg import pq

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.interleave.messages import Chunk, Planned, XidSnapshot
from cdcflow.model.change import KeySet
from cdcflow.model.position import Token
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.chunks import PartRead, Reached, Rewritten, Snapshot
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.postgres import keys as key_texts
from cdcflow.sources.postgres.arrivals import Arrivals
from cdcflow.sources.postgres.catalog import Relid, describe_all, load, refusals
from cdcflow.sources.postgres.connection import Connection, literal, quoted
from cdcflow.sources.postgres.copy import decode_copy
from cdcflow.sources.postgres.lsn import lsn_of, position_of
from cdcflow.sources.postgres.types import DescribedTable, Policy
from cdcflow.sources.postgres.wire import Joined

HEARTBEAT = "heartbeat"
FIRST_PAGES = 256
PAGE_ROWS_MAX = 291
"""MaxHeapTuplesPerPage of a page of 8 kB (access/htup_details.h)."""
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


Share = tuple[Part, ...]
"""What one connection reads of a chunk."""


class PostgresChunks:
    """Implements `engine.chunks.ChunkDialect`. Thread-safe.

    `look_up` finds a captured table by name; `beat` is called with every heartbeat and may raise (the source watches
    its publication there). `take_version` gives a table's row version (see `rewrites`). `pool` is asked for what a
    chunk's own snapshot must not answer.
    """

    def __init__(
        self,
        pool: Pool[Connection],
        *,
        policy: Policy,
        parts_at_once: int,
        look_up: Callable[[TableId], Relid],
        beat: Callable[[Connection], None],
        take_version: Callable[[Connection, Relid], str | None],
        prefix: str,
    ) -> None:
        self._pool = pool
        self._prefix = prefix
        self._policy = policy
        self._parts_at_once = parts_at_once
        self._look_up = look_up
        self._beat = beat
        self._take_version = take_version
        self._lock = threading.Lock()
        self._shapes: dict[int, tuple[str, DescribedTable]] = {}
        self._decoders = ThreadPoolExecutor(2, thread_name_prefix="cdcflow-chunk-decode")

    # ── engine.chunks.ChunkDialect ──────────────────────────────────────────────────────────────────────────

    def plan(self, connection: Connection, table: TableId, generation: int) -> Planned:
        rel = self._look_up(table)
        entry = load(connection, [rel]).get(rel.oid)
        if entry is None:
            raise SourceUnavailable(f"planning the backfill of {table}: it was dropped just now, or made anew")
        if problems := refusals(entry, connection.info.server_version):
            raise ConfigurationError(problems[0][0], remedy=f"run {problems[0][1]}")
        shape = describe_all(connection, [entry], self._policy)[0].table
        # Before the files are pinned: what a statement does in between is then found later, never missed.
        version = self._take_version(connection, rel)
        plan = _pinned(connection, rel.oid, entry.leaves if rel.kind == "p" else (rel,))
        return Planned(
            table=table,
            generation=generation,
            plan=plan.to_json(),
            size=FIRST_PAGES,
            units=plan.units,
            shape=shape,
            whole=not shape.key,
            rows_per_unit_max=PAGE_ROWS_MAX,
            row_version=version,
        )

    def write_mark(self, connection: Connection, token: Token) -> None:
        self._emit(connection, token, "local")

    def heartbeat(self, connection: Connection) -> None:
        """A mark that nobody waits for; and a look whether the publication is still what it was."""
        self._beat(connection)
        self._emit(connection, HEARTBEAT, "off")

    def visibility(self, connection: Connection) -> XidSnapshot:
        row = connection.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
        assert row is not None  # noqa: S101  a function's result
        return snapshot_of(row[0])

    @contextlib.contextmanager
    def opened(self, connection: Connection, chunk: Chunk, part: Share | None) -> Iterator[OpenTable]:
        if part is None and chunk.kind == "range":
            part = _shares_of(chunk, 1 if chunk.single_connection else self._parts_at_once)[0]
        leaves = {p.leaf.rel.oid: p.leaf for p in part or ()}
        with self._transaction(
            connection, chunk.table, Plan.from_json(chunk.plan).root, list(leaves.values())
        ) as opened:
            yield opened

    @contextlib.contextmanager
    def opened_whole(self, connection: Connection, chunk: Chunk) -> Iterator[OpenTable]:
        plan = Plan.from_json(chunk.plan)
        with self._transaction(connection, chunk.table, plan.root, plan.leaves) as opened:
            yield opened

    def reached(self, chunk: Chunk, found: Sequence[PartRead]) -> Reached:
        planned, (plan, _, b) = Plan.from_json(chunk.plan), _stretch_of(chunk)
        if b >= plan.units and plan.units == planned.units:
            plan = self._attached(chunk.table, plan)
        later = f"+{plan.to_json()}" if plan.units > planned.units else ""
        return Reached(f"{b}{later}", min(b, planned.units), exhausted=b >= plan.units)

    def close(self) -> None:
        self._decoders.shutdown(wait=True, cancel_futures=True)

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

        return self._pool.run(f"looking for new partitions of {table}", ask)

    def _emit(self, connection: Connection, content: str, synchronous_commit: str) -> None:
        # A mark must not wait for a standby: it would then wait for what it is to bracket (E1).
        connection.execute(
            f"SET synchronous_commit = {synchronous_commit}; "
            f"SELECT pg_catalog.pg_logical_emit_message(true, {literal(self._prefix)}, {literal(content)})".encode()
        )

    # ── one transaction ─────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _transaction(
        self, connection: Connection, table: TableId, root: int, leaves: Sequence[Leaf]
    ) -> Iterator[OpenTable]:
        """A snapshot in which root and leaves are locked against DDL and are the files that were planned."""
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'".encode())
            named = [quoted(table.schema, table.name), *(x.rel.sql for x in leaves if x.rel.oid != root)]
            try:
                connection.execute(f"LOCK TABLE {', '.join(f'ONLY {n}' for n in named)} IN ACCESS SHARE MODE".encode())
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.WrongObjectType):
                raise Rewritten from None  # renamed, detached and dropped, or made anew: it must be planned again
            snapshot, described = self._look(connection, table, root, leaves)
            yield OpenTable(connection, table, root, snapshot, described, self._decoders)
        finally:
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK")

    def _look(
        self, connection: Connection, table: TableId, root: int, leaves: Sequence[Leaf]
    ) -> tuple[Snapshot, DescribedTable]:
        oids = [leaf.rel.oid for leaf in leaves]
        row = connection.execute(_LOOK, {"leaves": oids, "root": root}).fetchone()
        assert row is not None  # noqa: S101  one row by construction
        snapshot, position, clock, files, *shape = row
        if {tuple(f) for f in files or ()} != {(leaf.rel.oid, leaf.filenode) for leaf in leaves}:
            raise Rewritten
        described = self._shape(connection, table, root, json.dumps(shape))
        return Snapshot((snapshot_of(snapshot),), position_of(lsn_of(position)), int(clock)), described

    def _shape(self, connection: Connection, table: TableId, root: int, digest: str) -> DescribedTable:
        with self._lock:
            known = self._shapes.get(root)
        if known is not None and known[0] == digest:
            return known[1]
        rel = self._look_up(table)
        if rel.oid != root:
            raise Rewritten  # another table of the same name (P25)
        described = describe_all(connection, list(load(connection, [rel]).values()), self._policy)[0]
        with self._lock:
            self._shapes[root] = digest, described
        return described


@dataclass(frozen=True, slots=True)
class OpenTable:
    """Implements `engine.chunks.OpenTable`."""

    connection: Connection
    table: TableId
    root: int
    snapshot: Snapshot
    described: DescribedTable
    decoders: ThreadPoolExecutor

    @property
    def shape(self) -> Table:
        return self.described.table

    def parts(self, chunk: Chunk, at_once: int) -> list[Share]:
        return _shares_of(chunk, at_once)

    def read(self, part: Share) -> Callable[[], PartRead]:
        # Decoded beside the next piece's transfer, so that the server need not wait for it.
        decoded = [
            self.decoders.submit(decode_copy, self._copied(f"ONLY {p.leaf.rel.sql}", pages(a, b)), self.described)
            for p in part
            for a, b in _pieces(p)
        ]
        return lambda: PartRead(self.snapshot, self.shape, tuple(future.result() for future in decoded))

    def rows_with(self, keys: KeySet) -> list[pa.RecordBatch]:
        return [self._rows(key_texts.condition(keys, self.described))]

    def all_rows(self) -> list[pa.RecordBatch]:
        return [self._rows("true")]

    def _rows(self, condition: str) -> pa.RecordBatch:
        return decode_copy(self._copied(_whole_of(self.connection, self.root, self.table), condition), self.described)

    def _copied(self, source: str, condition: str) -> Joined:
        return _drained(self.connection, _copy(self.described, source, condition))


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


def _stretch_of(chunk: Chunk) -> tuple[Plan, int, int]:
    """What a range chunk reads: units [a, b) of a plan, which may have got partitions behind its end."""
    done, _, later = (chunk.after or "0").partition("+")
    plan, a = Plan.from_json(later or chunk.plan), int(done)
    return plan, a, min(a + max(chunk.size, 1), plan.units)


def _shares_of(chunk: Chunk, at_once: int) -> list[Share]:
    plan, a, b = _stretch_of(chunk)
    return [tuple(share) for share in _shares(plan.parts(a, b), at_once)]


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


def snapshot_of(text: str) -> XidSnapshot:
    """`pg_current_snapshot()`: xmin:xmax:ids."""
    xmin, xmax, running = text.split(":")
    return XidSnapshot(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x))
