"""A model change log, and the judge that checks it at every cut.

The judge knows the database's own record of what was committed. It never queries the machine: it reads what was
appended, folds it with `cdcflow.log.fold.fold`, and compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pyarrow as pa
from tests.simulation.database import Database, Filled, Statement, Values
from tests.simulation.steps import Later, Steps
from tests.simulation.transactions import Keys, Plain, Row, Transaction, lsn_of

from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.ports.log import Numbered, Spool
from cdcflow.log.fold.fold import FoldedRow as Folded
from cdcflow.log.fold.fold import Key, LogChange, fold, sweep
from cdcflow.model.change import KeySet, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.model.table import TableId

Rows = dict[Key, Folded]
Truth = Mapping[Key, tuple[Values, int]]


class Violation(Exception):
    """An invariant does not hold; the message begins with its number."""


@dataclass(frozen=True, slots=True)
class AtCut:
    """The log at one cut: how long it was, its fold, and the source's rows at that position.

    `incomplete` are the tables whose backfill was never done. `stale` are those that were not captured for a while, or
    whose rows a statement changed, and that were not read again since; `versions` counts the statements that no log
    records, `wrong` are keys whose delete the log never got. `generations`: the last one that was swept. `lossy`:
    tables with changes in a gap, with the generation that they were in.
    """

    checkpoint: Checkpoint
    appended: int
    lsn: int
    folded: Mapping[TableId, Rows]
    truth: Mapping[TableId, Truth]
    generations: Mapping[TableId, int]
    incomplete: frozenset[TableId]
    stale: frozenset[TableId] = frozenset()
    versions: Mapping[TableId, int] = field(default_factory=dict)
    wrong: Mapping[TableId, frozenset[Key]] = field(default_factory=dict)
    lossy: Mapping[TableId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    first_offset: int
    first_transaction: int
    run: Plain


@dataclass(slots=True)
class Clock:
    """The schedule's time, and how long a sync takes."""

    now_s: float = 0.0
    sync_s: float = 0.0


class ModelLog:
    """Implements `cdcflow.ports.Log` in memory, once for each start: a crash leaves what is durable, and perhaps more.

    A sync that runs concurrently with the loop takes three steps: it begins, its cut is durable, it returns. `sync_s`
    is how long one takes.
    """

    log_id = "model"

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._steps = Steps()
        self.epoch = Epoch(0)
        self.entries: list[Entry] = []
        first = {t.id: _first_truth(database.first_rows[t.id], keyed=t.keyed) for t in database.tables.values()}
        tables = frozenset(database.tables)
        self.cuts = [AtCut(Checkpoint(), 0, 0, {t: {} for t in tables}, first, {}, tables)]
        self.durable = 0
        self._commit_clock = 0
        self._syncing: Iterator[Checkpoint | None] | None = None
        self.checked = 0
        self.counts: Counter[str] = Counter()

    # ── starts and ends ─────────────────────────────────────────────────────────────────────────────────────

    def open(self, steps: Steps) -> None:
        self._steps = steps
        self._syncing = None
        self.epoch = Epoch(self.epoch + 1)

    def close(self) -> None:
        """What is cut is durable, the rest is lost."""
        self.durable = len(self.cuts) - 1
        self._drop()

    def crash(self, rng: Random) -> None:
        """A random cut, at least the last durable one, is the last; the rest is lost. What is left is durable now."""
        self.durable = rng.choice([self.durable, rng.randint(self.durable, len(self.cuts) - 1)])
        del self.cuts[self.durable + 1 :]
        self._drop()

    def _drop(self) -> None:
        self.counts["appended and lost"] += len(self.entries) - self.cuts[-1].appended
        del self.entries[self.cuts[-1].appended :]
        self._commit_clock = self.cuts[-1].checkpoint.commit_clock

    # ── Log ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def checkpoint(self) -> Checkpoint:
        return self.cuts[self.durable].checkpoint

    def append(self, numbered: Numbered) -> None:
        run = numbered.run
        assert isinstance(run, Plain)
        expected = self._next()
        if (numbered.first_offset, numbered.first_transaction) != expected:
            found = numbered.first_offset, numbered.first_transaction
            raise Violation(f"I3: appended as offset and transaction {found}, expected {expected}")
        if len(numbered.commit_clock) != run.transactions:
            raise Violation(f"I3: {run.transactions} transactions have {len(numbered.commit_clock)} commit clocks")
        if any(t.lsn > self._database.flushed for t in run.items if not run.read):
            raise Violation("I2: a transaction is in the log that is not durable at the source")
        for item, clock in zip(run.items, numbered.commit_clock.tolist(), strict=True):
            if clock != max(self._commit_clock + 1, item.lsn):
                raise Violation(f"I9: {item.lsn} has commit clock {clock}, earlier than {self._commit_clock}")
            self._commit_clock = clock
        self.entries.append(Entry(numbered.first_offset, numbered.first_transaction, run))

    def _next(self) -> tuple[int, int]:
        if not self.entries:
            return 1, 1
        last = self.entries[-1]
        return last.first_offset + last.run.rows, last.first_transaction + last.run.transactions

    def cut(self, checkpoint: Checkpoint) -> None:
        """Judge the log as it would be if it ended here, then remember it."""
        before = self.cuts[-1]
        if checkpoint.cut != before.checkpoint.cut + 1:
            raise Violation(f"I3: cut {checkpoint.cut} after {before.checkpoint.cut}")
        if (checkpoint.next_offset, checkpoint.next_transaction) != self._next():
            found = checkpoint.next_offset, checkpoint.next_transaction
            raise Violation(f"I3: cut {checkpoint.cut} expects offset {found} next")
        entries = self.entries[before.appended :]
        lsn = lsn_of(checkpoint.position)
        self._judge_order(before, entries, lsn)
        self._judge_clock(checkpoint.commit_clock, lsn)
        self.cuts.append(self._judge_rows(before, checkpoint, entries, lsn))
        self.checked += 1

    def sync(self) -> Checkpoint:
        if self._steps.in_loop("cdcflow-sync"):
            checkpoint = [found for found in self._synced() if found is not None].pop()
        else:
            self._syncing = self._syncing or self._synced()
            found = next(self._syncing)
            if found is None:
                raise Later
            self._syncing, checkpoint = None, found
        self.counts["syncs in the loop"] += self._steps.in_loop("cdcflow-sync")
        return checkpoint

    def _synced(self) -> Iterator[Checkpoint | None]:
        last = len(self.cuts) - 1
        yield None
        self.durable = max(self.durable, last)
        self._clock.now_s += self._clock.sync_s
        yield None
        yield self.cuts[last].checkpoint

    def open_spool(self) -> Spool:
        raise AssertionError("a model's transactions are small")

    def transactions_back(self, is_enough: Callable[[Position], bool]) -> pa.Table:
        raise AssertionError("a model's source is never restored")

    def delivered(self, xids: Uint64s) -> Uint64s:
        ids = [t.xid & 0xFFFFFFFF for e in self.entries if not e.run.read for t in e.run.items]
        return xids[np.isin(xids & np.uint64(0xFFFFFFFF), np.array(ids, np.uint64))]

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        found: list[int] = []
        for entry in self.entries:
            if entry.first_offset + entry.run.rows > since:
                keys = entry.run.partial_keys(table)
                found += keys.plain if keys is not None else ()
        return Keys(found) if found else None

    def seal_due(self, now_s: float) -> bool:
        return False

    def roll(self) -> bool:
        return False

    def seal_pending(self) -> object:
        return None

    # ── the judge ───────────────────────────────────────────────────────────────────────────────────────────

    def _judge_order(self, before: AtCut, entries: list[Entry], lsn: int) -> None:
        """I1, I4: the log has exactly the committed transactions up to the cut's position, whole and in order."""
        if lsn < before.lsn:
            raise Violation(f"I6: cut position goes back from {before.lsn} to {lsn}")
        wal = [record for record in self._database.wal[before.lsn : lsn] if isinstance(record, Transaction)]
        # Of a table with rows that cannot leave, some rows are in the log: its next generation is judged.
        unfit = {row.table for record in wal for row in record.rows if row.unfit} | before.lossy.keys()
        logged = [_told(t, unfit) for e in entries if not e.run.read for t in e.run.items if _has_rows(t, unfit)]
        committed = [_told(t, unfit) for t in wal if _has_rows(t, unfit)]
        if logged != committed:
            lsns = [t[0] for t in logged], [t[0] for t in committed]
            raise Violation(f"I1: log has {lsns[0]} where the source committed {lsns[1]}")

    def _judge_clock(self, clock: int, lsn: int) -> None:
        """I9: the commit clock only goes forward, and without a transaction no further than the source's time. (A
        transaction's time is its place in the source's log.)"""
        if clock < self._commit_clock or self._commit_clock < clock > lsn:
            raise Violation(f"I9: commit clock {clock} at {lsn}, earlier than {self._commit_clock}")
        self.counts["commit clocks moved by heartbeats"] += clock > self._commit_clock
        self._commit_clock = clock

    def _judge_rows(self, before: AtCut, checkpoint: Checkpoint, entries: list[Entry], lsn: int) -> AtCut:
        """I5: the fold of the log is the source as of the cut's position."""
        changes: dict[TableId, list[LogChange]] = {}
        for entry in entries:
            for number, row in enumerate(row for t in entry.run.items for row in t.rows):
                change = LogChange(entry.first_offset + number, row.op, row.values, row.unchanged, row.before)
                changes.setdefault(row.table, []).append(change)
        truth = dict(before.truth)
        folded, generations, incomplete = dict(before.folded), dict(before.generations), set(before.incomplete)
        touched, stale, versions = set(changes), set(before.stale), dict(before.versions)
        wrong, lossy = dict(before.wrong), dict(before.lossy)
        known_before = Progress.from_json(before.checkpoint.progress).tables
        has_binlog = self._database.server.has_binlog
        for record in self._database.wal[before.lsn : lsn]:
            if isinstance(record, Transaction):
                for row in record.rows:
                    truth[row.table] = self._advanced(truth[row.table], row)
                    if (row.in_gap or row.unfit) and row.table in known_before:
                        lossy[row.table] = known_before[row.table].generation
                    if row.lost:
                        wrong[row.table] = wrong.get(row.table, frozenset()) | {(row.values["id"],)}
            elif isinstance(record, Statement):
                truth[record.table] = self._changed(truth[record.table], record)
                versions[record.table] = versions.get(record.table, 0) + 1
                stale.add(record.table)
            elif isinstance(record, Filled):
                versions[record.table] = versions.get(record.table, 0) + (not has_binlog)
                stale.add(record.table)  # until it was read again
                filled = {record.column: record.value} if record.column else {}
                truth[record.table] = {
                    k: ({**v, **filled}, n)
                    for k, (v, n) in truth[record.table].items()
                    if v.get("id") not in record.gone
                }
        for table, found in changes.items():
            keyed = self._database.tables[table].keyed
            folded[table] = fold(folded[table], found, ("id",) if keyed else ("a", "b"), keyed=keyed)
        progress = Progress.from_json(checkpoint.progress).tables
        if progress:
            stale |= self._database.tables.keys() - progress.keys()
        for table, known in progress.items():
            if known.state == "forgotten":
                stale.add(table)
            if known.state == "done" and known.generation > generations.get(table, 0):
                folded[table] = sweep(folded[table], known.since)
                generations[table] = known.generation
                incomplete.discard(table)
                touched.add(table)
                if int(known.row_version or 0) >= versions.get(table, 0):
                    stale.discard(table)
        for table, generation in list(lossy.items()):
            if (found_now := progress.get(table)) is not None and self._is_sure(table, found_now, generation):
                del lossy[table]
                touched.add(table)
        for table in stale - before.stale if has_binlog else ():
            now = progress.get(table)
            if now is not None and now.state == "done" and now.generation == before.generations.get(table):
                raise Violation(f"I5: {table} counts as done, and no plan reads what a statement filled")
        for table, keys in wrong.items():
            wrong[table] = frozenset(keys & folded[table].keys() - truth[table].keys())
        for table in touched - stale - lossy.keys():
            known_wrong = wrong.get(table, frozenset())
            right = {key: row for key, row in folded[table].items() if key not in known_wrong}
            self._judge_table(table, right, truth[table], complete=table not in incomplete)
        left = frozenset(incomplete), frozenset(stale)
        return AtCut(checkpoint, len(self.entries), lsn, folded, truth, generations, *left, versions, wrong, lossy)

    def _is_sure(self, table: TableId, known: TableProgress, generation: int) -> bool:
        """Whether the log reports a table as right although it does not have all of its changes. It must not, except
        for one that was compared since, or read again."""
        if known.state == "done" and known.generation > generation:
            return True
        if known.gap is not None and not known.in_doubt:
            return True
        if known.in_doubt or (known.whole_since is None and known.state != "done"):
            return False
        raise Violation(f"I5: {table} counts as whole ({known.state}), and changes of it were lost")

    def _changed(self, truth: Truth, statement: Statement) -> Truth:
        keyed = self._database.tables[statement.table].keyed
        shown = [(statement.shown(values), count) for values, count in truth.values()]
        return {_key(values, keyed=keyed): (values, count) for values, count in shown}

    def _advanced(self, truth: Truth, row: Row) -> Truth:
        keyed = self._database.tables[row.table].keyed
        rows = dict(truth)
        match row.op:
            case "t":
                rows.clear()
            case "d":
                key = _key(row.values, keyed=keyed)
                values, count = rows.pop(key)
                if count > 1:
                    rows[key] = (values, count - 1)
            case _:
                assert row.full is not None
                key = _key(row.full, keyed=keyed)
                rows[key] = (row.full, 1 if keyed else rows.get(key, ({}, 0))[1] + 1)
        return rows

    def _judge_table(self, table: TableId, folded: Rows, truth: Truth, *, complete: bool) -> None:
        if complete and folded.keys() != truth.keys():
            more, less = sorted(folded.keys() - truth.keys(), key=str), sorted(truth.keys() - folded.keys(), key=str)
            raise Violation(f"I5: {table} has {more} too many and misses {less}")
        for key, row in folded.items():
            if key not in truth:
                raise Violation(f"I5: {table} has {key}, which the source does not")
            values, count = truth[key]
            if complete and (row.missing or row.count != count):
                raise Violation(f"I5: {table} {key} misses {sorted(row.missing)}, count {row.count} of {count}")
            if row.count > count:
                raise Violation(f"I5: {table} {key} counts {row.count}, the source has {count}")
            for column in values.keys() | row.values.keys():
                if column not in row.missing and row.values.get(column) != values.get(column):
                    found = row.values.get(column), values.get(column)
                    raise Violation(f"I5: {table} {key}.{column} is {found[0]}, the source has {found[1]}")


def _told(transaction: Transaction, besides: Collection[TableId]) -> tuple[object, ...]:
    """The data by which the order is judged. Values are not in it: those are the fold's to judge."""
    rows = [(r.table, r.op, r.values.get("id")) for r in transaction.rows if r.published and r.table not in besides]
    return transaction.lsn, transaction.xid, rows


def _has_rows(transaction: Transaction, besides: Collection[TableId]) -> bool:
    return any(row.published and row.table not in besides for row in transaction.rows)


def _key(values: Values, *, keyed: bool) -> Key:
    return (values["id"],) if keyed else (values["a"], values["b"])


def _first_truth(rows: list[Values], *, keyed: bool) -> Truth:
    truth: dict[Key, tuple[Values, int]] = {}
    for values in rows:
        key = _key(values, keyed=keyed)
        truth[key] = (values, truth.get(key, ({}, 0))[1] + 1)
    return truth
