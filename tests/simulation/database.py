"""A model database: appending a commit to the log, making it durable and making it visible are separate steps.

    sync     append ─▶ flush ─▶ visible
    async    append ─▶ visible ─▶ flush            a server crash before the flush erases what was visible
    standby  append ─▶ flush ─▶ standby ─▶ visible   the log is read long before the row can be seen

PostgreSQL has all three. MySQL and MariaDB commit in their storage engine after the binary log has the transaction, so
they have the first and, with semi-synchronous replication, the third; and by default they make commits visible in the
order of the log (`ordered`). A standby has the first, in the order of the log; what is durable is what it has received.

Rows are stored on pages, and a new version may go to any page, so that rows move ahead of and after a reader of pages.
Locks are kept until a commit is visible, as PostgreSQL does, so changes of one row become visible in log order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from tests.simulation.servers import SERVERS, Places, Server
from tests.simulation.transactions import Row, Shape, Transaction, plain_keys

from cdcflow.capture.interleave.messages import Chunk, Visibility
from cdcflow.model.position import Token
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

Mode = Literal["sync", "async", "standby"]
Values = dict[str, object]
KINDS = ["c", "u", "u", "part", "part", "part", "move", "move", "d", "d"]
MOVERS = ["c", "part", "part", "move", "move", "move", "d"]


@dataclass(slots=True)
class Version:
    page: int
    xmin: int
    values: Values
    xmax: int | None = None


@dataclass(slots=True)
class ModelTable:
    """`rel` changes whenever the table gets different pages; `size` counts the pages; `version` counts the statements
    that changed rows without a log record."""

    id: TableId
    shape: Shape
    keyed: bool
    rel: int = 1
    size: int = 1
    version: int = 0
    versions: list[Version] = field(default_factory=list)
    locked_by: int | None = None


@dataclass(slots=True)
class Open:
    """A transaction that is not visible yet. `lsn` is set once its commit is in the log. `dawdles`: so often it does
    not commit when it could."""

    xid: int
    mode: Mode
    rows: list[Row] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    tables: set[TableId] = field(default_factory=set)
    keys: set[tuple[TableId, object]] = field(default_factory=set)
    lsn: int | None = None
    dawdles: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    token: Token


@dataclass(frozen=True, slots=True)
class Statement:
    """ALTER TYPE … USING: every row of a table got another value, and a table with a key other keys too. It has a place
    in the log, and nothing of it is sent: only the judge may read it."""

    table: TableId
    turned: Mapping[int, int]

    def shown(self, values: Values) -> Values:
        """What a row shows after that."""
        if "id" not in values:
            return {**values, "a": 3 - int(str(values["a"]))}
        return {**values, "a": -int(str(values["a"])), "id": self.turned[int(str(values["id"]))]}


@dataclass(frozen=True, slots=True)
class Filled:
    """A column was added, with a value for the existing rows, or (no column) a partition was emptied, with the rows of
    these keys. A binary log records that this happened, and nothing more; PostgreSQL's records nothing."""

    table: TableId
    column: str = ""
    value: object = None
    gone: frozenset[int] = frozenset()


class Database:
    """`wal[n - 1]` is the record with LSN n. What is in `seen` is visible; xid 0 made the first rows.

    `confirmed`: the server was notified that the reader has everything through this position, and has forgotten it.
    """

    def __init__(self, rng: Random, modes: list[Mode], server: Server = SERVERS["postgres"]) -> None:
        self._rng = rng
        self._modes = modes
        self.server = server
        self.counts: Counter[str] = Counter()
        self.losing: Random | None = None
        self.refusing: Random | None = None
        self.wal: list[Transaction | Mark | Filled | Statement] = []
        self.flushed = 0
        self.confirmed = 0
        self.standby = 0
        self.in_replay: int | None = None
        self._next_xid = rng.choice([100, 2**32 - 7, 5 * 2**32 - 3])
        self._completed = self._next_xid - 1
        self.seen = {0}
        self.open: dict[int, Open] = {}
        self.older: set[int] = set()
        self._kept: list[Open] = []
        self._value = 0
        # Some sources change keys all the time, and have so few that one is soon another row's.
        self._kinds, self._keys = rng.choice([(KINDS, range(1, 11)), (KINDS, range(1, 6)), (MOVERS, range(1, 6))])
        keyed = rng.choice([1, 2, 3])
        self.tables = {t.id: t for t in [self._new_table(f"t{n}", keyed=True) for n in range(keyed)]}
        if rng.random() < 0.5 and server.fence != "order":
            heap = self._new_table("heap", keyed=False)
            self.tables[heap.id] = heap
        self.published = set(self.tables)
        self.first_rows: dict[TableId, list[Values]] = {
            t.id: [dict(v.values) for v in t.versions] for t in self.tables.values()
        }

    def _new_table(self, name: str, *, keyed: bool) -> ModelTable:
        columns = ("id", "a", "wide") if keyed else ("a", "b")
        table = ModelTable(TableId("public", name), Shape(columns), keyed)
        table.size = self._rng.randint(1, 8)
        for key in self._rng.sample(self._keys, self._rng.randint(0, len(self._keys) - 1)):
            values = self._full(table, key)
            table.versions.append(Version(self._rng.randint(1, table.size), 0, values))
        return table

    # ── what sessions do ────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Open:
        xid = self._take_xid()
        self.open[xid] = Open(xid, self._rng.choice(self._modes))
        return self.open[xid]

    def _take_xid(self) -> int:
        self._next_xid += 1
        return self._next_xid - 1

    def change(self, txn: Open, table: ModelTable | None = None) -> None:
        """One random change by an open transaction, of this table or any, perhaps under a savepoint that is rolled
        back."""
        table = table or self._rng.choice(list(self.tables.values()))
        if table.locked_by not in (None, txn.xid):
            return
        if self._rng.random() < 0.1:
            rows, undo, keys = len(txn.rows), len(txn.undo), set(txn.keys)
            self._change(txn, table)
            self._rewind(txn, undo)
            del txn.rows[rows:]
            txn.keys = keys
            self.counts["savepoints rolled back"] += 1
        else:
            self._change(txn, table)

    def _change(self, txn: Open, table: ModelTable) -> None:
        if table.keyed:
            self._change_keyed(txn, table)
        else:
            self._change_heap(txn, table)

    def _change_keyed(self, txn: Open, table: ModelTable) -> None:
        rng = self._rng
        live = {v.values["id"]: v for v in self._mine(table, txn)}
        locked = {key for other in self.open.values() if other is not txn for t, key in other.keys if t == table.id}
        free = [k for k in self._keys if k not in live and k not in locked]
        takeable = [k for k in live if k not in locked]
        kind = rng.choice(self._kinds)
        key: object
        if kind == "c" and free:
            key = rng.choice(free)
            values = self._full(table, key)
            self._add(txn, table, values, None)
            self._log(txn, Row(table.id, table.shape, "c", values, full=values), key)
        elif kind != "c" and takeable:
            key = rng.choice(takeable)
            old = live[key]
            if kind == "d":
                self._end(txn, old)
                rest = frozenset(table.shape.columns) - {"id"}
                gone = Row(table.id, table.shape, "d", {"id": key}, rest)
                self._log(txn, self._perhaps_lost(gone), key)
            elif kind == "u":
                values = self._full(table, key)
                self._replace(txn, table, old, values)
                self._log(txn, Row(table.id, table.shape, "u", values, full=values), key)
            elif kind == "part":
                values = {**old.values, "a": self._fresh()}
                self._replace(txn, table, old, values)
                sent, unchanged = self._sent(values, whole=False)
                self._log(txn, Row(table.id, table.shape, "u", sent, unchanged, None, values), key)
            elif free:
                self._move_key(txn, table, old, rng.choice(free))

    def move_a_key(self, table_id: TableId, keys: Sequence[object], *, again: bool) -> None:
        """A whole transaction at a bad time: a row gets another key, and perhaps (`again`) a new row its old one."""
        table = self.tables[table_id]
        if not table.keyed or table.locked_by is not None:
            return
        locked = {key for other in self.open.values() for t, key in other.keys if t == table_id}
        txn = Open(self._next_xid, self._rng.choice(self._modes))
        live = {v.values["id"]: v for v in self._mine(table, txn)}
        takeable = [k for k in keys or live if k in live and k not in locked]
        free = [k for k in self._keys if k not in live and k not in locked]
        if not takeable or not free:
            return
        self.open[self._take_xid()] = txn
        key = self._rng.choice(takeable)
        self._move_key(txn, table, live[key], self._rng.choice(free))
        if again:
            values = self._full(table, key)
            self._add(txn, table, values, None)
            self._log(txn, Row(table.id, table.shape, "c", values, full=values), key)
        self.commit(txn)
        self.counts["keys moved at a bad time"] += 1

    def insert_one_of(self, table_id: TableId, keys: Sequence[int]) -> None:
        """A whole transaction at a bad time: a row with one of these keys, where none exists."""
        table = self.tables[table_id]
        if table.locked_by is not None:
            return
        txn = Open(self._next_xid, self._rng.choice(self._modes))
        there = {v.values["id"] for v in self._mine(table, txn)}
        locked = {key for other in self.open.values() for t, key in other.keys if t == table_id}
        free = [k for k in keys if k in self._keys and k not in there and k not in locked]
        if not free:
            return
        self.open[self._take_xid()] = txn
        key = self._rng.choice(free)
        values = self._full(table, key)
        self._add(txn, table, values, None)
        self._log(txn, Row(table.id, table.shape, "c", values, full=values), key)
        self.commit(txn)
        self.counts["rows inserted while they are repaired"] += 1

    def _move_key(self, txn: Open, table: ModelTable, old: Version, new_key: object) -> None:
        old_key = old.values["id"]
        whole = self._rng.random() < 0.3
        values = {**old.values, "id": new_key, "a": self._fresh()}
        if whole:
            values["wide"] = self._fresh()
        self._replace(txn, table, old, values)
        rest = frozenset(table.shape.columns) - {"id"}
        self._log(txn, Row(table.id, table.shape, "d", {"id": old_key}, rest), old_key)
        sent, unchanged = self._sent(values, whole=whole)
        self._log(txn, Row(table.id, table.shape, "c", sent, unchanged, {"id": old_key}, values), new_key)

    def _sent(self, values: Values, *, whole: bool) -> tuple[Values, frozenset[str]]:
        """What the log has of a row, and the columns that it omits."""
        if whole:
            return values, frozenset()
        return {k: v for k, v in values.items() if k != "wide"}, frozenset({"wide"})

    def _change_heap(self, txn: Open, table: ModelTable) -> None:
        """A table without a key: its rows are locked one by one too, so a session takes its own or free ones."""
        live = [v for v in self._mine(table, txn) if v.xmax is None]
        kind = self._rng.choice("ccudd")
        if kind == "c" or not live:
            values = self._full(table, 0)
            self._add(txn, table, values, None)
            self._log(txn, Row(table.id, table.shape, "c", values, full=values), None)
            return
        old = self._rng.choice(live)
        gone = Row(table.id, table.shape, "d", dict(old.values))
        if kind == "d":
            self._end(txn, old)
            self._log(txn, gone, None)
        else:
            values = self._full(table, 0)
            self._replace(txn, table, old, values)
            self._log(txn, gone, None)
            self._log(txn, Row(table.id, table.shape, "c", values, full=values), None)

    def truncate(self, txn: Open) -> None:
        free = [t for t in self.tables.values() if not self._touched(t, besides=txn) and t.locked_by is None]
        if not free:
            return
        table = self._rng.choice(free)
        for version in self._mine(table, txn):
            self._end(txn, version)
        rel, table.rel, table.locked_by = table.rel, self._value_next(), txn.xid

        def undo() -> None:
            table.rel, table.locked_by = rel, None

        txn.undo.append(undo)
        self._log(txn, Row(table.id, table.shape, "t", {}), None)
        txn.tables.add(table.id)
        self.counts["truncates"] += 1

    def commit(self, txn: Open) -> None:
        """The commit record is in the log; no other session sees it yet, unless commits do not wait for the disk."""
        txn.lsn = len(self.wal) + 1
        self.wal.append(Transaction(txn.lsn if self.server.numbers_places else txn.xid, txn.lsn, tuple(txn.rows)))
        if txn.mode == "async":
            self.show(txn)

    def rollback(self, txn: Open) -> None:
        self._rewind(txn, 0)
        self._complete(txn)
        self.counts["rollbacks"] += 1

    def _rewind(self, txn: Open, length: int) -> None:
        while len(txn.undo) > length:
            txn.undo.pop()()

    def discard(self, since: int) -> bool:
        """Forget everything in the log since a place, if all of it is durable and visible; False where there is more
        than transactions."""
        if self.open or any(isinstance(record, Filled | Statement) for record in self.wal[since:]):
            return False
        for number, record in enumerate(self.wal[since:], since):
            if isinstance(record, Transaction):
                rows = tuple(r._replace(published=False, in_gap=r.published) for r in record.rows)
                self.wal[number] = record._replace(rows=rows)
        self.confirmed = len(self.wal)
        self.counts["rows in gaps"] += sum(
            row.in_gap for record in self.wal[since:] if isinstance(record, Transaction) for row in record.rows
        )
        return True

    @property
    def seen_in_log(self) -> frozenset[int]:
        """The transactions that can be seen, by the numbers that they have in the log."""
        hidden = {txn.lsn for txn in self.open.values()}
        return frozenset(r.xid for r in self.wal if isinstance(r, Transaction) and r.lsn not in hidden)

    def shown(self, table: TableId) -> dict[object, Values]:
        """The rows that can be seen now, by key."""
        return {v.values["id"]: dict(v.values) for v in self._visible(table)}

    # ── the server's actions ────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        self.flushed = len(self.wal)
        self._kept = []
        for table in self.tables.values():
            if any(v.xmax in self.seen for v in table.versions):
                table.versions = [v for v in table.versions if v.xmax not in self.seen]

    def showable(self) -> list[Open]:
        """Committed transactions that could become visible now."""
        committed = [(t.lsn, t.xid) for t in self.open.values() if t.lsn is not None]
        if self.server.ordered:
            committed = sorted(committed)[:1]
        ready = [self.open[xid] for lsn, xid in committed if lsn <= self.flushed]
        return [t for t in ready if t.mode != "standby" or (t.lsn or 0) <= self.standby]

    def show_all(self) -> None:
        """Everything that can become visible does."""
        while ready := self.showable():
            for txn in ready:
                self.show(txn)

    def show(self, txn: Open) -> None:
        self.seen.add(txn.xid)
        self.in_replay = txn.lsn
        if txn.lsn is not None and txn.lsn > self.flushed:
            self._kept.append(txn)
        self._complete(txn)

    def _complete(self, txn: Open) -> None:
        self._completed = max(self._completed, txn.xid)
        for table in self.tables.values():
            if table.locked_by == txn.xid:
                table.locked_by = None
        del self.open[txn.xid]

    def crash(self) -> None:
        """What was not durable is lost, visible or not; what was durable is visible from now on."""
        for txn in list(self.open.values()):
            if txn.lsn is not None and txn.lsn <= self.flushed:
                self.show(txn)
        self.count_replayed()
        lost = sorted([*self._kept, *self.open.values()], key=lambda t: (t.lsn or len(self.wal) + 1, t.xid))
        self.counts["async commits erased"] += sum(t.lsn is not None and bool(t.rows) for t in self._kept)
        for txn in reversed(lost):
            self._rewind(txn, 0)
            self.seen.discard(txn.xid)
        for table in self.tables.values():
            table.locked_by = None
            table.rel = self._value_next() if lost else table.rel
        self.open, self._kept = {}, []
        del self.wal[self.flushed :]
        self._completed = self._next_xid - 1

    def rewrite(self) -> ModelTable | None:
        """VACUUM FULL: every row on another page, nothing of it in the log."""
        free = [t for t in self.tables.values() if not self._touched(t) and t.locked_by is None]
        if not free or not self._shows_statements():
            return None
        self.flush()
        table = self._rng.choice(free)
        table.versions = [v for v in table.versions if v.xmax is None]
        self._rng.shuffle(table.versions)
        table.size = max(1, (len(table.versions) + 2) // 3)
        for number, version in enumerate(table.versions):
            version.page = number // 3 + 1
        table.rel = self._value_next()
        self.counts["rewrites"] += 1
        return table

    def _shows_statements(self) -> bool:
        """Whether a statement that is executed now is visible at once: a standby replays everything before it first."""
        if self.server.fence != "replay":
            return True
        if any(txn.lsn is not None for txn in self.open.values()):
            return False
        self.count_replayed()
        return True

    def change_rows(self) -> None:
        """ALTER TYPE … USING: other rows on other pages, nothing of it in the log."""
        table = self.rewrite()
        if table is not None:
            shift = self._rng.randrange(len(self._keys))
            turned = {key: self._keys[(at + shift) % len(self._keys)] for at, key in enumerate(self._keys)}
            statement = Statement(table.id, turned)
            table.version += 1
            for version in table.versions:
                version.values = statement.shown(version.values)
            self.wal.append(statement)
            self.flush()
            self.counts["statements that changed rows"] += 1

    def add_column(self, *, fills: bool) -> None:
        """`fills`: the existing rows get a value, and the log records only that this happened."""
        free = [t for t in self.tables.values() if t.keyed and not self._touched(t) and t.locked_by is None]
        if not free or not self._shows_statements():
            return
        self.flush()
        table = self._rng.choice(free)
        if len(table.shape.columns) >= 5:
            return
        column = f"x{len(table.shape.columns)}"
        table.shape = Shape((*table.shape.columns, column))
        self.counts["columns added"] += 1
        if fills:
            value = self._fresh()
            for version in table.versions:
                version.values = {**version.values, column: value}
            table.rel = self._value_next()
            table.version += not self.server.has_binlog
            self.wal.append(Filled(table.id, column, value))
            self.flush()
            self.counts["columns filled"] += 1

    def empty_part(self) -> None:
        """TRUNCATE PARTITION on a server with a binary log: rows are deleted, and no log records which. Perhaps one of
        them was inserted shortly before, so that the reader gets both at once."""
        table = self.rewrite() if self.server.has_binlog else None
        if table is None or not table.keyed:
            return
        odd = self._rng.randrange(2)
        gone = frozenset(key for key in self._keys if key % 2 == odd)
        if self._rng.random() < 0.7:
            self._insert_one_of(table, gone)
        table.versions = [v for v in table.versions if v.values["id"] not in gone]
        self.wal.append(Filled(table.id, gone=gone))
        self.flush()
        self.counts["partitions emptied"] += 1

    def _insert_one_of(self, table: ModelTable, keys: Collection[int]) -> None:
        """A whole transaction, which is visible at once. No other session may be changing the table."""
        free = sorted(set(keys) - {v.values["id"] for v in table.versions})
        if not free:
            return
        txn, key = self.begin(), self._rng.choice(free)
        values = self._full(table, key)
        self._add(txn, table, values, None)
        self._log(txn, Row(table.id, table.shape, "c", values, full=values), key)
        self.commit(txn)
        self.flush()
        self.standby = self.flushed
        self.show_all()
        self.counts["rows inserted into a partition before it was emptied"] += 1

    # ── queries of the capture ──────────────────────────────────────────────────────────────────────────────

    def publish(self, table: TableId, *, published: bool) -> None:
        """From now on changes of the table are sent, or not. An open transaction keeps what it has written so far."""
        if published and not self.server.has_binlog:
            self.older |= self.open.keys()
        (self.published.add if published else self.published.discard)(table)

    def heartbeat(self) -> None:
        """A transaction without rows: every id before it is below the next snapshot's xmax."""
        self._completed = max(self._completed, self._take_xid())

    def write_mark(self, token: Token) -> int:
        """Where in the log the mark is. Where nothing is written, that is the log's end, or what of it is replayed."""
        if self.server.writes_marks:
            self.heartbeat()
            self.wal.append(Mark(token))
            self.flush()
        return self.replayed if self.server.fence == "replay" else len(self.wal)

    def shows(self, lsn: int) -> bool:
        """Everything up to this place in the log is visible."""
        return all(t.lsn is None or t.lsn > lsn for t in self.open.values())

    def count_replayed(self) -> None:
        """The record whose commit a standby shows counts as replayed."""
        self.in_replay = None

    @property
    def replayed(self) -> int:
        """The end of what a standby has replayed: a commit is visible shortly before it counts."""
        hidden = (t.lsn for t in self.open.values() if t.lsn is not None)
        shown = min([self.flushed, *(lsn - 1 for lsn in hidden)])
        return shown if self.in_replay is None else min(shown, self.in_replay - 1)

    @property
    def sendable(self) -> int:
        """The end of what the server sends."""
        return self.replayed if self.server.fence == "replay" else self.flushed

    def unseen(self) -> int:
        """A standby's snapshot that was taken just before sees nothing after this place: one record may be in replay,
        if the standby has received one."""
        return self.replayed + (self.flushed > self.replayed)

    def sees(self) -> Visibility:
        """What is visible now, as far as this kind of server reports it."""
        hidden = frozenset(t.lsn for t in self.open.values() if t.lsn is not None)
        match self.server.fence:
            case "xids":
                return self.snapshot()
            case "replay":
                return Places(self.replayed)
            case "gtids":
                return Places(0, frozenset(range(1, len(self.wal) + 1)) - hidden)
            case _:
                return Places(min(hidden, default=len(self.wal) + 1) - 1)

    def end(self) -> Places:
        """All that is logged."""
        return Places(len(self.wal))

    def is_at_rest(self, table: TableId) -> bool:
        """No session is changing the table, or waits to become visible after a change of it: it can be locked."""
        return not self._touched(self.tables[table])

    def send_also(self, after: int) -> None:
        """A binary log has the rows of all tables: starting here the reader takes those that are captured now."""

        def flagged(rows: Sequence[Row]) -> list[Row]:
            return [r._replace(published=r.table in self.published) for r in rows]

        for at in range(after, len(self.wal)):
            record = self.wal[at]
            if isinstance(record, Transaction):
                self.wal[at] = record._replace(rows=tuple(flagged(record.rows)))
        for txn in self.open.values():
            txn.rows = flagged(txn.rows)

    def snapshot(self) -> XidSnapshot:
        xmax = self._completed + 1
        running = frozenset(x for x in self.open if x < xmax)
        return XidSnapshot(min(running, default=xmax), xmax, running)

    def readable(self, table: TableId) -> bool:
        """No exclusive lock blocks a query."""
        return self.tables[table].locked_by is None

    def bound(self, table_id: TableId) -> int:
        """The last unit that a plan of the table covers: its last page, or the greatest key that is visible."""
        if not self.server.has_binlog:
            return self.tables[table_id].size
        return max((self._unit(v) for v in self._visible(table_id)), default=0)

    def rows_in(self, chunk: Chunk, first: int, last: int) -> list[Row]:
        """The rows on these pages, or with these keys."""
        return [self._read(chunk, v) for v in self._visible(chunk.table) if first <= self._unit(v) <= last]

    def _unit(self, version: Version) -> int:
        key = version.values.get("id")
        return key if self.server.has_binlog and isinstance(key, int) else version.page

    def rows_with(self, chunk: Chunk) -> list[Row]:
        assert chunk.keys is not None
        keys = plain_keys(chunk.keys)
        return [self._read(chunk, v) for v in self._visible(chunk.table) if v.values["id"] in keys]

    def gone(self, chunk: Chunk, keys: Collection[int]) -> list[Row]:
        """Deletes of these keys."""
        shape = self.tables[chunk.table].shape
        rest = frozenset(shape.columns) - {"id"}
        return [Row(chunk.table, shape, "d", {"id": key}, rest) for key in keys]

    def rows_of(self, chunk: Chunk) -> list[Row]:
        begin = Row(chunk.table, self.tables[chunk.table].shape, "t", {})
        return [begin, *(self._read(chunk, v) for v in self._visible(chunk.table))]

    def _read(self, chunk: Chunk, version: Version) -> Row:
        shape = self.tables[chunk.table].shape
        return Row(chunk.table, shape, "r", {c: version.values.get(c) for c in shape.columns})

    def _visible(self, table_id: TableId) -> Iterator[Version]:
        for v in self.tables[table_id].versions:
            if v.xmin in self.seen and v.xmax not in self.seen:
                yield v

    # ── rows and pages ──────────────────────────────────────────────────────────────────────────────────────

    def _mine(self, table: ModelTable, txn: Open) -> list[Version]:
        """What a session may change: rows that it sees, or created itself, and that no other session is changing."""
        return [v for v in table.versions if v.xmax is None and (v.xmin in self.seen or v.xmin == txn.xid)]

    def _touched(self, table: ModelTable, besides: Open | None = None) -> bool:
        return any(table.id in t.tables for t in self.open.values() if t is not besides)

    def _perhaps_lost(self, row: Row) -> Row:
        """Where deletes get lost: those that the log never gets, and that a repair has to find."""
        if self.losing is None or row.table not in self.published or self.losing.random() < 0.6:
            return row
        self.counts["deletes lost"] += 1
        return row._replace(published=False, lost=True)

    def _log(self, txn: Open, row: Row, key: object) -> None:
        if row.table not in self.published:
            row = row._replace(published=False)
        elif row.published and self.refusing is not None and self.refusing.random() < 0.02:
            row = row._replace(unfit=True)
        txn.rows.append(row)
        txn.tables.add(row.table)
        if key is not None:
            txn.keys.add((row.table, key))

    def _add(self, txn: Open, table: ModelTable, values: Values, near: int | None) -> None:
        version = Version(self._page(table, near), txn.xid, values)
        table.versions.append(version)

        def undo() -> None:
            # by identity: a rewrite may have moved the versions to another list
            table.versions[:] = [v for v in table.versions if v is not version]

        txn.undo.append(undo)

    def _end(self, txn: Open, version: Version) -> None:
        version.xmax = txn.xid

        def undo() -> None:
            version.xmax = None

        txn.undo.append(undo)

    def _replace(self, txn: Open, table: ModelTable, old: Version, values: Values) -> None:
        self._end(txn, old)
        self._add(txn, table, values, old.page)

    def _page(self, table: ModelTable, near: int | None) -> int:
        """The same page, any page, or a new one after the end."""
        pick = self._rng.random()
        if near is not None and pick < 0.3:
            return near
        if pick < 0.65 or table.size >= 9:
            return self._rng.randint(1, table.size)
        table.size += 1
        return table.size

    def _full(self, table: ModelTable, key: object) -> Values:
        if not table.keyed:  # few values, so that equal rows are common
            return {"a": self._rng.randint(1, 2), "b": self._rng.randint(1, 2)}
        return {"id": key, **{c: self._fresh() for c in table.shape.columns[1:]}}

    def _fresh(self) -> int:
        return self._value_next()

    def _value_next(self) -> int:
        self._value += 1
        return self._value + 1
