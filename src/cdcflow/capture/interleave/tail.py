"""The end of the change log: the next numbers to assign, and the effects that append to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cdcflow.capture.interleave.messages import Append, Cut, DiscardSpool, Effect, Transactions
from cdcflow.model.change import SpooledTransaction
from cdcflow.model.position import Offset, Position


@dataclass(slots=True)
class Tail:
    """The end of the change log: the next numbers to assign, and the source's position up to which everything is
    appended.

    `commit_ts`: the latest time of the source that arrived with such a position; 0 before the first one.
    """

    next_offset: Offset
    next_transaction: int
    cut: int
    position: Position | None
    commit_ts: int = 0
    effects: list[Effect] = field(default_factory=list)
    due: bool = False

    def append(self, run: Transactions) -> None:
        """Append transactions. One without rows adds nothing to the log and gets no number."""
        if run.rows:
            self.effects.append(Append(run, self.next_offset, self.next_transaction))
            self.next_offset = Offset(self.next_offset + run.rows)
            self.next_transaction += run.transactions
        elif isinstance(run, SpooledTransaction):
            self.effects.append(DiscardSpool(run.spool))

    def reach(self, position: Position, commit_ts: int = 0) -> None:
        """Record that everything up to this position is appended, and that a cut is due."""
        self.move(position, commit_ts)
        self.due = True

    def move(self, position: Position, commit_ts: int) -> None:
        """Record that everything up to this position is appended. This alone causes no cut; the next cut is at or after
        it."""
        self.position = position
        self.commit_ts = max(self.commit_ts, commit_ts)

    def append_all(self, runs: Iterable[Transactions]) -> None:
        for run in runs:
            self.append(run)

    def release(self, run: Transactions) -> None:
        """Append transactions that nothing holds up, and record that everything up to their end is appended."""
        self.append(run)
        self.reach(run.last_position)

    def make_cut(self, progress: dict[str, object]) -> None:
        """Cut after everything appended so far. Call it only once the source was read: before that the cut has no
        position."""
        assert self.position is not None  # noqa: S101 - the caller checks it
        self.cut += 1
        reached = self.position, self.next_offset, self.next_transaction
        self.effects.append(Cut(self.cut, *reached, progress, self.commit_ts))
        self.due = False
