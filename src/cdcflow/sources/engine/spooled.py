"""A transaction too large for memory: the facts about it that cdcflow keeps while its rows go into a spool.

Its rows may still be rolled back, one part at a time (a sub-transaction, or the rows since a savepoint), so everything
is counted by part. Once the transaction is committed, the counts of the remaining rows are what the interleave machine
needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.ports.log import OpenSpool, Spool
from cdcflow.model.change import ChangeBatch, KeySet, SpooledTransaction, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import OP, UNCHANGED, Table, TableId
from cdcflow.sources.engine.buffers import Bools
from cdcflow.sources.engine.spool_parts import SpoolParts


@dataclass(slots=True)
class SpooledRows:
    """The rows of one transaction in a spool. `counts`: the number of rows by part and shape; `aborted`: the parts that
    were rolled back. A transaction whose rows cannot be rolled back in parts has the single part 0. `tables_apart`: the
    parts that the spool keeps, each with the rows of one table only, so that a table that fails can be excluded."""

    spool: Spool | None = None
    counts: dict[int, dict[Table, int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    truncated: set[tuple[int, TableId]] = field(default_factory=set)
    partial: dict[TableId, list[tuple[pa.Table, Uint64s]]] = field(default_factory=dict)
    tables_apart: SpoolParts = field(default_factory=SpoolParts)

    def write(self, open_spool: OpenSpool, batches: list[ChangeBatch], parts: Uint64s | None) -> None:
        """Write one piece into the spool. `parts`: each row's part, in index order; None if no row can be rolled back
        alone."""
        if not batches:
            return
        if self.spool is None:
            self.spool = open_spool()
        self.spool.write(batches, self.tables_apart.count(batches, parts))
        for batch in batches:
            self._account(batch, np.zeros(len(batch.index), np.uint64) if parts is None else parts[batch.index])

    def _account(self, batch: ChangeBatch, mine: Uint64s) -> None:
        for part, count in zip(*(a.tolist() for a in np.unique(mine, return_counts=True)), strict=True):
            counts = self.counts.setdefault(part, {})
            counts[batch.table] = counts.get(batch.table, 0) + count
        ops = batch.rows.column(OP)
        emptied = pc.equal(ops, "t").to_numpy(zero_copy_only=False)
        self.truncated |= {(int(part), batch.table.id) for part in np.unique(mine[emptied])}
        unchanged = batch.rows.column(UNCHANGED)
        if unchanged.null_count == len(unchanged):
            return
        mask: Bools = pc.and_(pc.is_valid(unchanged), pc.not_equal(ops, "d")).to_numpy(zero_copy_only=False)
        if mask.any():
            keys = batch.rows.select(list(batch.table.key_columns)).filter(pa.array(mask))
            self.partial.setdefault(batch.table.id, []).append((pa.Table.from_batches([keys]), mine[mask]))

    @property
    def rows(self) -> int:
        """The number of rows that were not rolled back."""
        return sum(sum(tables.values()) for tables in self._committed_parts())

    @property
    def tables(self) -> frozenset[TableId]:
        """The tables that the transaction wrote rows of, rolled back or not."""
        return frozenset(table.id for tables in self.counts.values() for table in tables)

    @property
    def taken_back(self) -> frozenset[TableId]:
        """The tables with rows that were rolled back."""
        return frozenset(table.id for part in self.aborted for table in self.counts.get(part, ()))

    def _committed_parts(self) -> list[dict[Table, int]]:
        return [tables for part, tables in self.counts.items() if part not in self.aborted]

    def discard(self) -> None:
        if self.spool is not None:
            self.spool.discard()

    def commit(
        self, xid: int, position: Position, commit_ts: int, origin: str | None = None
    ) -> SpooledTransaction | None:
        """Return the transaction, which is now known to be committed; None if no rows of it remain."""
        if self.spool is None or not self.rows:
            self.discard()
            return None
        self.spool.finish()
        found = SpooledTransaction(
            xid=xid,
            position=position,
            commit_ts=commit_ts,
            rows=self.rows,
            spool=self.spool.name,
            aborted=frozenset(self.aborted),
            shapes=frozenset(table for tables in self._committed_parts() for table in tables),
            truncated=frozenset(table for part, table in self.truncated if part not in self.aborted),
            partial=self._partial_keys(),
            origin=origin,
        )
        return self.tables_apart.divide(found)

    def _partial_keys(self) -> dict[TableId, KeySet]:
        aborted = np.fromiter(self.aborted, np.uint64, len(self.aborted))
        out: dict[TableId, KeySet] = {}
        for table, parts in self.partial.items():
            kept = (KeySet(keys.filter(pa.array(~np.isin(mine, aborted)))) for keys, mine in parts)
            found = [keys for keys in kept if len(keys)]
            if found:
                out[table] = found[0].union(*found[1:])
        return out
