"""Writes an attempt's rows into the log: they are appended, cut, made durable, and only then acknowledged to the
source."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from threading import Event

import numpy as np

from cdcflow.capture.durability import Durability
from cdcflow.capture.interleave.messages import Answered, Append, Cut
from cdcflow.capture.observations import Observed
from cdcflow.capture.ports.log import Log, Numbered
from cdcflow.capture.ports.stream import Stream
from cdcflow.capture.threads import Clock
from cdcflow.model.change import HeldRun, Run, SpooledTransaction, commit_clock
from cdcflow.model.position import Checkpoint

OnAnswer = Callable[[Answered, bool], None]
"""Gets a command's outcomes and whether its record is durable: called once when it is carried out, once when durable.
"""

UNSYNCED_BYTES_MAX = 256 << 20
"""Stop reading the source while this much is appended and not yet durable: the disk sets the pace then."""
UNSEALED_MAX = 16
"""Stop reading the source while more than this many closed journals wait to be sealed.

A merge reads only what is sealed, and a daemon that is stopped seals the rest first.
"""
SMALL_BYTES_MAX = 64 << 10
"""A cut with more bytes than this is passed to the syncing thread at once, so that the disk writes during the rest of
the turn."""


class Recording:
    """Appends to the log, makes cuts durable, and acknowledges them to the source. Used by the loop's thread.

    `checkpoint`: the latest cut's checkpoint, with the fields to store in the next one; `acknowledged`: the latest
    checkpoint that was acknowledged to the source; `rows` counts the appended rows.
    """

    def __init__(
        self,
        log: Log,
        stream: Stream,
        durability: Durability,
        observed: Observed,
        checkpoint: Checkpoint,
        clock: Clock,
        on_answer: OnAnswer,
        seal_wanted: Event,
    ) -> None:
        """`seal_wanted`: set by another thread that waits for a segment; cleared when the journal is closed for it."""
        self._seal_wanted = seal_wanted
        self._log = log
        self._stream = stream
        self._durability = durability
        self._observed = observed
        self._clock = clock
        self._on_answer = on_answer
        self.checkpoint = checkpoint
        self.acknowledged = checkpoint
        self.rows = {"captured": 0, "read": 0}
        self._answered: list[Answered] = []
        self._unsynced: deque[tuple[int, int]] = deque()  # (cut number, bytes appended before it)
        self._bytes_since_cut = 0
        self._is_due = False

    @property
    def is_behind(self) -> bool:
        """Whether too much data waits for the disk or to be sealed, so that nothing more should be read."""
        return self._unsynced_bytes() > UNSYNCED_BYTES_MAX or self._durability.unsealed_journals > UNSEALED_MAX

    def append(self, append: Append) -> None:
        run = append.run
        assert isinstance(run, Run | SpooledTransaction | HeldRun)  # noqa: S101 - the product's kinds of Transactions
        stamps = run.commit_ts if isinstance(run, Run) else np.array([run.commit_ts], np.int64)
        clock = commit_clock(self.checkpoint.commit_clock, stamps)
        self._log.append(Numbered(run, append.first_offset, append.first_transaction, clock))
        self.checkpoint = replace(self.checkpoint, commit_clock=int(clock[-1]))
        self._bytes_since_cut += self._observed.record_append(run)
        self.rows["read" if run.kind == "read" else "captured"] += run.rows

    def cut(self, cut: Cut) -> None:
        self.checkpoint = replace(
            self.checkpoint,
            position=cut.position,
            next_offset=cut.next_offset,
            next_transaction=cut.next_transaction,
            cut=cut.number,
            progress=cut.progress,
            # The clock only moves forward. A transaction that commits later gets a later clock (`commit_clock`), so no
            # more transactions can get a time up to this clock.
            commit_clock=max(self.checkpoint.commit_clock, cut.commit_ts),
        )
        self._log.cut(self.checkpoint)
        self._observed.cut(cut.number)
        self._unsynced.append((cut.number, self._bytes_since_cut))
        self._bytes_since_cut = 0
        self._is_due = True
        if self._unsynced_bytes() > SMALL_BYTES_MAX:
            self._ask_sync()
        self.roll_if_due(self._clock())

    def record_answer(self, answer: Answered) -> None:
        """Note that a command was carried out, so that its caller is notified when its record is durable."""
        self._answered.append(answer)
        self._on_answer(answer, False)

    def roll_if_due(self, now_s: float) -> None:
        """Close the journal for sealing, if it is time or a merge waits for its rows. Called between two cuts only.

        Without a row nothing can be sealed: a merge that waits then gets the first rows that arrive.
        """
        if self._bytes_since_cut:
            return
        is_due = self._log.seal_due(now_s)
        if (is_due or self._seal_wanted.is_set()) and self._log.roll():
            self._seal_wanted.clear()
            is_due = True
        if is_due:
            self._durability.ask_seal()

    def make_durable(self) -> None:
        """Sync the cuts of this turn: in this thread if nothing waits to be read and the disk is quick, otherwise in
        another."""
        if self._is_due and (self._stream.ready or not self._durability.sync_now()):
            self._ask_sync()
        self._is_due = False

    def acknowledge(self) -> None:
        # The server drops log that it believes we have. Only a checkpoint that `sync` has returned may be acknowledged:
        # too early an acknowledgement loses data in the next crash, and nothing would report it.
        durable = self._durability.durable
        if durable is self.acknowledged or durable.position is None:
            return
        self.acknowledged = durable
        self._observed.durable(durable.cut)
        while self._unsynced and self._unsynced[0][0] <= durable.cut:
            self._unsynced.popleft()
        self._stream.acknowledge(durable.position)
        self._tell_kept(durable)

    def _tell_kept(self, durable: Checkpoint) -> None:
        """Notify the callers of commands whose records are durable."""
        if not self._answered:
            return
        kept = durable.progress.get("commands", {})
        assert isinstance(kept, dict)  # noqa: S101 - cdcflow's own progress JSON
        for answer in [a for a in self._answered if str(a.number) in kept]:
            self._answered.remove(answer)
            self._on_answer(answer, True)

    def _ask_sync(self) -> None:
        self._is_due = False
        self._durability.ask_sync()

    def _unsynced_bytes(self) -> int:
        return sum(size for _, size in self._unsynced) + self._bytes_since_cut
