"""The shape of a relation, cdcflow's marks, and a transaction whose rows go into a spool, as pgoutput has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdcflow.model.table import TableId
from cdcflow.sources.engine.spooled import SpooledRows
from cdcflow.sources.postgres.decoders import Layout
from cdcflow.sources.postgres.types import DescribedTable
from cdcflow.sources.postgres.wire import Relation


@dataclass(frozen=True, slots=True)
class RelationShape:
    """A relation as one message describes it, for the rows after that message; `layout` is for the compiled
    decoders."""

    relation: Relation
    described: DescribedTable
    layout: Layout | None = field(default=None, compare=False)

    @property
    def in_identity(self) -> tuple[bool, ...]:
        """Which columns the old rows carry that are not whole."""
        if self.relation.identity == "f":
            return tuple(c.name in self.described.table.key for c in self.relation.columns)
        return tuple(c.in_identity for c in self.relation.columns)


Shapes = dict[int, RelationShape]


@dataclass(frozen=True, slots=True)
class SpooledMark:
    """A message with cdcflow's prefix for marks or for purges. `at`: its number in the frames; `subxid`: 0 if the
    transaction is not streamed."""

    at: int
    subxid: int
    content: bytes


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows of a table that could not be decoded. `is_checked`: the checks of the tables show the reason, too; `subxid`:
    as in `SpooledMark`."""

    table: TableId
    reason: str
    is_checked: bool
    subxid: int = 0


@dataclass(slots=True)
class PendingTransaction(SpooledRows):
    """A transaction that goes into a spool, because it is streamed before its commit, or too large to be kept in memory
    until its commit arrives.

    Its parts are sub-transactions (0 if it is not streamed). `shapes` apply inside it, and `described` are all
    relations that were described before its commit, each with its message; `partitions` those that directly followed
    a captured table, each with the number of that table. `refused`: the rows that could not be decoded, by
    sub-transaction and table. They are reported with the commit: a table that is read again before it would lack them
    without a report.
    """

    xid: int = 0
    shapes: Shapes = field(default_factory=dict)
    described: list[tuple[Relation, RelationShape]] = field(default_factory=list)
    partitions: list[tuple[int, Relation]] = field(default_factory=list)
    marks: list[SpooledMark] = field(default_factory=list)
    purges: list[SpooledMark] = field(default_factory=list)
    refused: dict[tuple[int, TableId], RefusedRows] = field(default_factory=dict)
    origin: str | None = None

    def roll_back(self, subxid: int) -> None:
        """Roll back a sub-transaction. The server then forgets which shapes it sent, and so does cdcflow."""
        self.shapes.clear()
        if subxid in self.counts:
            self.aborted.add(subxid)
        self.marks = [m for m in self.marks if m.subxid != subxid]
        self.purges = [m for m in self.purges if m.subxid != subxid]
        self.refused = {at: r for at, r in self.refused.items() if r.subxid != subxid}
