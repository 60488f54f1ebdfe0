"""Existing rows by tuple id: pages of a table's file, through COPY, each part in one snapshot.

A heap table is a file of pages, and a TID range scan reads pages [a, b) without an index, a sort or a collation, also
without a primary key. A plan pins the file (`relfilenode`) and its length at the start; rows inserted later are in the
log. When the file is replaced (VACUUM FULL, TRUNCATE, a rewriting ALTER TABLE), tuple ids no longer mean anything and
the table is read from the start (W27, P26). `pages` decides which pages form a chunk.

A row may be a thousand times as large as the number of pages suggests, so a COPY ends when it has returned too much: it
is cancelled, after a savepoint, so that its snapshot stays. A TID range scan returns rows in the order of their tuple
ids, and so the number of rows received determines the row at which it ended.

A part's snapshot: begin a REPEATABLE READ transaction; take the lock that prevents DDL, which takes no snapshot; then
read file, columns and visibility (`fences`) together with the first snapshot; then COPY with that snapshot. The table
when the rows are read is the same as when the lock was granted.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa
from psycopg import pq

from cdcflow.capture.interleave.messages import Chunk, Planned, Visibility
from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, RightMissing, SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.model.digest import Buckets, Hash
from cdcflow.model.position import Token
from cdcflow.model.table import Table, TableId, word
from cdcflow.sources.engine.chunks import (
    KEYS_WHERE_WAIT_S,
    ChunkDialect,
    ChunkProgress,
    PartRead,
    Rewritten,
    Snapshot,
    TooLarge,
    predicate_refused,
    predicate_too_slow,
    without_key,
)
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.selection import advice
from cdcflow.sources.engine.slices import SlicePaces, Slices
from cdcflow.sources.postgres import keys as key_texts
from cdcflow.sources.postgres.catalog import describe_all
from cdcflow.sources.postgres.catalog_entries import Relid, load
from cdcflow.sources.postgres.connection import Connection, has_no_encoding, map_error, query_row, quote_name
from cdcflow.sources.postgres.copy import count_rows, decode_copy
from cdcflow.sources.postgres.copy_reader import CopyReader
from cdcflow.sources.postgres.digests import SUMS, PostgresDigests
from cdcflow.sources.postgres.fences import SeenAt, ServerFences
from cdcflow.sources.postgres.lsn import position_of
from cdcflow.sources.postgres.pages import (
    Leaf,
    PageCursor,
    PagePlan,
    PageRange,
    Share,
    plan_of,
    plan_of_leaves,
    shares_of,
)
from cdcflow.sources.postgres.table_refusals import refusals
from cdcflow.sources.postgres.types import DescribedTable, Policy
from cdcflow.sources.postgres.wire import Joined

FIRST_PAGES = 256
PAGE_ROWS_MAX = 291
"""The most rows that a page of 8 kB can have: MaxHeapTuplesPerPage (access/htup_details.h)."""
LOCK_WAIT = "5s"
CHUNK_BYTES_MAX = 64 << 20
"""A chunk ends early at this size, however many pages it may have: rows may be large."""
_ROW_BYTES = 64  # below this the header alone could end a COPY
_ALL_BYTES = 1 << 62
CANCEL_WAIT_S = 5.0
_START = PageCursor(0)

_PLAN = """
SELECT c.oid::bigint, n.nspname, c.relname, pg_catalog.pg_relation_filenode(c.oid)::bigint,
       coalesce(pg_catalog.pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::oid[]) ORDER BY c.oid
"""

# The first statement after the lock: it takes the snapshot that it reports. The `xmin` of the catalog's rows change
# with every change of the table's shape; while they are the same, the shape is not queried again. A column's constant
# for older rows is stored with each partition, and a rewrite of the partition removes it: so they are counted.
_LOOK = """
SELECT {snapshot_columns},
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
class PagesRead(PartRead):
    """The rows of a share. `reached`: the cursor at which reading ended. `bytes`: how many bytes the server sent; 0:
    not known."""

    reached: PageCursor = _START
    bytes: int = 0


class PostgresChunks(ChunkDialect[Connection, Share, PagesRead]):
    """Implements `engine.chunks.ChunkDialect` and `DigestingDialect`. Thread-safe.

    `look_up` returns the captured table that has a name; `beat` is called with every heartbeat and may raise (the
    source uses it to check its publication). `take_version` returns a table's row version (see `rewrites`). `fences`
    are those of a primary or of a standby, or of both. `pool` serves queries that must not run in a chunk's own
    snapshot.
    """

    def __init__(
        self,
        pool: Pool[Connection],
        *,
        policy: Policy,
        parts_at_once: int,
        look_up: Callable[[TableId], Relid],
        beat: Callable[[Connection], None],
        take_version: Callable[[Connection, Relid, int], str | None],
        fences: ServerFences,
        chunk_bytes_max: int = CHUNK_BYTES_MAX,
    ) -> None:
        self._pool = pool
        self._fences = fences
        self._look_query = _LOOK.replace("{snapshot_columns}", fences.snapshot_columns)
        self._policy = policy
        self._parts_at_once = parts_at_once
        self._look_up = look_up
        self._beat = beat
        self._take_version = take_version
        self._lock = threading.Lock()
        self._shapes: dict[int, tuple[str, DescribedTable]] = {}
        self._bytes_max = chunk_bytes_max
        self._pages_max: dict[TableId, int] = {}  # according to a table's last chunk
        self._decoders = ThreadPoolExecutor(2, thread_name_prefix="cdcflow-chunk-decode")
        self._paces = SlicePaces()

    # ── engine.chunks.ChunkDialect ──────────────────────────────────────────────────────────────────────────

    def plan(self, connection: Connection, table: TableId, generation: int) -> Planned:
        rel = self._look_up(table)
        entry = load(connection, [rel]).get(rel.oid)
        if entry is None:
            raise SourceUnavailable(f"planning the backfill of {table}: it was just dropped or recreated")
        if problems := refusals(entry, connection.info.server_version):
            why, mend = problems[0]
            raise ConfigurationError(
                # The remedy's statement changes no row, so only a backfill has the table read again.
                why,
                remedy=f"{advice(mend)}; then run `cdcflow backfill {word(table)}`",
                runbook="table-not-capturable",
            )
        shape = describe_all(connection, [entry], self._policy)[0].table
        # The version is taken before the files are pinned, so that the effect of a statement in between is found later,
        # and not missed.
        version = self._take_version(connection, rel, generation)
        visibilities = self._fences.of_plan(connection)
        plan = _pin_plan(connection, rel.oid, entry.leaves if rel.kind == "p" else (rel,))
        return Planned(
            table=table,
            generation=generation,
            plan=plan.to_json(),
            size=FIRST_PAGES,
            units=plan.units,
            shape=shape,
            whole=not shape.key,
            visibilities=visibilities,
            rows_per_unit_max=PAGE_ROWS_MAX,
            row_version=version,
        )

    def write_mark(self, connection: Connection, token: Token) -> None:
        self._fences.write_mark(connection, token)

    def heartbeat(self, connection: Connection) -> None:
        """Make an idle stream advance, and check whether the publication is unchanged."""
        self._beat(connection)
        self._fences.beat(connection)

    def visibility(self, connection: Connection) -> Visibility:
        return self._fences.visibility(connection)

    def elsewhere(self) -> AbstractContextManager[Callable[[PagesRead], PagesRead]]:
        return self._fences.elsewhere()

    def hash(self, connection: Connection) -> Hash:
        return "md5"

    def keys_where(self, connection: Connection, table: TableId, predicate: str, keys_max: int) -> KeySet:
        rel = self._look_up(table)
        if (entry := load(connection, [rel]).get(rel.oid)) is None:
            raise SourceUnavailable(f"looking for rows of {table}: it was just dropped or recreated")
        described = describe_all(connection, [entry], self._policy)[0]
        if not described.table.key:
            raise without_key(table)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(f"SET LOCAL statement_timeout = '{KEYS_WHERE_WAIT_S}s'".encode())
            return _keys_where(
                connection, _only_key(described), _whole_of(connection, rel.oid, table), predicate, keys_max
            )
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
            raise predicate_too_slow(table) from None
        except psycopg.Error as error:
            if error.sqlstate is None or error.sqlstate[:2] not in _REFUSALS:
                raise
            raise predicate_refused(table, _refusal(error)) from None
        finally:
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def open_table(self, connection: Connection, chunk: Chunk, part: Share | None) -> Iterator[OpenTable]:
        shares = [] if part is None else [part]
        if part is None and chunk.kind == "range":
            at_once = 1 if chunk.single_connection else self._parts_at_once
            shares = shares_of(chunk, at_once, self._bytes_max, self._pages_max.get(chunk.table))
        leaves = {p.leaf.rel.oid: p.leaf for p in shares[0].parts} if shares else {}
        root = PagePlan.from_json(chunk.plan).root
        with self._transaction(connection, chunk.table, root, list(leaves.values()), shares) as opened:
            if chunk.kind == "range" and chunk.share < 1:
                pace = self._paces.of(chunk.table)
                pace.measure_round_trip(lambda: connection.execute("SELECT 1"))
                opened = replace(opened, slices=pace.slices(chunk.share))
            yield opened

    @contextlib.contextmanager
    def opened_whole(self, connection: Connection, chunk: Chunk) -> Iterator[OpenTable]:
        plan = PagePlan.from_json(chunk.plan)
        with self._transaction(connection, chunk.table, plan.root, plan.leaves) as opened:
            yield opened

    def progress_after(self, chunk: Chunk, found: Sequence[PagesRead]) -> ChunkProgress:
        planned, (plan, begin) = PagePlan.from_json(chunk.plan), plan_of(chunk)
        at = found[-1].reached
        if size := sum(part.bytes for part in found):
            # Aim at half the limit on bytes: if a part reaches its limit and ends early, the rows of later parts were
            # read in vain.
            page_bytes = size // max(at.unit - begin.unit, 1)
            self._pages_max[chunk.table] = max(1, self._bytes_max // 2 // max(page_bytes, 1))
        if at.unit >= plan.units and plan.units == planned.units:
            plan = self._with_attached(chunk.table, plan)
        later = plan.to_json() if plan.units > planned.units else ""
        return ChunkProgress(
            str(replace(at, later=later)), min(at.unit, planned.units), exhausted=at.unit >= plan.units
        )

    def close(self) -> None:
        self._decoders.shutdown(wait=True, cancel_futures=True)
        self._fences.close()

    def _with_attached(self, table: TableId, plan: PagePlan) -> PagePlan:
        """Return the plan, at its end, with partitions that were added after it.

        A partition that was attached had rows before, which no log contains (P12). This is done once: partitions added
        later are read by a later backfill.
        """
        rel = self._look_up(table)
        if rel.kind != "p":
            return plan

        def ask(connection: Connection) -> PagePlan:
            leaves = load(connection, [rel])[rel.oid].leaves
            known = {leaf.rel.oid for leaf in plan.leaves}
            return plan.with_leaves_of(_pin_plan(connection, plan.root, [x for x in leaves if x.oid not in known]))

        return self._pool.run(f"looking for new partitions of {table}", ask)

    # ── one transaction ─────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _transaction(
        self,
        connection: Connection,
        table: TableId,
        root: int,
        leaves: Sequence[Leaf],
        shares: Sequence[Share] = (),
    ) -> Iterator[OpenTable]:
        """Open a table in a snapshot in which root and leaves are locked against DDL and are the files that were
        planned."""
        try:
            with self._fences.look(connection) as seen_at:
                self._lock_tables(connection, table, root, leaves)
                snapshot, described = self._look(connection, table, root, leaves, seen_at)
            yield OpenTable(connection, table, root, snapshot, described, self._decoders, shares)
        except (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire) as error:
            raise _no_text(error, table) from None
        except psycopg.errors.InsufficientPrivilege as error:
            # LOCK was refused, or a COPY after it: no lock prevents changes of rights and policies.
            raise _right_missing(error, connection, table, leaves) from None
        finally:
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK")

    def _lock_tables(self, connection: Connection, table: TableId, root: int, leaves: Sequence[Leaf]) -> None:
        """Begin a transaction, and lock the tables in it without taking its snapshot."""
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'".encode())
        named = [quote_name(table.schema, table.name), *(x.rel.sql for x in leaves if x.rel.oid != root)]
        try:
            connection.execute(f"LOCK TABLE {', '.join(f'ONLY {n}' for n in named)} IN ACCESS SHARE MODE".encode())
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.WrongObjectType):
            raise Rewritten from None  # renamed, detached and dropped, or recreated: it must be planned again

    def _look(
        self, connection: Connection, table: TableId, root: int, leaves: Sequence[Leaf], seen_at: SeenAt
    ) -> tuple[Snapshot, DescribedTable]:
        oids = [leaf.rel.oid for leaf in leaves]
        seen, clock, files, *shape = query_row(connection, self._look_query, {"leaves": oids, "root": root})
        visibilities, position = seen_at(seen)
        if {tuple(f) for f in files or ()} != {(leaf.rel.oid, leaf.filenode) for leaf in leaves}:
            raise Rewritten
        described = self._shape(connection, table, root, json.dumps(shape))
        return Snapshot(visibilities, position_of(position), int(clock)), described

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
    """Implements `engine.chunks.DigestingTable`. `shares`: the parts of the range chunk that is read. `slices`: the
    slices in which `read` reads a part; without slices it reads in larger pieces, without pauses."""

    connection: Connection
    table: TableId
    root: int
    snapshot: Snapshot
    described: DescribedTable
    decoders: ThreadPoolExecutor
    shares: Sequence[Share] = ()
    slices: Slices | None = None

    @property
    def shape(self) -> Table:
        return self.described.table

    def parts(self, chunk: Chunk, at_once: int) -> Sequence[Share]:
        return self.shares

    def parts_to_end(self, chunk: Chunk, at_once: int) -> Sequence[Share]:
        return self.shares

    def sums(self, part: Share, buckets: Buckets) -> PagesRead:
        found, digests = [], self._digests(buckets)
        for piece in part.parts:
            query = digests.sums(f"{piece.source} AS t WHERE {piece.condition}")
            rows, _ = _run_copy(self.connection, f"COPY ({query}) TO STDOUT (FORMAT binary)", _ALL_BYTES)
            found.append(decode_copy(rows, SUMS))
        return PagesRead(self.snapshot, self.shape, tuple(found), reached=PageCursor(part.end))

    def read_among(self, part: Share, buckets: Buckets) -> Callable[[], PagesRead]:
        return self._read(part, " AND " + self._digests(buckets).among())

    def _digests(self, buckets: Buckets) -> PostgresDigests:
        is_utf8 = self.connection.info.parameter_status("server_encoding") == "UTF8"
        return PostgresDigests(self.described, buckets, is_utf8=is_utf8)

    def read(self, part: Share) -> Callable[[], PagesRead]:
        return self._read(part)

    def _read(self, part: Share, which: str = "") -> Callable[[], PagesRead]:
        """Fetch a share's rows; see `read`. `which`: a further condition on the rows."""
        decoded: list[Future[pa.RecordBatch]] = []
        size, reached = 0, PageCursor(part.end)
        for piece in self._pieces(part):
            if size >= part.bytes_max:
                reached = piece.begin
                break
            condition = piece.condition + which
            rows, is_whole = self._copy_rows(piece.source, condition, part.bytes_max - size)
            size += len(rows.data)
            # The rows are decoded while the next piece is transferred, so that the server need not wait for that.
            decoded.append(self.decoders.submit(decode_copy, rows, self.described))
            if not is_whole:
                reached = self._behind(piece, condition, count_rows(rows))
                break
        is_whole = reached == PageCursor(part.end)
        idle_s = 0.0 if self.slices is None else self.slices.idle_s
        return lambda: PagesRead(
            self.snapshot,
            self.shape,
            tuple(future.result() for future in decoded),
            is_whole,
            reached,
            # If only some rows of the pages were requested, the size of the pages is unknown.
            0 if which else size,
            idle_seconds=idle_s,
        )

    def _pieces(self, part: Share) -> Iterator[PageRange]:
        """Yield the pages for one COPY each."""
        if self.slices is None:
            yield from (piece for pages in part.parts for piece in pages.pieces())
            return
        for pages in part.parts:
            rest = pages
            while rest.a < rest.b:
                end = min(rest.b, rest.a + next(self.slices))
                yield replace(rest, b=end)
                rest = replace(rest, a=end, behind=0)

    def rows_with(self, keys: KeySet, bytes_max: int) -> tuple[Sequence[pa.RecordBatch], KeySet | None]:
        source = _whole_of(self.connection, self.root, self.table)
        while True:
            condition = key_texts.condition(keys, self.described)
            rows, is_whole = self._copy_rows(source, condition, bytes_max if len(keys) > 1 else _ALL_BYTES)
            if is_whole:
                return [decode_copy(rows, self.described)], None
            # Only the server can match these rows with the keys, so they are discarded, and as many keys as will
            # probably fit are read again.
            some, left = keys.take(max(1, min(len(keys) // 2, count_rows(rows) * 3 // 4)))
            found, more = self.rows_with(some, bytes_max)
            return found, left if more is None else more.union(left)

    def all_rows(self, bytes_max: int) -> Sequence[pa.RecordBatch]:
        rows, is_whole = self._copy_rows(_whole_of(self.connection, self.root, self.table), "true", bytes_max)
        if not is_whole:
            raise TooLarge
        return [decode_copy(rows, self.described)]

    def _behind(self, piece: PageRange, condition: str, rows: int) -> PageCursor:
        """Return the cursor after row number `rows`, counted from 1, of a piece's rows with a condition."""
        row = self.connection.execute(
            f"SELECT t.ctid::pg_catalog.text FROM {piece.source} AS t WHERE {condition} "  # noqa: S608  quoted
            f"OFFSET {rows - 1} LIMIT 1".encode()
        ).fetchone()
        if row is None:
            raise InvariantViolated(
                f"a snapshot of {self.table} showed {rows} rows of some pages, and then fewer",
                runbook="stream-not-understood",
            )
        page, number = (int(n) for n in row[0].strip("()").split(","))
        return PageCursor(piece.leaf.first + page, number)

    def _copy_rows(self, source: str, condition: str, bytes_max: int) -> tuple[Joined, bool]:
        return _run_copy(self.connection, _copy(self.described, source, condition), max(bytes_max, _ROW_BYTES))


def mark_prefix(slot: str) -> str:
    """Return the prefix of the marks of one slot. Several logs may follow one database, and each recognizes its own
    marks by the prefix."""
    return f"cdcflow.{slot}"


def _pin_plan(connection: Connection, root: int, rels: Sequence[Relid]) -> PagePlan:
    """Return a plan of these files in their current state."""
    rows = connection.execute(_PLAN, ([rel.oid for rel in rels],))
    return plan_of_leaves(root, [Leaf(Relid(row[0], TableId(row[1], row[2])), row[3], row[4], 0) for row in rows])


# ── SQL and rows ────────────────────────────────────────────────────────────────────────────────────────────


def _right_missing(
    error: psycopg.Error, connection: Connection, table: TableId, leaves: Sequence[Leaf]
) -> CdcflowError:
    """Return the error for a refused lock or COPY, with the statement that grants the missing right."""
    said = " ".join((error.diag.message_primary or "").split())
    user = quote_name(connection.info.user)
    found = dict.fromkeys([table, *(leaf.rel.id for leaf in leaves)])
    if "row-level security" in said:
        said, statement = f"{said}, which would hide rows", f"ALTER ROLE {user} BYPASSRLS"
    elif "for schema" in said:
        schemas = ", ".join(dict.fromkeys(quote_name(t.schema) for t in found))
        statement = f"GRANT USAGE ON SCHEMA {schemas} TO {user}"
    elif "for table" in said or "for relation" in said:
        statement = f"GRANT SELECT ON {', '.join(quote_name(t.schema, t.name) for t in found)} TO {user}"
    else:
        return map_error(error, f"reading {table}")
    return RightMissing(f"reading {table}: {said}", remedy=f"run {statement}")


def _no_text(error: psycopg.Error, table: TableId) -> CdcflowError:
    """Return the error for rows with a text that the server cannot convert."""
    return ConfigurationError(
        f"reading {table}: the server cannot send a text of it as UTF-8, because it has bytes that are no character in "
        f"the encoding of its database (SQLSTATE {error.sqlstate})",
        remedy="correct its rows at the source, or leave the table out of source.tables (write !schema.table), "
        "then start again",
        runbook="value-not-representable",
    )


def _whole_of(connection: Connection, root: int, table: TableId) -> str:
    """Return the SQL for a table in a FROM: with its partitions, but without tables that merely inherit from it."""
    row = connection.execute("SELECT relkind::text FROM pg_catalog.pg_class WHERE oid = %s", (root,)).fetchone()
    return ("" if row == ("p",) else "ONLY ") + quote_name(table.schema, table.name)


def _copy(described: DescribedTable, source: str, condition: str) -> str:
    expressions = ", ".join(described.copy_expressions)
    selected = f"SELECT {expressions} FROM {source} AS t WHERE {condition}"  # noqa: S608  quoted by `connection`
    return f"COPY ({selected}) TO STDOUT (FORMAT binary)"


_REFUSALS = ("22", "25", "42", "0A", "21", "2F", "38", "39", "P0")
"""Classes of SQLSTATE of errors that are caused by the predicate itself."""


def _refusal(error: psycopg.Error) -> str:
    """Return the server's error for a predicate. Only its messages on names and syntax contain no row's values."""
    state = f"SQLSTATE {error.sqlstate}"
    said = error.diag.message_primary if (error.sqlstate or "").startswith("42") else None
    return f"{said} ({state})" if said else state


def _only_key(described: DescribedTable) -> DescribedTable:
    """Return the description of the table reduced to its key columns."""
    names = [c.name for c in described.table.columns]
    at = [names.index(name) for name in described.table.key]
    return DescribedTable(
        replace(described.table, columns=tuple(described.table.columns[i] for i in at)),
        tuple(described.codecs[i] for i in at),
        described.has_binary,
        tuple(described.copy_expressions[i] for i in at),
    )


def _keys_where(
    connection: Connection, described: DescribedTable, source: str, predicate: str, keys_max: int
) -> KeySet:
    # The predicate is on separate lines, so that a comment in it ends there.
    found = f"SELECT * FROM {source} AS t WHERE (\n{predicate}\n) LIMIT {keys_max}"  # noqa: S608  an operator's SQL
    # The extended protocol accepts only one statement, so a predicate cannot add others.
    result = connection.pgconn.prepare(b"", found.encode())
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)
    rows, _ = _run_copy(connection, _copy(described, f"({found})", "true"), _ALL_BYTES)
    return KeySet(pa.Table.from_batches([decode_copy(rows, described)]))


def _run_copy(connection: Connection, query: str, bytes_max: int) -> tuple[Joined, bool]:
    """Run a COPY TO STDOUT in a transaction. Return its CopyData messages, in order, and whether these are all.

    The COPY is cancelled after the message that brings the messages above `bytes_max`; the transaction remains open.
    """
    pg = connection.pgconn
    if has_no_encoding(connection):
        query = f"SET LOCAL client_encoding = 'SQL_ASCII'; {query}; SET LOCAL client_encoding = 'UTF8'"
    result = pg.exec_(f"SAVEPOINT part; {query}; RELEASE SAVEPOINT part".encode())
    if result.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    reader = CopyReader(pg, "rows")
    messages, is_whole = reader.take_all(bytes_max)
    if not is_whole:
        # Cancelling needs a connection. If the server accepts no more connections, the remaining rows are received and
        # dropped.
        with contextlib.suppress(psycopg.Error):
            connection.cancel_safe(timeout=CANCEL_WAIT_S)
        reader.drop_all()
    while (result_after := pg.get_result()) is not None:
        if result_after.status == pq.ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result_after)
            if is_whole or not isinstance(error, psycopg.errors.QueryCanceled):
                raise error
    if pg.transaction_status == pq.TransactionStatus.INERROR:
        connection.execute("ROLLBACK TO SAVEPOINT part")
    return messages, is_whole
