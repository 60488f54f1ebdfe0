"""The model database: tables that sessions change, and a log that contains every commit before it can be seen.

    Transaction ── commit ──▶ log ──▶ visible            hold=True: visible only after a call of the returned function

That a commit is in the log first is what makes reading rows next to a log hard: the stream delivers a row that no
snapshot shows yet. Here it is a switch, so that a test can stop in this state. So are other events that a copy must
cope with: a statement that changes rows without logging them, a name that now belongs to a different table, history
that is gone once its only reader has acknowledged it, a restore from an older copy.

A position is a number that grows with the log's content, like an LSN or a byte of a file: two logs with different
contents have different positions, which distinguish a restored copy from the original. One lock guards everything;
`changed` wakes all threads that wait for the log or for a locked table.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import Uint64s
from cdcflow.model.position import Position, Token
from cdcflow.model.table import UNCHANGED, Column, Table, TableId
from cdcflow.model.types import ColumnType

Row = Mapping[str, Any]
RewritesKnownBy = Literal["log", "catalog"]

INTEGER = ColumnType("integer", pa.int32())
TEXT = ColumnType("text", pa.string())
FIRST_POSITION = 100
RECORD_SIZE = 16


def position_of(number: int) -> Position:
    return Position(f"{number:012d}")


def number_of(position: Position) -> int:
    return int(position.text)


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """One row of the log, in the shape that its table had. `part` is the sub-transaction that it belongs to."""

    shape: Table
    op: str
    values: Row
    before: Row | None = None
    part: int = 0


@dataclass(frozen=True, slots=True)
class MemoryCommit:
    """A committed transaction; the rows of its `aborted` parts were rolled back."""

    position: int
    xid: int
    changes: tuple[MemoryChange, ...]
    aborted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Sees the transactions with an id below `end`, except those `invisible`."""

    end: int
    invisible: frozenset[int] = frozenset()

    def hidden(self, xids: Uint64s) -> Uint64s:
        return xids[(xids >= np.uint64(self.end)) | np.isin(xids, self.maybe_hidden())]

    def maybe_hidden(self) -> Uint64s:
        return np.array(sorted(self.invisible), np.uint64)


@dataclass(frozen=True, slots=True)
class MemoryMark:
    """A mark of the log `slot`. `token` None: a heartbeat."""

    position: int
    slot: str
    token: Token | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that changed tables without logging their rows. `emptied`: the shapes of tables that lost all of
    their rows; `filled`: the tables that now have different rows."""

    position: int
    xid: int
    emptied: tuple[Table, ...] = ()
    filled: tuple[TableId, ...] = ()


Record = MemoryCommit | MemoryMark | Statement


@dataclass(slots=True)
class MemoryTable:
    """A table and its visible rows, by row number. `file` changes when the rows are no longer those that a plan pinned;
    `version` counts statements that changed rows without being logged."""

    id: TableId
    incarnation: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rows: dict[int, Row] = field(default_factory=dict)
    file: int = 1
    version: int = 0

    @property
    def shape(self) -> Table:
        return Table(self.id, self.incarnation, self.columns, self.key)


class MemoryDatabase:
    """A database in memory. Thread-safe. `rewrites_known_by`: what reveals a statement that changes rows: the log, as
    in MySQL, or the catalog, as in PostgreSQL."""

    def __init__(self, name: str = "shop", rewrites_known_by: RewritesKnownBy = "log") -> None:
        self.name = name
        self.rewrites_known_by = rewrites_known_by
        self.changed = threading.Condition()
        self.tables: dict[TableId, MemoryTable] = {}
        self.log: list[Record] = []
        self.end = FIRST_POSITION
        self.slots: dict[str, int] = {}
        self.invisible: set[int] = set()
        self.unreadable: set[TableId] = set()
        self.locked: set[TableId] = set()
        self._numbers = itertools.count(1)
        self._next_xid = 1000
        self._wakers: dict[int, Callable[[], None]] = {}

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Transaction:
        return Transaction(self)

    def number(self) -> int:
        """Return a number that was not used in this database before."""
        return next(self._numbers)

    def commit(self, changes: list[MemoryChange], aborted: set[int], show: Callable[[], None], *, hold: bool) -> None:
        """Append a transaction to the log, and make it visible unless it is held back."""
        with self.changed:
            xid = self._take_xid()
            self.append(lambda at: MemoryCommit(at, xid, tuple(changes), frozenset(aborted)), size=len(repr(changes)))
            self._shows = show, xid
            if hold:
                self.invisible.add(xid)
            else:
                show()

    def let_go(self) -> Callable[[], None]:
        """Return a function that makes the transaction visible that was held back last."""
        show, xid = self._shows

        def release() -> None:
            with self.changed:
                if xid in self.invisible:
                    show()
                    self.invisible.discard(xid)
                    self.changed.notify_all()

        return release

    def snapshot(self) -> MemorySnapshot:
        """Return a snapshot of what is visible now."""
        with self.changed:
            return MemorySnapshot(self._next_xid, frozenset(self.invisible))

    def _take_xid(self) -> int:
        self._next_xid += 1
        return self._next_xid - 1

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, record: Callable[[int], Record], *, size: int = 0) -> None:
        """Append to the log at a new position, and wake its readers."""
        with self.changed:
            self.end += RECORD_SIZE + size
            self.log.append(record(self.end))
            for wake in self._wakers.values():
                wake()

    def write_mark(self, slot: str, token: Token | None) -> None:
        self.append(lambda at: MemoryMark(at, slot, token))

    def after(self, position: int, most: int) -> list[Record]:
        """The next records after a position."""
        with self.changed:
            return list(itertools.islice((r for r in self.log if r.position > position), most))

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever the log grows, until the returned function is called."""
        number = self.number()
        with self.changed:
            self._wakers[number] = wake
        return lambda: (self._wakers.pop(number, None), None)[1]

    def acknowledge(self, slot: str, position: int) -> None:
        """Record that a reader has everything through this position; log that no reader needs any longer is removed."""
        with self.changed:
            self.slots[slot] = max(self.slots[slot], position)
            kept = min(self.slots.values())
            self.log = [r for r in self.log if r.position > kept]

    # ── statements ──────────────────────────────────────────────────────────────────────────────────────────

    def create(self, table: TableId, columns: Mapping[str, ColumnType], key: tuple[str, ...]) -> MemoryTable:
        with self.changed:
            numbered = tuple(Column(n, self.number(), t, nullable=n not in key) for n, t in columns.items())
            self.tables[table] = MemoryTable(table, self.number(), numbered, key, file=self.number())
            return self.tables[table]

    def drop(self, table: TableId) -> None:
        with self.changed:
            gone = self.tables.pop(table)
            self._statement(emptied=(gone.shape,))

    def add_column(
        self, table: TableId, name: str, type_: ColumnType, value: Callable[[Row], Any] | None = None
    ) -> None:
        """Add a column. `value` computes it for existing rows; without it they get NULL."""
        with self.changed:
            found = self.tables[table]
            found.columns = (*found.columns, Column(name, self.number(), type_))
            found.rows = {n: {**row, name: value(row) if value else None} for n, row in found.rows.items()}
            if value is not None:
                self._fill(found)

    def drop_column(self, table: TableId, name: str) -> None:
        with self.changed:
            found = self.tables[table]
            found.columns = tuple(c for c in found.columns if c.name != name)
            found.rows = {n: {k: v for k, v in row.items() if k != name} for n, row in found.rows.items()}

    def rename_column(self, table: TableId, old: str, new: str) -> None:
        with self.changed:
            found = self.tables[table]
            found.columns = tuple(replace(c, name=new) if c.name == old else c for c in found.columns)
            found.key = tuple(new if name == old else name for name in found.key)
            found.rows = {n: {new if k == old else k: v for k, v in row.items()} for n, row in found.rows.items()}

    def retype(self, table: TableId, name: str, type_: ColumnType, value: Callable[[Any], Any]) -> None:
        with self.changed:
            found = self.tables[table]
            found.columns = tuple(replace(c, type=type_) if c.name == name else c for c in found.columns)
            found.rows = {n: {**row, name: value(row[name])} for n, row in found.rows.items()}
            self._fill(found)

    def rename(self, *pairs: tuple[TableId, TableId]) -> None:
        """Rename tables, all at once. A reader of the log sees that every renamed table lost its rows under the old
        name and has other rows under the new one."""
        with self.changed:
            before = {old: self.tables[old] for old, _ in pairs}
            shapes = tuple(table.shape for table in before.values())
            for old in before:
                del self.tables[old]
            for old, new in pairs:
                before[old].id = new
                self.tables[new] = before[old]
            self._statement(emptied=shapes, filled=tuple(new for _, new in pairs))

    def _fill(self, table: MemoryTable) -> None:
        if self.rewrites_known_by == "catalog":
            table.version += 1
        else:
            self._statement(filled=(table.id,))

    def _statement(self, emptied: tuple[Table, ...] = (), filled: tuple[TableId, ...] = ()) -> None:
        xid = self._take_xid()
        self.append(lambda at: Statement(at, xid, emptied, filled))

    # ── rights, locks, restores ─────────────────────────────────────────────────────────────────────────────

    def readable(self, table: TableId, is_closed: Callable[[], bool]) -> MemoryTable:
        """Return the table, once no session has locked it.

        Raises:
            SourceUnavailable: the table is gone, or the caller was closed while it waited.
            ConfigurationError: SELECT is not granted.
        """
        while table in self.locked and not is_closed():
            self.changed.wait(1.0)
        if is_closed():
            raise SourceUnavailable(f"reading {table}: this source is closed")
        if table not in self.tables:
            raise SourceUnavailable(f"reading {table}: there is no such table now")
        if table in self.unreadable:
            raise ConfigurationError(
                f"reading {table}: permission denied",
                remedy=f"run GRANT SELECT ON {table} TO the user of the capture",
                runbook="right-missing",
            )
        return self.tables[table]

    @contextmanager
    def lock(self, table: TableId) -> Iterator[None]:
        """Inside the block, no session may read this table."""
        with self.changed:
            self.locked.add(table)
        try:
            yield
        finally:
            with self.changed:
                self.locked.discard(table)
                self.changed.notify_all()

    def save_state(self) -> Callable[[], None]:
        """Copy the current state. The returned function restores it."""
        names = ("tables", "log", "end", "slots", "_next_xid")
        with self.changed:
            kept = copy.deepcopy({name: getattr(self, name) for name in names})

        def restore() -> None:
            with self.changed:
                for name, value in copy.deepcopy(kept).items():
                    setattr(self, name, value)

        return restore


class Transaction:
    """The changes of one session until it commits. It sees its own changes; others see them once it is visible."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._rows: dict[TableId, dict[int, Row]] = {}
        self._changes: list[MemoryChange] = []
        self._effects: list[tuple[TableId, int | None, Row | None]] = []
        self._aborted: set[int] = set()
        self._part = self._parts = 0
        self._savepoints: dict[str, tuple[int, int, dict[TableId, dict[int, Row]]]] = {}

    def insert(self, table: TableId, *rows: Row) -> None:
        for row in rows:
            number = self._database.number()
            self._put(table, number, row)
            self._log(table, "c", row)

    def update(self, table: TableId, values: Row, where: Callable[[Row], bool], unchanged: Collection[str] = ()) -> int:
        """Change the rows that match, and return how many.

        A change of the key is logged as a delete of the old row and an insert that contains the old key. `unchanged`:
        columns whose values the log does not repeat.
        """
        count = 0
        shape = self._shape(table)
        for number, old in list(self._of(table).items()):
            if where(old):
                count += 1
                new = {**old, **values}
                self._put(table, number, new)
                if shape.key and all(old[k] == new[k] for k in shape.key):
                    left = {**dict.fromkeys(unchanged), UNCHANGED: list(unchanged)} if unchanged else {}
                    self._log(table, "u", {**new, **left})
                else:
                    self._log(table, "d", old)
                    self._log(table, "c", new, {k: old[k] for k in shape.key_columns})
        return count

    def delete(self, table: TableId, where: Callable[[Row], bool]) -> int:
        """Delete the rows that match, and return how many."""
        count = 0
        for number, old in list(self._of(table).items()):
            if where(old):
                count += 1
                self._put(table, number, None)
                self._log(table, "d", old)
        return count

    def truncate(self, table: TableId) -> None:
        self._of(table).clear()
        self._effects.append((table, None, None))
        self._log(table, "t", {})

    def savepoint(self, name: str) -> None:
        self._parts += 1
        self._part = self._parts
        self._savepoints[name] = self._part, len(self._effects), copy.deepcopy(self._rows)

    def rollback_to(self, name: str) -> None:
        first, effects, rows = self._savepoints[name]
        self._aborted |= set(range(first, self._parts + 1))
        del self._effects[effects:]
        self._rows = rows
        self.savepoint(name)

    def commit(self, *, hold: bool = False) -> Callable[[], None]:
        """Commit the transaction. `hold`: it is in the log and cannot be seen before the returned function is
        called."""
        if self._changes:
            self._database.commit(self._changes, self._aborted, self._show, hold=hold)
        return self._database.let_go() if hold else lambda: None

    def _show(self) -> None:
        for table, number, row in self._effects:
            found = self._database.tables[table]
            if number is None:
                found.rows, found.file = {}, self._database.number()
            elif row is None:
                found.rows.pop(number, None)
            else:
                found.rows[number] = row

    def _of(self, table: TableId) -> dict[int, Row]:
        if table not in self._rows:
            self._rows[table] = dict(self._database.tables[table].rows)
        return self._rows[table]

    def _put(self, table: TableId, number: int, row: Row | None) -> None:
        mine = self._of(table)
        if row is None:
            del mine[number]
        else:
            mine[number] = row
        self._effects.append((table, number, row))

    def _shape(self, table: TableId) -> Table:
        return self._database.tables[table].shape

    def _log(self, table: TableId, op: str, values: Row, before: Row | None = None) -> None:
        self._changes.append(MemoryChange(self._shape(table), op, values, before, self._part))
