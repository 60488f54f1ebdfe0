"""A model change log, and the judge that looks at it at every cut.

The judge knows the database's own record of what was committed. It never asks the machine anything: it reads what was
appended, folds it with `cdcflow.merge.fold`, and compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np
from tests.simulation.database import Database, Statement, Values
from tests.simulation.transactions import Keys, Plain, Row, Transaction, position_of

from cdcflow.interleave.messages import Append, Cut
from cdcflow.interleave.progress import Progress
from cdcflow.merge.fold import Change, Key, fold, swept
from cdcflow.merge.fold import Row as Folded
from cdcflow.model.change import KeySet, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Offset
from cdcflow.model.table import TableId

Rows = dict[Key, Folded]
Truth = Mapping[Key, tuple[Values, int]]


class Violation(Exception):
    """An invariant does not hold; the message begins with its number."""


@dataclass(frozen=True, slots=True)
class AtCut:
    """What the log was at one cut: how long, what it folds to, and what the source was at that position.

    `incomplete` are the tables whose backfill was never done, `stale` those that were not captured for a while and
    were not read anew since, or that a statement changed and no generation planned after it is done; `versions` counts
    those statements. `generations`: the last one that was swept.
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


@dataclass(frozen=True, slots=True)
class Entry:
    first_offset: int
    first_transaction: int
    run: Plain


class ModelLog:
    """Entries and cuts in memory; what is not synced may be lost at a crash, from any cut on."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.entries: list[Entry] = []
        first = {t.id: _first_truth(database.first_rows[t.id], keyed=t.keyed) for t in database.tables.values()}
        tables = frozenset(database.tables)
        begin = Checkpoint(position=position_of(0))
        self.cuts = [AtCut(begin, 0, 0, {t: {} for t in tables}, first, {}, tables)]
        self.durable = 0
        self.acknowledged = 0
        self.checked = 0
        self.counts: Counter[str] = Counter()

    # ── what the capture does ───────────────────────────────────────────────────────────────────────────────

    def append(self, append: Append) -> None:
        run = append.run
        assert isinstance(run, Plain)
        expected = self._next()
        if (append.first_offset, append.first_transaction) != expected:
            found = append.first_offset, append.first_transaction
            raise Violation(f"I3: appended as offset and transaction {found}, expected {expected}")
        if any(t.lsn > self._database.flushed for t in run.items if not run.read):
            raise Violation("I2: a transaction is in the log that is not durable at the source")
        self.entries.append(Entry(append.first_offset, append.first_transaction, run))

    def _next(self) -> tuple[int, int]:
        if not self.entries:
            return 1, 1
        last = self.entries[-1]
        return last.first_offset + last.run.rows, last.first_transaction + last.run.transactions

    def cut(self, cut: Cut, epoch: Epoch) -> None:
        """Judge the log as it would be if it ended here, then remember it."""
        before = self.cuts[-1]
        if cut.number != before.checkpoint.cut + 1:
            raise Violation(f"I3: cut {cut.number} after {before.checkpoint.cut}")
        if (cut.next_offset, cut.next_transaction) != self._next():
            raise Violation(f"I3: cut {cut.number} says {cut.next_offset, cut.next_transaction} come next")
        checkpoint = Checkpoint(
            position=cut.position,
            next_offset=cut.next_offset,
            next_transaction=cut.next_transaction,
            cut=cut.number,
            epoch=epoch,
            progress=cut.progress,
        )
        entries = self.entries[before.appended :]
        lsn = int(cut.position)
        self._judge_order(before, entries, lsn)
        self.cuts.append(self._judge_rows(before, checkpoint, entries, lsn))
        self.checked += 1

    def sync(self) -> None:
        self.durable = len(self.cuts) - 1

    def acknowledge(self, lsn: int) -> None:
        """I6: never beyond what is durable, never backwards."""
        if lsn > self.cuts[self.durable].lsn:
            raise Violation(f"I6: {lsn} is acknowledged, durable is {self.cuts[self.durable].lsn}")
        if lsn < self.acknowledged:
            raise Violation(f"I6: the acknowledged position goes back from {self.acknowledged} to {lsn}")
        self.acknowledged = lsn

    def recover(self, rng: Random) -> Checkpoint:
        """After a crash: some cut that is durable or was lucky; the rest is gone. What is left is durable now."""
        kept = rng.choice([self.durable, rng.randint(self.durable, len(self.cuts) - 1)])
        del self.cuts[kept + 1 :]
        self.counts["appended and lost"] += len(self.entries) - self.cuts[-1].appended
        del self.entries[self.cuts[-1].appended :]
        self.durable = kept
        return self.cuts[-1].checkpoint

    def delivered(self) -> Uint64s:
        return np.array([t.xid & 0xFFFFFFFF for e in self.entries if not e.run.read for t in e.run.items], np.uint64)

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        found: list[int] = []
        for entry in self.entries:
            if entry.first_offset + entry.run.rows > since:
                keys = entry.run.partial_keys(table)
                found += keys.plain if keys is not None else ()
        return Keys(found) if found else None

    # ── the judge ───────────────────────────────────────────────────────────────────────────────────────────

    def _judge_order(self, before: AtCut, entries: list[Entry], lsn: int) -> None:
        """I1, I4: the log has exactly the committed transactions up to the cut's position, whole and in order."""
        if lsn < before.lsn:
            raise Violation(f"I6: cut position goes back from {before.lsn} to {lsn}")
        logged = [_told(t) for e in entries if not e.run.read for t in e.run.items if t.rows]
        wal = self._database.wal[before.lsn : lsn]
        committed = [_told(t) for t in wal if isinstance(t, Transaction) and any(r.published for r in t.rows)]
        if logged != committed:
            lsns = [t[0] for t in logged], [t[0] for t in committed]
            raise Violation(f"I1: log has {lsns[0]} where the source committed {lsns[1]}")

    def _judge_rows(self, before: AtCut, checkpoint: Checkpoint, entries: list[Entry], lsn: int) -> AtCut:
        """I5: the fold of the log is the source as of the cut's position."""
        changes: dict[TableId, list[Change]] = {}
        for entry in entries:
            for number, row in enumerate(row for t in entry.run.items for row in t.rows):
                change = Change(entry.first_offset + number, row.op, row.values, row.unchanged, row.before)
                changes.setdefault(row.table, []).append(change)
        truth, versions, stale = dict(before.truth), dict(before.versions), set(before.stale)
        for record in self._database.wal[before.lsn : lsn]:
            if isinstance(record, Statement):
                truth[record.table] = self._changed(truth[record.table], record)
                versions[record.table] = versions.get(record.table, 0) + 1
                stale.add(record.table)
            if isinstance(record, Transaction):
                for row in record.rows:
                    truth[row.table] = self._advanced(truth[row.table], row)
        folded, generations, incomplete = dict(before.folded), dict(before.generations), set(before.incomplete)
        touched = set(changes)
        for table, found in changes.items():
            keyed = self._database.tables[table].keyed
            folded[table] = fold(folded[table], found, ("id",) if keyed else ("a", "b"), keyed=keyed)
        progress = Progress.from_json(checkpoint.progress).tables
        stale |= self._database.tables.keys() - progress.keys()
        for table, known in progress.items():
            if known.state == "forgotten":
                stale.add(table)
            if known.state == "done" and known.generation > generations.get(table, 0):
                folded[table] = swept(folded[table], known.since)
                generations[table] = known.generation
                incomplete.discard(table)
                touched.add(table)
                if int(known.row_version or 0) >= versions.get(table, 0):
                    stale.discard(table)
        for table in touched - stale:
            self._judge_table(table, folded[table], truth[table], complete=table not in incomplete)
        left = frozenset(incomplete), frozenset(stale)
        return AtCut(checkpoint, len(self.entries), lsn, folded, truth, generations, *left, versions)

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


def _told(transaction: Transaction) -> tuple[object, ...]:
    """What the order is judged by. Values are not in it: those are the fold's to judge."""
    rows = [(r.table, r.op, r.values.get("id")) for r in transaction.rows if r.published]
    return transaction.lsn, transaction.xid, rows


def _key(values: Values, *, keyed: bool) -> Key:
    return (values["id"],) if keyed else (values["a"], values["b"])


def _first_truth(rows: list[Values], *, keyed: bool) -> Truth:
    truth: dict[Key, tuple[Values, int]] = {}
    for values in rows:
        key = _key(values, keyed=keyed)
        truth[key] = (values, truth.get(key, ({}, 0))[1] + 1)
    return truth
