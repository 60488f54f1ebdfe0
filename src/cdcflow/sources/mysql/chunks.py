"""Existing rows by key: stretches of a table in the order of its key, each in one snapshot, compared by the server.

    key      1 ─────────▶ 20,000 ─────────▶ 40,000 ─────────▶ … bound           (the greatest key when it was planned)
    chunk    rows ≤ size │ the next after the last row's key │ …                 rows that come later are in the log

A plan pins the bound (W28) and what the cursors mean: when the key's columns change, literals made for the old ones
mean nothing and the table is read from the start. A row that an update moves across the cursor is the machine's
business (see `interleave.machine`).

Each chunk: take the snapshot; touch the table, which keeps changes of its shape away until the transaction ends; then
look at the shape, through another connection, which sees the catalog as it is; then read. A table that was altered
between snapshot and touch makes the server say so ("table definition has changed", M55): the chunk is read again.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pymysql

from cdcflow.errors import ConfigurationError
from cdcflow.interleave.messages import Chunk, ChunkRead, Planned, Visibility
from cdcflow.model.change import ChangeBatch, Kind, Run, reads
from cdcflow.model.position import Position, Token
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.catalog import CatalogTable
from cdcflow.sources.mysql.connection import Connection, Connector, query
from cdcflow.sources.mysql.fetch import Fetched, fetch
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.keys import Key, Literals, cells_of
from cdcflow.sources.mysql.looks import Look, Looking
from cdcflow.sources.mysql.marking import Marking
from cdcflow.sources.mysql.refusals import NO_SUCH_TABLE, explained
from cdcflow.sources.mysql.results import quoted, select_expression
from cdcflow.sources.mysql.row_events import truncation
from cdcflow.sources.mysql.shapes import DescribedTable
from cdcflow.sources.mysql.twins import decode

T = TypeVar("T")

FIRST_ROWS = 20_000
ROWS_MIN = 1000
"""A chunk's fixed cost (snapshot, catalog) is many times what so few rows take: asking for less would make a backfill
stand still on a busy table, and no wait shorter."""
CHUNK_BYTES_MAX = 64 << 20
"""A chunk ends early at this size, however many rows it may have: rows may be large."""

LookUp = Callable[[TableId], CatalogTable]
Describe = Callable[[CatalogTable], DescribedTable]


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
        self, connector: Connector, *, looking: Looking, marking: Marking, look_up: LookUp, describe: Describe
    ) -> None:
        self._connector = connector
        self._looking = looking
        self._marking = marking
        self._look_up = look_up
        self._describe = describe
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    # ── cdcflow.ports.ChunkSource ───────────────────────────────────────────────────────────────────────────

    def plan(self, table: TableId, generation: int) -> Planned:
        entry = self._look_up(table)
        described = self._describe(entry)
        key = key_of(entry, described)
        plan = Plan(key.digest, self._with(f"planning the backfill of {table}", lambda c: _greatest(c, entry, key)))
        return Planned(
            table=table,
            generation=generation,
            plan=plan.to_json(),
            size=FIRST_ROWS,
            units=max(entry.rows, 1),
            shape=described.table,
            whole=not described.table.key,
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
        if chunk.kind == "whole":
            return self._whole(connection, chunk)
        with self._looking.snapshot(connection) as look:
            entry, described = self._touched(connection, chunk.table)
            key = key_of(entry, described)
            plan = Plan.from_json(chunk.plan)
            if plan.digest != key.digest:
                raise _Rewritten
            about = _Read(look, entry, described, key, time.monotonic())
            if chunk.kind == "keys":
                return self._keys(connection, chunk, about)
            return self._range(connection, chunk, plan, about)

    def _range(self, connection: Connection, chunk: Chunk, plan: Plan, about: _Read) -> ChunkRead:
        cursor = Cursor.from_json(chunk.after)
        if plan.bound is None:
            return about.answer(chunk, [], cursor, exhausted=True)
        key, size = about.key, max(chunk.size, ROWS_MIN)
        conditions = [key.upto(plan.bound), *([key.after(cursor.row)] if cursor.row is not None else [])]
        fetched = fetch(
            connection,
            f"{_select(about.described)} FROM {about.entry.sql} FORCE INDEX ({_index(key)}) "
            f"WHERE {' AND '.join(conditions)} ORDER BY {key.names} LIMIT {size}",
            bytes_max=CHUNK_BYTES_MAX,
        )
        reached = cursor
        if len(fetched):
            row = _last_key(fetched, about.described, key)
            if row == cursor.row:
                # The server sends the same row as behind itself: the backfill would never end (W17).
                raise ConfigurationError(
                    f"the backfill of {chunk.table} makes no progress: for the server a row comes behind itself",
                    remedy="check the collation of its key's columns, or leave the table out of source.tables",
                )
            reached = Cursor(row, cursor.rows + len(fetched))
        rows = [_decoded(fetched, about.described)]
        return about.answer(chunk, rows, reached, exhausted=fetched.is_whole and len(fetched) < size)

    def _keys(self, connection: Connection, chunk: Chunk, about: _Read) -> ChunkRead:
        """The rows that have these keys now; a key without a row gives none."""
        assert chunk.keys is not None  # noqa: S101  what kind "keys" means
        rows = [
            _decoded(
                fetch(connection, f"{_select(about.described)} FROM {about.entry.sql} WHERE {condition}"),
                about.described,
            )
            for condition in about.key.among(chunk.keys.distinct())
        ]
        return about.answer(chunk, rows, Cursor.from_json(chunk.after), exhausted=True)

    def _whole(self, connection: Connection, chunk: Chunk) -> ChunkRead:
        """The whole table in one snapshot, after a truncate: rows without a key cannot be replayed over each other."""
        with contextlib.ExitStack() as stack:
            name = f"{quoted(chunk.table.schema)}.{quoted(chunk.table.name)}"
            look = stack.enter_context(
                self._looking.whole(connection, name, lambda: stack.enter_context(self._another("locking")))
            )
            entry, described = self._touched(connection, chunk.table)
            began = time.monotonic()
            rows = _decoded(fetch(connection, f"{_select(described)} FROM {entry.sql}"), described)
            about = _Read(look, entry, described, key_of(entry, described), began)
            return about.answer(chunk, [rows], Cursor(None, rows.num_rows), exhausted=True)

    def _touched(self, connection: Connection, table: TableId) -> tuple[CatalogTable, DescribedTable]:
        """The table's shape, which from here on stays as it is until the transaction ends."""
        try:
            query(connection, f"SELECT 1 FROM {quoted(table.schema)}.{quoted(table.name)} LIMIT 0")  # noqa: S608
        except pymysql.Error as error:
            if error.args and error.args[0] == NO_SUCH_TABLE:
                raise _Rewritten from None  # dropped just now, or made anew: it must be planned again
            raise
        entry = self._look_up(table)
        return entry, self._describe(entry)

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
    entry: CatalogTable
    described: DescribedTable
    key: Key
    began: float

    def answer(self, chunk: Chunk, rows: list[pa.RecordBatch], reached: Cursor, *, exhausted: bool) -> ChunkRead:
        position = Position(f"{self.look.end.file}:{self.look.end.pos};")
        run = reads(self.described.table, rows, position, self.look.clock_us)
        return ChunkRead(
            chunk=chunk,
            run=_after_truncate(run, self.described) if chunk.kind == "whole" else run,
            shape=self.described.table,
            visibilities=self.look.visibilities,
            reached=reached.to_json(),
            units_done=reached.rows,
            exhausted=exhausted,
            seconds=time.monotonic() - self.began,
        )


def key_of(entry: CatalogTable, described: DescribedTable) -> Key:
    """A table's key, with its columns as the server stores them."""
    columns = {c.name: c for c in described.columns}
    return Key(tuple(columns[name] for name in described.table.key), entry.index)


def _greatest(connection: Connection, entry: CatalogTable, key: Key) -> Literals | None:
    """The table's greatest key; None when it has no rows, or no key."""
    if not key.columns:
        return None
    source = f"{entry.sql} FORCE INDEX ({_index(key)})"
    fetched = fetch(connection, f"SELECT {key.selected} FROM {source} ORDER BY {key.descending} LIMIT 1")  # noqa: S608
    if not len(fetched):
        return None
    return key.literals(cells_of(fetched.data, int(fetched.start[0]), int(fetched.end[0])))


def _index(key: Key) -> str:
    return quoted(key.index)


def _select(described: DescribedTable) -> str:
    return "SELECT " + ", ".join(select_expression(c) for c in described.columns)


def _decoded(fetched: Fetched, described: DescribedTable) -> pa.RecordBatch:
    return decode(described, fetched.data, Extents(fetched.start, fetched.end))


def _last_key(fetched: Fetched, described: DescribedTable, key: Key) -> Literals:
    cells = cells_of(fetched.data, int(fetched.start[-1]), int(fetched.end[-1]))
    by_name = dict(zip((c.name for c in described.columns), cells, strict=True))
    return key.literals([by_name[c.name] for c in key.columns])


def _after_truncate(run: Run, described: DescribedTable) -> Run:
    """The same rows behind a truncate of the table."""
    found = truncation(described, 0)
    shifted = tuple(ChangeBatch(b.table, b.index + 1, b.rows) for b in run.batches)
    truncate = ChangeBatch(described.table, found.event, found.rows)
    return Run(run.xid, run.position, run.commit_ts, run.ends + 1, (truncate, *shifted), Kind.READ)
