"""One window: its marks, the chunks between them, and the transactions that the stream has delivered since the low
mark.

It answers questions about one window. `cdcflow.capture.interleave.window_sequence` decides when to open or close one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Transactions, Visibility
from cdcflow.model.change import Uint64s
from cdcflow.model.position import Epoch, Token
from cdcflow.model.table import TableId

End = Literal["low", "high"]


def token(epoch: Epoch, number: int, end: End) -> Token:
    """Return the text of a mark. It begins with the epoch, because after a restart, marks of an earlier run arrive
    again."""
    return Token(f"{epoch}/{number}/{end}")


def window_number(token: Token, epoch: Epoch) -> int | None:
    """Return the number of the window that a mark belongs to; None if the mark is not one of this epoch's."""
    parts = token.text.split("/")
    if len(parts) != 3 or parts[0] != str(epoch) or parts[2] not in ("low", "high") or not parts[1].isdecimal():
        return None
    return int(parts[1])


@dataclass(slots=True)
class Window:
    """An open window: the chunks between its two marks, and the transactions that wait for them.

    `chunks`: the chunks that were not abandoned. `reads`: the chunks that were read so far. `before`: the ids delivered
    before the low mark, in stream order; None until it has arrived. `held`: the transactions that wait, in order,
    beginning with the first that touches a table of the window. `live`: transactions have arrived since the window was
    opened, whichever tables they touch. `opened_us`: the time at which it was opened.
    """

    number: int
    low: Token
    high: Token
    chunks: dict[TableId, Chunk]
    reads: dict[TableId, ChunkRead] = field(default_factory=dict)
    before: Uint64s | None = None
    held: list[Transactions] = field(default_factory=list)
    held_bytes: int = 0
    live: bool = False
    opened_us: int = 0
    low_written: bool = False
    high_asked: bool = False

    @property
    def tables(self) -> frozenset[TableId]:
        return frozenset(self.chunks)

    def hold(self, run: Transactions) -> None:
        self.held.append(run)
        self.held_bytes += run.bytes

    def drop(self, table: TableId) -> Chunk:
        self.reads.pop(table, None)
        return self.chunks.pop(table)

    def passing(self) -> list[Transactions]:
        """Remove and return the held transactions that need not wait: those before the first that touches a table of
        the window."""
        taken: list[Transactions] = []
        while self.held:
            count = self.held[0].first_touching(self.tables)
            if count == 0:
                break
            if count is None:
                taken.append(self.held.pop(0))
            else:
                first, self.held[0] = self.held[0].split_at(count)
                taken.append(first)
        self.held_bytes = sum(run.bytes for run in self.held)
        return taken

    def conflict(self, table: TableId, runs: Sequence[Transactions]) -> str | None:
        """Return why the table's chunk cannot precede these held transactions; None if it can."""
        if any(run.truncates(table) for run in runs):
            return "truncated in the window"
        read = self.reads.get(table)
        if read is not None and any(run.shapes_of(table) - {read.shape} for run in runs):
            return "shape changed in the window"
        return None

    def held_before(self, table: TableId) -> int | None:
        """Return how many of the held transactions precede the table's chunk; None if no number is right.

        It is 0 (at the low mark, before all of them) wherever it does no harm to replay transactions that the chunk has
        already seen. It does harm to a table without a key, whose rows a replay cannot find. And a key change that
        omits columns takes them from the row of its old key: replayed over a chunk, it would take them from whatever
        row has that key in the chunk. In both cases the chunk must be exactly between the transactions that its
        snapshots saw and those that they did not.
        """
        if self.chunks[table].kind != "whole" and all(run.moved_keys(table) is None for run in self.held):
            return 0
        counts = {held_before(table, self.held, v) for v in self.reads[table].visibilities}
        return counts.pop() if len(counts) == 1 else None

    def hidden_xids(self, table: TableId) -> Uint64s:
        """Return the transactions delivered before the low mark that some snapshot of the table's chunk did not see."""
        if self.before is None or table not in self.reads or not self.reads[table].visibilities:
            return np.empty(0, np.uint64)
        return np.unique(np.concatenate([v.hidden(self.before) for v in self.reads[table].visibilities]))


def held_before(table: TableId, held: Sequence[Transactions], visibility: Visibility) -> int | None:
    """Return how many held transactions precede a chunk.

    The chunk must follow every transaction that touches its table and that the snapshot saw, and precede every one that
    it did not see. None if there is no such number, because commits became visible in another order than they were
    logged.
    """
    count = start = 0
    hidden = False
    for run in held:
        rest, at = run, start
        while (number := rest.first_touching(frozenset((table,)))) is not None:
            upto, rest = rest.split_at(number + 1)
            at += number + 1
            one = upto.split_at(number)[1]
            if len(visibility.hidden(one.xids)):
                hidden = True
            elif hidden:
                return None
            else:
                count = at
        start += run.transactions
    return count


def split_runs(runs: Sequence[Transactions], count: int) -> tuple[list[Transactions], list[Transactions]]:
    """Split consecutive runs after their first `count` transactions."""
    first: list[Transactions] = []
    rest: list[Transactions] = []
    for run in runs:
        if count >= run.transactions:
            first.append(run)
            count -= run.transactions
        elif count == 0:
            rest.append(run)
        else:
            head, tail = run.split_at(count)
            first.append(head)
            rest.append(tail)
            count = 0
    return first, rest
