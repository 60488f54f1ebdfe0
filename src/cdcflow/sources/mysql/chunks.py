"""Existing rows by key: stretches of a table in the order of its key, each in one snapshot, compared by the server.

    key      1 ─────────▶ 20,000 ─────────▶ 40,000 ─────────▶ … bound           (the greatest key when it was planned)
    chunk    rows ≤ size │ the next after the last row's key │ …                 rows that come later are in the log

A plan pins the bound (W28) and what the cursors mean: when the key's columns change, literals made for the old ones
mean nothing and the table is read from the start. A row that an update moves across the cursor is the machine's
business (see `interleave.machine`).

Each chunk: take the snapshot; touch the table, which keeps changes of its shape away until the transaction ends; then
look at the shape, through another connection, which sees the catalog as it is; then read. A table that was altered
between snapshot and touch makes the server say so ("table definition has changed", M55): the chunk is read again.

A large chunk is read in parts, at once, each of which does all of this for itself (see `ranges`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pymysql

from cdcflow.interleave.messages import Chunk, ChunkRead, Planned, Visibility
from cdcflow.model.change import ChangeBatch, Kind, Run, reads
from cdcflow.model.position import Position, Token
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.catalog import CatalogTable
from cdcflow.sources.mysql.connection import Connection, Connector, query
from cdcflow.sources.mysql.fetch import fetch
from cdcflow.sources.mysql.keys import Key, Literals
from cdcflow.sources.mysql.looks import Look, Looking
from cdcflow.sources.mysql.marking import Marking
from cdcflow.sources.mysql.ranges import Ordered, Part, PartRead, joined, sizes
from cdcflow.sources.mysql.refusals import NO_SUCH_TABLE, explained
from cdcflow.sources.mysql.results import quoted
from cdcflow.sources.mysql.row_events import truncation
from cdcflow.sources.mysql.shapes import DescribedTable

T = TypeVar("T")

FIRST_ROWS = 20_000
ROWS_MIN = 1000
"""A chunk's fixed cost (snapshot, catalog) is many times what so few rows take: asking for less would make a backfill
stand still on a busy table, and no wait shorter."""
PART_ROWS_MIN = 10_000
"""Below this a second connection costs more than it reads."""
CHUNK_BYTES_MAX = 64 << 20
"""A chunk ends early at this size, however many rows it may have: rows may be large."""

LookUp = Callable[[TableId], CatalogTable]
Describe = Callable[[CatalogTable], DescribedTable]


@dataclass(frozen=True, slots=True)
class _Last:
    """What a table's last chunk was like: bytes a row, and how far apart its keys were (see `Ordered.stride`)."""

    row_bytes: int
    stride: float | None


class _Rewritten(Exception):
    """The table is no longer what was planned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a table's backfill reads, pinned: `digest` of its key's columns, and the greatest key (None: it was empty).
    Stored as JSON in the log with the backfill's progress."""

    digest: str
    bound: Literals | None

    def to_json(self) -> str:
        return json.dumps({"version": 1, "key": self.digest, "bound": self.bound}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value = json.loads(text)
        return cls(value["key"], None if value["bound"] is None else tuple(value["bound"]))


@dataclass(frozen=True, slots=True)
class Cursor:
    """Behind which row the next chunk begins, and how many rows there were so far."""

    row: Literals | None
    rows: int

    def to_json(self) -> str:
        return json.dumps([self.row, self.rows], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> Cursor:
        row, rows = (None, 0) if text is None else json.loads(text)
        return cls(None if row is None else tuple(row), rows)


class MySQLChunks:
    """Implements `cdcflow.ports.ChunkSource`. Thread-safe.

    `look_up` finds a captured table as it is now, and `describe` gives its shape.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        ranges_at_once: int,
        looking: Looking,
        marking: Marking,
        look_up: LookUp,
        describe: Describe,
    ) -> None:
        self._connector = connector
        self._ranges_at_once = ranges_at_once
        self._looking = looking
        self._marking = marking
        self._look_up = look_up
        self._describe = describe
        self._last: dict[TableId, _Last] = {}
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    # ── cdcflow.ports.ChunkSource ───────────────────────────────────────────────────────────────────────────

    def plan(self, table: TableId, generation: int) -> Planned:
        entry = self._look_up(table)
        described = self._describe(entry)
        ordered = Ordered(entry, described, key_of(entry, described))

        def bound(connection: Connection) -> tuple[Literals | None, tuple[Visibility, ...]]:
            with self._looking.snapshot(connection) as look:
                return ordered.greatest(connection), look.visibilities

        greatest, visibilities = self._with(f"planning the backfill of {table}", bound)
        return Planned(
            table=table,
            generation=generation,
            plan=Plan(ordered.key.digest, greatest).to_json(),
            size=FIRST_ROWS,
            units=max(entry.rows, 1),
            shape=described.table,
            whole=not described.table.key,
            visibilities=visibilities,
        )

    def write_mark(self, token: Token) -> None:
        self._with("writing a mark", lambda c: self._marking.write(c, token))

    def heartbeat(self) -> None:
        self._with("writing a heartbeat", self._marking.beat)

    def snapshot(self) -> Visibility:
        return self._with("looking at what is visible", self._looking.visibility)

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        began = time.monotonic()
        try:
            return self._with(f"reading {chunk.table}", lambda c: self._read(c, chunk))
        except _Rewritten:
            return ChunkRead(chunk, None, None, (), rewritten=True, seconds=time.monotonic() - began)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._connector.discard(connection)
        self._connector.close()

    # ── chunks ──────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, connection: Connection, chunk: Chunk) -> ChunkRead:
        match chunk.kind:
            case "range":
                return self._range(connection, chunk)
            case "keys":
                return self._keys(connection, chunk)
            case "whole":
                return self._whole(connection, chunk)

    def _range(self, connection: Connection, chunk: Chunk) -> ChunkRead:
        cursor = Cursor.from_json(chunk.after)
        # Its end waits for all parts, so that nobody goes on reading for a chunk that was given up. By then the
        # first one's transaction is over: a change of the table's shape may wait for it, and other parts for that.
        with (
            ThreadPoolExecutor(self._ranges_at_once, thread_name_prefix="cdcflow-part") as readers,
            self._opened(connection, chunk) as about,
        ):
            parts = self._parts(connection, chunk, about.table, cursor)
            if not parts:
                return about.answer(chunk, [], cursor, exhausted=True)
            bytes_max = CHUNK_BYTES_MAX // len(parts)
            later = [readers.submit(self._elsewhere, chunk, part, bytes_max) for part in parts[1:]]
            first = about.table.read(connection, parts[0], about.look.visibilities, bytes_max)
        found = joined(chunk.table, [first, *(part.result() for part in later)])
        rows = sum(part.rows.num_rows for part in found)
        if rows:
            stride = about.table.stride(cursor.row, found)
            self._last[chunk.table] = _Last(sum(part.bytes for part in found) // rows, stride)
        others = tuple(v for part in found[1:] for v in part.visibilities)
        reached = Cursor(found[-1].reached, cursor.rows + rows)
        batches = [part.rows for part in found]
        return about.answer(chunk, batches, reached, exhausted=found[-1].exhausted, others=others)

    def _parts(self, connection: Connection, chunk: Chunk, table: Ordered, cursor: Cursor) -> list[Part]:
        """What the chunk reads; nothing where the table was empty when it was planned."""
        bound = Plan.from_json(chunk.plan).bound
        if bound is None:
            return []
        rows = max(chunk.size, ROWS_MIN)
        last = self._last.get(chunk.table)
        if last is not None and last.row_bytes:
            # Parts that end early make others read for nothing.
            rows = min(rows, max(1, CHUNK_BYTES_MAX // 2 // last.row_bytes))
        parts_max = self._ranges_at_once if table.key.is_sought and not chunk.gently else 1
        wanted = sizes(rows, parts_max, PART_ROWS_MIN)
        return table.parts(connection, cursor.row, bound, wanted, None if last is None else last.stride)

    def _elsewhere(self, chunk: Chunk, part: Part, bytes_max: int) -> PartRead:
        """Read a part through a connection of its own, in a snapshot of its own."""

        def read(connection: Connection) -> PartRead:
            with self._opened(connection, chunk) as about:
                return about.table.read(connection, part, about.look.visibilities, bytes_max)

        return self._with(f"reading {chunk.table}", read)

    def _keys(self, connection: Connection, chunk: Chunk) -> ChunkRead:
        """The rows that have these keys now; a key without a row gives none."""
        assert chunk.keys is not None  # noqa: S101  what kind "keys" means
        with self._opened(connection, chunk) as about:
            table = about.table
            rows = [
                table.decoded(fetch(connection, f"{table.select} WHERE {condition}"))
                for condition in table.key.among(chunk.keys.distinct())
            ]
            return about.answer(chunk, rows, Cursor.from_json(chunk.after), exhausted=True)

    @contextlib.contextmanager
    def _opened(self, connection: Connection, chunk: Chunk) -> Iterator[_Read]:
        """A snapshot of the table, which is still what the chunk's plan says, and stays so until the block ends."""
        with self._looking.snapshot(connection) as look:
            table = self._touched(connection, chunk.table)
            if Plan.from_json(chunk.plan).digest != table.key.digest:
                raise _Rewritten
            yield _Read(look, table, time.monotonic())

    def _whole(self, connection: Connection, chunk: Chunk) -> ChunkRead:
        """The whole table in one snapshot, after a truncate: rows without a key cannot be replayed over each other."""
        with contextlib.ExitStack() as stack:
            name = f"{quoted(chunk.table.schema)}.{quoted(chunk.table.name)}"
            look = stack.enter_context(
                self._looking.whole(connection, name, lambda: stack.enter_context(self._another("locking")))
            )
            about = _Read(look, self._touched(connection, chunk.table), time.monotonic())
            rows = about.table.decoded(fetch(connection, about.table.select))
            return about.answer(chunk, [rows], Cursor(None, rows.num_rows), exhausted=True)

    def _touched(self, connection: Connection, table: TableId) -> Ordered:
        """The table's shape, which from here on stays as it is until the transaction ends."""
        try:
            query(connection, f"SELECT 1 FROM {quoted(table.schema)}.{quoted(table.name)} LIMIT 0")  # noqa: S608
        except pymysql.Error as error:
            if error.args and error.args[0] == NO_SUCH_TABLE:
                raise _Rewritten from None  # dropped just now, or made anew: it must be planned again
            raise
        entry = self._look_up(table)
        described = self._describe(entry)
        return Ordered(entry, described, key_of(entry, described))

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────

    def _with(self, attempted: str, work: Callable[[Connection], T]) -> T:
        """Do something on a connection of the pool. One that died while it lay idle is replaced, once."""
        while True:
            connection, fresh = self._take()
            try:
                result = work(connection)
            except pymysql.Error as error:
                is_dead = not connection.open
                self._connector.discard(connection)
                if is_dead and not fresh:
                    continue
                raise explained(error, attempted) from None
            except BaseException:
                self._connector.discard(connection)
                raise
            self._give_back(connection)
            return result

    @contextlib.contextmanager
    def _another(self, purpose: str) -> Iterator[Connection]:
        connection = self._connector.connect(purpose)
        try:
            yield connection
        finally:
            self._connector.discard(connection)

    def _take(self) -> tuple[Connection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return self._connector.connect("chunks"), True

    def _give_back(self, connection: Connection) -> None:
        if connection.open and not self._connector.closed:
            with self._lock:
                self._idle.append(connection)
        else:
            self._connector.discard(connection)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a chunk is answered with besides its rows. `began`: when they were asked for; what comes before takes as
    long for one row as for many, and must not make the next chunk smaller."""

    look: Look
    table: Ordered
    began: float

    def answer(
        self,
        chunk: Chunk,
        rows: Sequence[pa.RecordBatch],
        reached: Cursor,
        *,
        exhausted: bool,
        others: tuple[Visibility, ...] = (),
    ) -> ChunkRead:
        """`others`: what the snapshots of other parts see. The run's place and clock are the first part's, whose
        snapshot is the earliest: no row of the run is claimed to be newer than it is."""
        position = Position(f"{self.look.end.file}:{self.look.end.pos};")
        described = self.table.described
        run = reads(described.table, rows, position, self.look.clock_us)
        return ChunkRead(
            chunk=chunk,
            run=_after_truncate(run, described) if chunk.kind == "whole" else run,
            shape=described.table,
            visibilities=(*self.look.visibilities, *others),
            reached=reached.to_json(),
            units_done=reached.rows,
            exhausted=exhausted,
            seconds=time.monotonic() - self.began,
        )


def key_of(entry: CatalogTable, described: DescribedTable) -> Key:
    """A table's key, with its columns as the server stores them."""
    columns = {c.name: c for c in described.columns}
    return Key(tuple(columns[name] for name in described.table.key), entry.index)


def _after_truncate(run: Run, described: DescribedTable) -> Run:
    """The same rows behind a truncate of the table."""
    found = truncation(described, 0)
    shifted = tuple(ChangeBatch(b.table, b.index + 1, b.rows) for b in run.batches)
    truncate = ChangeBatch(described.table, found.event, found.rows)
    return Run(run.xid, run.position, run.commit_ts, run.ends + 1, (truncate, *shifted), Kind.READ)
