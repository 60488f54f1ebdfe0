"""Divides a large transaction in a spool into parts, by which rows can be excluded from it later.

A spool excludes rows by the sub-transactions that were rolled back. Here the rows of each table in each sub-transaction
are such a part, with a number that takes the place of the sub-transaction. So the rows of one table can be excluded,
too, when some of them cannot leave the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cdcflow.model.change import ChangeBatch, SpooledTransaction, TableParts, Uint64s
from cdcflow.model.table import TableId

Part = tuple[int | None, TableId]
"""A sub-transaction (None: its rows can no longer be rolled back) and a table."""


@dataclass(slots=True)
class SpoolParts:
    """The parts of a spool: the number that each part has, and how many rows."""

    numbers: dict[Part, int] = field(default_factory=dict)
    rows: Counter[int] = field(default_factory=Counter)

    def count(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> Uint64s:
        """Count the rows of a piece of the transaction. Return the number of each row's part, in index order."""
        found = np.zeros(sum(len(batch.index) for batch in batches), np.uint64)
        for batch in batches:
            table, rows = batch.table.id, len(batch.index)
            if subxids is None or not rows:
                found[batch.index] = self._number((None, table), rows)
            else:
                found[batch.index] = self._numbers(table, subxids[batch.index])
        return found

    def _numbers(self, table: TableId, subxids: Uint64s) -> Uint64s | int:
        first = int(subxids[0])
        if (subxids == first).all():
            return self._number((first, table), len(subxids))
        found, which, counts = np.unique(subxids, return_inverse=True, return_counts=True)
        pairs = zip(found.tolist(), counts.tolist(), strict=True)
        return np.array([self._number((subxid, table), rows) for subxid, rows in pairs], np.uint64)[which]

    def _number(self, part: Part, rows: int) -> int:
        number = self.numbers.setdefault(part, len(self.numbers))
        self.rows[number] += rows
        return number

    def divide(self, run: SpooledTransaction) -> SpooledTransaction:
        """Return the transaction with these parts, which are numbered differently from those of `run.aborted`, and with
        the counts of the rows that are in its spool."""
        aborted = frozenset(number for (subxid, _), number in self.numbers.items() if subxid in run.aborted)
        tables: dict[TableId, set[int]] = {}
        for (_, table), number in self.numbers.items():
            if number not in aborted:
                tables.setdefault(table, set()).add(number)
        parts = {table: self._table_parts(frozenset(numbers)) for table, numbers in tables.items()}
        return replace(run, rows=sum(one.rows for one in parts.values()), aborted=aborted, parts=parts)

    def _table_parts(self, numbers: frozenset[int]) -> TableParts:
        return TableParts(numbers, sum(self.rows[number] for number in numbers))
