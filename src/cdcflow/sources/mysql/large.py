"""Transactions whose rows do not wait in memory, and XA transactions that wait for their second half.

A large transaction goes into a spool piece by piece while it arrives. ROLLBACK TO takes back the rows since a
savepoint, so rows are counted by segment: each SAVEPOINT and ROLLBACK TO begins a new one, and what is taken back are
whole segments. Segments are what the spool knows as sub-transactions.

An XA transaction that is prepared may be committed or rolled back much later, with others in between (hard case M45).
Its rows are held until then; a restart reads from before the oldest one again (`BinlogPosition.xa`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdcflow.model.change import KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import TableId
from cdcflow.sources.engine.spooled import SpooledRows
from cdcflow.sources.mysql.position import BinlogPosition
from cdcflow.sources.mysql.row_events import Incomplete


@dataclass(slots=True)
class Large(SpooledRows):
    """A transaction that goes into a spool. Its parts are segments; `savepoints` has the one that each savepoint
    began. `incomplete` are the rows that must be read by key, with the segment of each."""

    segment: int = 0
    savepoints: dict[str, int] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    incomplete: list[tuple[Incomplete, Uint64s]] = field(default_factory=list)

    def save(self, name: str) -> None:
        """SAVEPOINT: a new segment begins here."""
        self.segment += 1
        self.savepoints[name.lower()] = self.segment

    def take_back(self, name: str) -> None:
        """ROLLBACK TO: all segments since the savepoint are taken back, and a new one begins."""
        self.aborted |= set(range(self.savepoints.get(name.lower(), 0), self.segment + 1))
        self.segment += 1

    def incomplete_keys(self) -> dict[TableId, KeySet]:
        """The rows that must be read by key, once the transaction is committed; without what was taken back."""
        aborted = np.fromiter(self.aborted, np.uint64, len(self.aborted))
        return keys_by_table(
            (found.table, found.keys.filter(pa.array(~np.isin(segments, aborted))))
            for found, segments in self.incomplete
        )


def keys_by_table(found: Iterable[tuple[TableId, pa.RecordBatch]]) -> dict[TableId, KeySet]:
    """Keys of several batches as one set a table."""
    out: dict[TableId, KeySet] = {}
    for table, batch in found:
        if batch.num_rows:
            keys = KeySet(pa.Table.from_batches([batch]))
            out[table] = out[table].union(keys) if table in out else keys
    return out


@dataclass(frozen=True, slots=True)
class Held:
    """A prepared XA transaction, and the place to read it from again."""

    large: Large
    again: BinlogPosition

    def committed(self, xid: int, position: Position, commit_ts: int) -> Run | SpooledTransaction | None:
        """The transaction, decided by XA COMMIT at this place; None when it has no rows of ours."""
        return self.large.committed(xid, position, commit_ts)

    def incomplete_keys(self) -> dict[TableId, KeySet]:
        return self.large.incomplete_keys()
