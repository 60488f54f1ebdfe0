"""A transaction too large for memory: what must be known of it while its rows go into a spool.

Its rows may still be taken back, one sub-transaction at a time, so everything is counted by sub-transaction. Once it
is committed, what is left answers the questions that the interleave machine asks of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import ChangeBatch, KeySet, Uint64s
from cdcflow.model.table import OP, UNCHANGED, Table, TableId
from cdcflow.ports import Spool
from cdcflow.sources.buffers import Bools
from cdcflow.sources.postgres.messages import Relation
from cdcflow.sources.postgres.twins import Layout
from cdcflow.sources.postgres.types import DescribedTable


@dataclass(frozen=True, slots=True)
class Shape:
    """A relation as it holds from one place in the messages on; `layout` is for the compiled decoders."""

    relation: Relation
    described: DescribedTable
    layout: Layout | None = field(default=None, compare=False)

    @property
    def in_identity(self) -> tuple[bool, ...]:
        return tuple(c.in_identity for c in self.relation.columns)


Shapes = dict[int, Shape]


@dataclass(frozen=True, slots=True)
class Mark:
    """A message with our prefix, at its place in the frames; `subxid` 0 where the transaction is not streamed."""

    at: int
    subxid: int
    content: bytes


@dataclass(slots=True)
class Large:
    """A transaction that goes into a spool: streamed before its commit, or too large to wait for it in memory.

    `counts` holds its rows by sub-transaction (0 where it is not streamed) and shape.
    """

    xid: int
    shapes: Shapes = field(default_factory=dict)
    spool: Spool | None = None
    counts: dict[int, dict[Table, int]] = field(default_factory=dict)
    truncated: set[tuple[int, TableId]] = field(default_factory=set)
    partial: dict[TableId, list[tuple[pa.Table, Uint64s]]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    marks: list[Mark] = field(default_factory=list)
    origin: str | None = None


def account(large: Large, batch: ChangeBatch, subxids: Uint64s | None) -> None:
    """Remember what a batch holds, by sub-transaction, so that rolled-back ones can be taken away again."""
    mine = np.zeros(len(batch.index), np.uint64) if subxids is None else subxids[batch.index]
    for sub, count in zip(*(a.tolist() for a in np.unique(mine, return_counts=True)), strict=True):
        counts = large.counts.setdefault(sub, {})
        counts[batch.table] = counts.get(batch.table, 0) + count
    ops = batch.rows.column(OP)
    emptied = pc.equal(ops, "t").to_numpy(zero_copy_only=False)
    large.truncated |= {(int(sub), batch.table.id) for sub in np.unique(mine[emptied])}
    unchanged = batch.rows.column(UNCHANGED)
    if unchanged.null_count == len(unchanged):
        return
    mask: Bools = pc.and_(pc.is_valid(unchanged), pc.not_equal(ops, "d")).to_numpy(zero_copy_only=False)
    if mask.any():
        keys = batch.rows.select(list(batch.table.key_columns)).filter(pa.array(mask))
        large.partial.setdefault(batch.table.id, []).append((pa.Table.from_batches([keys]), mine[mask]))


def partial_of(large: Large) -> dict[TableId, KeySet]:
    aborted = np.fromiter(large.aborted, np.uint64, len(large.aborted))
    out: dict[TableId, KeySet] = {}
    for table, parts in large.partial.items():
        kept = (KeySet(keys.filter(pa.array(~np.isin(subs, aborted)))) for keys, subs in parts)
        found = [keys for keys in kept if len(keys)]
        if found:
            out[table] = found[0].union(*found[1:])
    return out
