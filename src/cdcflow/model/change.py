"""Changes in columns: batches of one table, and runs of whole transactions over several tables.

No change is a separate Python object. A `Run` is consecutive whole transactions in commit order:

    headers   one entry per transaction: xid, position, commit_ts, number of rows
    batches   one `ChangeBatch` per table shape; `index` holds the row number in the run of each of its rows

    run row      0    1    2    3    4    5
    transaction  ──── t0 ────    t1   ─ t2 ─
    orders       0         2          4          index = [0, 2, 4]
    products          1         3          5     index = [1, 3, 5]

The offset of a row is the run's first offset plus its index, so numbering a run is one addition. A transaction too
large for memory is a `SpooledTransaction`: the same header, with its rows in a spool on disk. A chunk read by other
processes is a `HeldRun`: those processes keep the rows until offsets are assigned. All three implement the interface
that the interleave machine uses (`cdcflow.capture.interleave.messages.Transactions`).
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.position import Position
from cdcflow.model.table import OP, UNCHANGED, Table, TableId

INSERT, UPDATE, DELETE, READ, TRUNCATE = "c", "u", "d", "r", "t"

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]

SMALL_BYTES = 64 << 10


PARTIAL_KEYS_MAX = 4_000_000
"""At most this many keys of partial rows are kept per table; a table with more is read again instead."""


class Kind(enum.StrEnum):
    """Whether a transaction in the log was committed at the source, or holds rows that a chunk read."""

    SOURCE = "source"
    READ = "read"


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changes of one table shape, in columns.

    `rows` has `table.change_schema`. `index` (ascending int64, as long as `rows`) is each row's index in its run,
    counted over all tables from 0.

    What the columns mean: `_op` is c, u, d, r or t. `_unchanged` lists the columns whose value the source did not
    send (NULL when it sent all); such a column's cell is NULL and means nothing. On `d` the table's columns hold
    the old row, on `t` they are all NULL and `_unchanged` is NULL. `_before` is the old row where the source gives
    one: on `u` under REPLICA IDENTITY FULL, and on the `c` of a key change, where it holds at least the old key.
    Such a `c` follows directly (next index) on the `d` of the old key. A `c` without `_before` is a plain insert.
    In a table without a key every update is a key change, so there is no `u`.
    """

    table: Table
    index: Int64s
    rows: pa.RecordBatch

    def between(self, first: int, last: int) -> ChangeBatch | None:
        """Return the rows with first <= index < last, re-indexed from 0, or None if there are no such rows."""
        a, b = np.searchsorted(self.index, (first, last))
        if a == b:
            return None
        return ChangeBatch(self.table, self.index[a:b] - first, self.rows.slice(a, b - a))


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys of one table, in columns named as the table's key columns. May hold a key more than once."""

    keys: pa.Table

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def union(self, *others: KeySet) -> KeySet:
        # A key column may have been widened in between, or made text, so the types need not be the same.
        tables = [self.keys, *(o.keys for o in others)]
        texts = {f.name for t in tables for f in t.schema if pa.types.is_string(f.type)}
        return KeySet(pa.concat_tables([_as_text(t, texts) for t in tables], promote_options="permissive"))

    def distinct(self) -> KeySet:
        """Return each key once. Arrow cannot compare nested values, so keys with an array column are returned
        unchanged."""
        if any(pa.types.is_nested(t) for t in self.keys.schema.types):
            return self
        return KeySet(self.keys.group_by(self.keys.column_names).aggregate([]))

    def take(self, count: int) -> tuple[KeySet, KeySet]:
        """The first `count` keys, and the rest."""
        return KeySet(self.keys.slice(0, count)), KeySet(self.keys.slice(count))

    def to_text(self) -> str:
        """Return these keys with their types as a text for a checkpoint: an Arrow stream in base64."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.keys.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(self.keys)
        return base64.b64encode(sink.getvalue()).decode()

    @classmethod
    def from_text(cls, text: str) -> KeySet:
        """Read what `to_text` wrote."""
        with pa.ipc.open_stream(base64.b64decode(text)) as stream:
            return KeySet(stream.read_all())


NO_KEYS = KeySet(pa.table({}))


def _as_text(keys: pa.Table, columns: Set[str]) -> pa.Table:
    """Return the keys, with the values of these columns converted to text."""
    schema = pa.schema([pa.field(f.name, pa.string()) if f.name in columns else f for f in keys.schema])
    return keys if schema == keys.schema else keys.cast(schema)


def _bytes_of(rows: pa.RecordBatch) -> int:
    # Computing which part of its buffers a batch uses takes fifty times as long as adding the buffers up.
    upmost = int(rows.get_total_buffer_size())
    return upmost if upmost <= SMALL_BYTES else int(rows.nbytes)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive whole transactions in commit order, in columns. Read-only once created.

    `xid` are the source's transaction ids as its log has them (PostgreSQL: 32 bits), `position` the positions just
    after each commit (as text), `commit_ts` microseconds since 1970 UTC, `ends` the index after each transaction's last
    row (so `ends[-1]` is the number of rows). `origin` is the name that the session gave the transaction, usually null:
    a replication origin, a purge mark, the tag of a GTID. Transactions without rows are allowed. For chunk rows `kind`
    is READ and there is one transaction.
    """

    xid: Uint64s
    position: pa.Array
    commit_ts: Int64s
    ends: Int64s
    batches: tuple[ChangeBatch, ...]
    kind: Kind = Kind.SOURCE
    origin: pa.Array | None = None

    @property
    def transactions(self) -> int:
        return len(self.xid)

    @property
    def rows(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def bytes(self) -> int:
        """The size of the rows in memory, in bytes. A slice of a small run counts with the size of the whole run."""
        return sum(_bytes_of(b.rows) for b in self.batches)

    @property
    def xids(self) -> Uint64s:
        return self.xid

    @property
    def last_position(self) -> Position:
        return Position(self.position[-1].as_py())  # one value per run, not per row

    @property
    def last_commit_ts(self) -> int:
        return int(self.commit_ts[-1])

    def first_touching(self, tables: frozenset[TableId]) -> int | None:
        """Return the number (from 0) of the first transaction with a row of one of these tables; None if no transaction
        has one."""
        firsts = [int(b.index[0]) for b in self.batches if b.table.id in tables and len(b.index)]
        return int(np.searchsorted(self.ends, min(firsts), side="right")) if firsts else None

    def split_at(self, count: int) -> tuple[Run, Run]:
        """The first `count` transactions, and the rest. Either may be empty."""
        row = int(self.ends[count - 1]) if count else 0
        return self._part(0, count, 0, row), self._part(count, self.transactions, row, self.rows)

    def _part(self, a: int, b: int, first_row: int, last_row: int) -> Run:
        parts = (batch.between(first_row, last_row) for batch in self.batches)
        return Run(
            self.xid[a:b],
            self.position[a:b],
            self.commit_ts[a:b],
            self.ends[a:b] - first_row,
            tuple(p for p in parts if p is not None),
            self.kind,
            None if self.origin is None else self.origin[a:b],
        )

    def shapes_of(self, table: TableId) -> frozenset[Table]:
        """Return every shape in which rows of this table appear in the run."""
        return frozenset(b.table for b in self.batches if b.table.id == table and b.rows.num_rows)

    def truncates(self, table: TableId) -> bool:
        return any(b.table.id == table and pc.any(pc.equal(b.rows.column(OP), TRUNCATE)).as_py() for b in self.batches)

    def partial_keys(self, table: TableId) -> KeySet | None:
        """Return the keys of this table's rows that arrived with unchanged columns (deletes aside), or None if there
        are no such rows."""
        found = [k for b in self.batches if b.table.id == table and (k := partial_keys(b)) is not None]
        return found[0].union(*found[1:]) if found else None

    def without(self, tables: frozenset[TableId]) -> Run:
        """Return the same transactions without the rows of these tables."""
        if not any(b.table.id in tables for b in self.batches):
            return self
        return self.with_batches([b for b in self.batches if b.table.id not in tables])

    def with_batches(self, batches: Sequence[ChangeBatch]) -> Run:
        """Return the same transactions with other batches, whose `index` may lack rows: the remaining rows get new
        numbers."""
        if sum(len(b.index) for b in batches) == self.rows:
            return replace(self, batches=tuple(batches))
        remains = np.zeros(self.rows, np.bool_)
        for batch in batches:
            remains[batch.index] = True
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(remains, dtype=np.int64)])
        kept = tuple(replace(b, index=before[b.index]) for b in batches if len(b.index))
        return replace(self, ends=before[self.ends], batches=kept)

    def moved_keys(self, table: TableId) -> KeySet | None:
        """Return those of `partial_keys` that continue the row of another key (key changes), or None if there are no
        such keys."""
        found = [k for b in self.batches if b.table.id == table and (k := partial_keys(b, only=INSERT)) is not None]
        return found[0].union(*found[1:]) if found else None


@dataclass(frozen=True, slots=True)
class TableParts:
    """The sub-transactions in a spool that have rows of this table only, and how many rows they have together."""

    numbers: frozenset[int]
    rows: int


@dataclass(frozen=True, slots=True)
class SpooledTransaction:
    """One committed transaction whose rows are in a spool, because they do not fit in memory.

    `spool` names it; `rows` counts the rows that remain once those of `aborted` sub-transactions are dropped. `shapes`,
    `truncated` and `partial` hold for the remaining rows what a `Run` would compute from its batches. `parts`: the
    tables whose rows can be excluded, because the spool keeps them apart as sub-transactions.
    """

    xid: int
    position: Position
    commit_ts: int
    rows: int
    spool: str
    aborted: frozenset[int] = frozenset()
    shapes: frozenset[Table] = frozenset()
    truncated: frozenset[TableId] = frozenset()
    partial: dict[TableId, KeySet] = field(default_factory=dict)
    origin: str | None = None
    parts: dict[TableId, TableParts] = field(default_factory=dict)

    kind = Kind.SOURCE
    transactions = 1
    bytes = 0

    @property
    def xids(self) -> Uint64s:
        return np.array([self.xid], dtype=np.uint64)

    @property
    def last_position(self) -> Position:
        return self.position

    @property
    def last_commit_ts(self) -> int:
        return self.commit_ts

    def first_touching(self, tables: frozenset[TableId]) -> int | None:
        return 0 if any(t.id in tables for t in self.shapes) else None

    def split_at(self, count: int) -> tuple[SpooledTransaction | Run, SpooledTransaction | Run]:
        return (EMPTY_RUN, self) if count == 0 else (self, EMPTY_RUN)

    def shapes_of(self, table: TableId) -> frozenset[Table]:
        return frozenset(t for t in self.shapes if t.id == table)

    def truncates(self, table: TableId) -> bool:
        return table in self.truncated

    def partial_keys(self, table: TableId) -> KeySet | None:
        return self.partial.get(table)

    def without(self, tables: frozenset[TableId]) -> SpooledTransaction:
        """Return the same transaction without the rows of these tables, as far as its spool keeps them apart."""
        apart = self.parts.keys() & tables
        if not apart:
            return self
        return replace(
            self,
            rows=self.rows - sum(self.parts[table].rows for table in apart),
            aborted=self.aborted.union(*(self.parts[table].numbers for table in apart)),
            shapes=frozenset(shape for shape in self.shapes if shape.id not in apart),
            truncated=self.truncated - apart,
            partial={table: keys for table, keys in self.partial.items() if table not in apart},
            parts={table: parts for table, parts in self.parts.items() if table not in apart},
        )

    def moved_keys(self, table: TableId) -> KeySet | None:
        """Return more keys than a `Run` would, which is safe: the spool does not distinguish key changes."""
        return self.partial.get(table)


class HeldRows(Protocol):
    """Rows of a table that another process has read, and keeps in memory."""

    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...

    def write(self, path: str, first_offset: int, transaction: int, commit_ts: int) -> Callable[[], Mapping[str, Any]]:
        """Start writing these rows to a new Parquet file, in the log's columns, and return at once.

        `first_offset` is the offset of the first row; `transaction` and `commit_ts` (microseconds since 1970 UTC) are
        the same for all rows. The returned function waits until the file is durable and returns its entry for the
        manifest (`log.format.segment.SegmentFile`, without table and version).

        Raises (the returned function):
            SinkUnavailable: the process that had the rows has exited, or could not write them.
        """
        ...


@dataclass(frozen=True, slots=True)
class HeldRun:
    """The rows of one chunk, in order, which other processes keep until offsets are assigned: one transaction of kind
    READ. Every one of `pieces` has rows. `commit_ts` in microseconds since 1970 UTC."""

    table: Table
    position: Position
    commit_ts: int
    pieces: tuple[HeldRows, ...]

    kind = Kind.READ
    transactions = 1

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)

    @property
    def xids(self) -> Uint64s:
        return np.zeros(1, dtype=np.uint64)

    @property
    def last_position(self) -> Position:
        return self.position

    @property
    def last_commit_ts(self) -> int:
        return self.commit_ts

    def first_touching(self, tables: frozenset[TableId]) -> int | None:
        return 0 if self.table.id in tables and self.pieces else None

    def split_at(self, count: int) -> tuple[HeldRun | Run, HeldRun | Run]:
        return (EMPTY_RUN, self) if count == 0 else (self, EMPTY_RUN)

    def shapes_of(self, table: TableId) -> frozenset[Table]:
        return frozenset({self.table} if table == self.table.id else ())

    def truncates(self, table: TableId) -> bool:
        return False

    def partial_keys(self, table: TableId) -> KeySet | None:
        return None

    def moved_keys(self, table: TableId) -> KeySet | None:
        return None

    def without(self, tables: frozenset[TableId]) -> HeldRun:
        return self


def partial_keys(batch: ChangeBatch, only: str | None = None) -> KeySet | None:
    """Return the keys of a batch's rows that arrived with unchanged columns, deletes aside, or None if there are no
    such rows.

    `only` restricts the result to rows with this op.
    """
    unchanged = batch.rows.column(UNCHANGED)
    if unchanged.null_count == len(unchanged):
        return None
    ops = batch.rows.column(OP)
    mask = pc.and_(pc.is_valid(unchanged), pc.not_equal(ops, DELETE) if only is None else pc.equal(ops, only))
    keys = batch.rows.select(list(batch.table.key_columns)).filter(mask)
    return KeySet(pa.Table.from_batches([keys])) if keys.num_rows else None


def commit_clock(previous: int, commit_ts: Int64s) -> Int64s:
    """Return the commit clock of consecutive transactions: max(previous + 1, commit_ts), one after another.

    `previous` may also be a time that the source reached without a transaction; later transactions get a later clock.
    """
    if not len(commit_ts):
        return commit_ts
    steps = np.arange(len(commit_ts), dtype=np.int64)
    return np.maximum(np.maximum.accumulate(commit_ts - steps), previous + 1) + steps


def reads(table: Table, rows: Iterable[pa.RecordBatch], position: Position, commit_ts: int) -> Run:
    """Return chunk rows (`rows` have `table.row_schema`) as a run of one transaction of kind READ."""
    batches: list[ChangeBatch] = []
    end = 0
    for piece in rows:
        count = piece.num_rows
        if not count:
            continue
        columns = [
            *piece.columns,
            pa.array(np.full(count, READ), pa.string()),
            pa.nulls(count, table.change_schema.field(UNCHANGED).type),
            pa.nulls(count, table.before_type),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=table.change_schema)
        batches.append(ChangeBatch(table, np.arange(end, end + count, dtype=np.int64), batch))
        end += count
    return Run(
        xid=np.zeros(1, np.uint64),
        position=pa.array([position.text], pa.string()),
        commit_ts=np.array([commit_ts], np.int64),
        ends=np.array([end], np.int64),
        batches=tuple(batches),
        kind=Kind.READ,
    )


EMPTY_RUN = Run(np.empty(0, np.uint64), pa.array([], pa.string()), np.empty(0, np.int64), np.empty(0, np.int64), ())
