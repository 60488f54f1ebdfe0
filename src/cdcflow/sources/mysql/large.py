"""Transactions whose rows do not wait in memory, and XA transactions that wait for their second half.

A large transaction goes into a spool piece by piece while it arrives. ROLLBACK TO takes back the rows since a
savepoint, so rows are counted by segment: each SAVEPOINT and ROLLBACK TO begins a new one, and what is taken back are
whole segments. Segments are what the spool knows as sub-transactions.

An XA transaction that is prepared may be committed or rolled back much later, with others in between (hard case M45).
Its rows are held until then; a restart reads from before the oldest one again (`BinlogPosition.xa`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import ChangeBatch, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import OP, UNCHANGED, Table, TableId
from cdcflow.ports import OpenSpool, Spool
from cdcflow.sources.mysql.position import BinlogPosition


@dataclass(slots=True)
class Large:
    """A transaction that goes into a spool. `segments` holds its rows by segment and shape, `savepoints` the segment
    that each savepoint began, `aborted` the segments that were taken back."""

    segment: int = 0
    spool: Spool | None = None
    segments: dict[int, dict[Table, int]] = field(default_factory=dict)
    savepoints: dict[str, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    truncated: set[tuple[int, TableId]] = field(default_factory=set)
    partial: dict[TableId, list[tuple[pa.Table, Uint64s]]] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(sum(tables.values()) for tables in self._kept())

    @property
    def shapes(self) -> frozenset[Table]:
        return frozenset(table for tables in self._kept() for table in tables)

    def _kept(self) -> list[dict[Table, int]]:
        return [tables for segment, tables in self.segments.items() if segment not in self.aborted]

    def save(self, name: str) -> None:
        """SAVEPOINT: a new segment begins here."""
        self.segment += 1
        self.savepoints[name.lower()] = self.segment

    def take_back(self, name: str) -> None:
        """ROLLBACK TO: all segments since the savepoint are taken back, and a new one begins."""
        self.aborted |= set(range(self.savepoints.get(name.lower(), 0), self.segment + 1))
        self.segment += 1

    @property
    def tables(self) -> frozenset[TableId]:
        return frozenset(table.id for tables in self.segments.values() for table in tables)

    @property
    def taken_back(self) -> frozenset[TableId]:
        """The tables of which rows were taken back."""
        return frozenset(table.id for s in self.aborted for table in self.segments.get(s, ()))

    def write(self, open_spool: OpenSpool, batches: list[ChangeBatch], segments: Uint64s) -> None:
        """Put one piece into the spool. `segments` is each row's, in index order."""
        if not batches:
            return
        if self.spool is None:
            self.spool = open_spool()
        self.spool.write(batches, segments)
        for batch in batches:
            self._account(batch, segments[batch.index])

    def _account(self, batch: ChangeBatch, mine: Uint64s) -> None:
        for segment, count in zip(*(a.tolist() for a in np.unique(mine, return_counts=True)), strict=True):
            tables = self.segments.setdefault(segment, {})
            tables[batch.table] = tables.get(batch.table, 0) + count
        ops = batch.rows.column(OP)
        emptied = pc.equal(ops, "t").to_numpy(zero_copy_only=False)
        self.truncated |= {(int(s), batch.table.id) for s in np.unique(mine[emptied])}
        unchanged = batch.rows.column(UNCHANGED)
        if unchanged.null_count == len(unchanged):
            return
        mask = pc.and_(pc.is_valid(unchanged), pc.not_equal(ops, "d")).to_numpy(zero_copy_only=False)
        if mask.any():
            keys = batch.rows.select(list(batch.table.key_columns)).filter(pa.array(mask))
            self.partial.setdefault(batch.table.id, []).append((pa.Table.from_batches([keys]), mine[mask]))

    def discard(self) -> None:
        if self.spool is not None:
            self.spool.discard()

    def committed(self, xid: int, position: Position, commit_ts: int) -> SpooledTransaction | None:
        """The transaction, once it is known to be committed; None when no rows are left of it."""
        if self.spool is None or not self.rows:
            self.discard()
            return None
        self.spool.finish()
        return SpooledTransaction(
            xid=xid,
            position=position,
            commit_ts=commit_ts,
            rows=self.rows,
            spool=self.spool.name,
            aborted=frozenset(self.aborted),
            shapes=self.shapes,
            truncated=frozenset(table for segment, table in self.truncated if segment not in self.aborted),
            partial=self._partial_keys(),
        )

    def _partial_keys(self) -> dict[TableId, KeySet]:
        aborted = np.fromiter(self.aborted, np.uint64, len(self.aborted))
        out: dict[TableId, KeySet] = {}
        for table, parts in self.partial.items():
            kept = (KeySet(keys.filter(pa.array(~np.isin(segments, aborted)))) for keys, segments in parts)
            found = [keys for keys in kept if len(keys)]
            if found:
                out[table] = found[0].union(*found[1:])
        return out


@dataclass(frozen=True, slots=True)
class Held:
    """A prepared XA transaction, and the place to read it from again."""

    large: Large
    again: BinlogPosition

    def committed(self, xid: int, position: Position, commit_ts: int) -> Run | SpooledTransaction | None:
        """The transaction, decided by XA COMMIT at this place; None when it has no rows of ours."""
        return self.large.committed(xid, position, commit_ts)
