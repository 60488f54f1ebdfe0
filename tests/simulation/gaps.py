"""A source that discards log which is still needed, and comparisons of tables with it, as by `cdcflow repair`.

A comparison begins with what can be seen in the source. It ends when the log has reached that position: keys that
differ, and that no row of the log touches since it began, are repaired. If nothing differs, the table is proven to be
right. It may begin before a gap and end after it; then it proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.simulation.capture import NO_ORDERS
from tests.simulation.database import Database, Values
from tests.simulation.faults import Faults
from tests.simulation.log import ModelLog
from tests.simulation.transactions import Keys, lsn_of, position_of

from cdcflow.capture.attempt import Orders
from cdcflow.capture.interleave.messages import Order, Proven, Repair
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.model.position import Epoch
from cdcflow.model.table import TableId

GAPS_MAX = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison saw when it began: the epoch of the log's latest cut, the visible rows and transactions, how
    long the source's log was, and how many runs cdcflow's had."""

    epoch: Epoch
    rows: dict[object, Values]
    seen: frozenset[int]
    lsn: int
    entries: int


class Gaps:
    """`orders` are what the next start is for; `is_due`: the source loses its log before it."""

    def __init__(self, chance: Random, database: Database, log: ModelLog, faults: Faults, counts: Counter[str]) -> None:
        self.chance = chance
        self.orders: Orders = NO_ORDERS
        self.is_due = False
        self.comparisons: dict[TableId, Comparison] = {}
        self._database = database
        self._log = log
        self._faults = faults
        self._counts = counts
        self._happened = 0
        self._was_last = False

    def happens(self, progress: Progress) -> bool:
        """Whether the process ends now, and the source will not have the log that follows. Mostly when a table would
        stay incomplete."""
        kept = any(p.state == "done" and not p.whole for p in progress.tables.values())
        likely = self._happened < GAPS_MAX and self.chance.random() < (0.02 if kept else 0.0005)
        self.is_due = likely
        return self.is_due

    def begins_last(self) -> bool:
        """The same, once at the end, when everything is idle."""
        self.is_due, self._was_last = not self._was_last, True
        return self.is_due

    def lose(self) -> None:
        self.is_due = False
        position = self._log.checkpoint.position
        if position is None or not self._database.discard(lsn_of(position)):
            return
        self._happened += 1
        self._counts["gaps"] += 1
        self.orders = Orders(accept_history_loss=True, keep_rows=True)

    def compare(self, progress: Progress) -> Iterator[Order]:
        """Begin with a table, or end with one, and return what is to be done."""
        table = self.chance.choice([t.id for t in self._database.tables.values() if t.keyed])
        known = progress.tables.get(table)
        if known is None:
            return
        if self._faults.proves_unseen and known.in_doubt:
            yield Proven(table, position_of(0), self._log.epoch)
        elif table not in self.comparisons:
            self._begin(table)
        elif self._log.cuts[-1].lsn >= self.comparisons[table].lsn:
            yield from self._end(table, known)

    def _begin(self, table: TableId) -> None:
        self.comparisons[table] = Comparison(
            self._log.checkpoint.epoch,
            self._database.shown(table),
            self._database.seen_in_log,
            len(self._database.wal),
            len(self._log.entries),
        )

    def _end(self, table: TableId, known: TableProgress) -> Iterator[Order]:
        begun = self.comparisons.pop(table)
        folded = {key[0]: row for key, row in self._log.cuts[-1].folded[table].items()}
        differing = set()
        for key in begun.rows.keys() | folded.keys():
            there, here = begun.rows.get(key), folded.get(key)
            alike = there is not None and here is not None and not here.missing
            if not alike or any(here.values.get(c) != there.get(c) for c in there.keys() | here.values.keys()):  # type: ignore[union-attr]
                differing.add(key)
        touched = self._touched(table, begun)
        if not differing:
            self._counts["found equal"] += 1
            yield Proven(table, position_of(begun.lsn), begun.epoch)
            if known.gap is not None and known.in_doubt and begun.epoch < known.gap.epoch:
                self._counts["compared too early"] += 1
        elif touched is not None and (sure := differing - touched) and known.state == "done":
            self._counts["repaired after a gap"] += known.in_doubt
            yield Repair(table, Keys(int(str(key)) for key in sure))

    def _touched(self, table: TableId, begun: Comparison) -> set[object] | None:
        """The keys with rows in the log that the comparison did not see; None: all of them."""
        found: set[object] = set()
        for number, entry in enumerate(self._log.entries):
            for transaction in entry.run.items:
                if number >= begun.entries or (not entry.run.read and transaction.xid not in begun.seen):
                    rows = [row for row in transaction.rows if row.table == table]
                    if any(row.op == "t" for row in rows):
                        return None
                    found |= {row.values["id"] for row in rows}
        return found
