"""Marks and times as places in the log that a standby replays: on a standby nothing can be written.

    chunks ──expect(token, replayed end)──▶ ExpectedMarks ◀── pending ── PlacedMarks ◀── the stream's events
                                                                             └──▶ events with marks among them

A mark has a bound. The stream reports it after each commit that begins before the bound, and before the first one that
begins there or later. What a session sees when the mark is requested is before the bound, so a chunk that is read
afterwards misses nothing that was delivered before the mark. No mark has a bound below what a chunk may have seen
(`look_beyond`): a chunk is used only after the stream has delivered all of that.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError
from cdcflow.model.change import Int64s, Uint64s
from cdcflow.model.position import Token
from cdcflow.sources.postgres.lsn import Lsn, lsn_of, position_of
from cdcflow.sources.postgres.replay_fences import DeliveredCommits


@dataclass(frozen=True, slots=True)
class ExpectedMark:
    """An event to report at a bound: a mark, or (`token` None) that the primary had committed something at `commit_ts`
    (µs since 1970)."""

    bound: Lsn
    token: Token | None
    commit_ts: int = 0


class ExpectedMarks:
    """The marks and times of one run that its stream has yet to report. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: list[ExpectedMark] = []
        self._beyond = Lsn(0)
        self._failure: CdcflowError | None = None

    def expect(self, token: Token, replayed: Lsn) -> None:
        """Have the stream report a mark after everything that is visible at this replayed end."""
        with self._lock:
            self._marks.append(ExpectedMark(max(replayed, self._beyond), token))

    def expect_time(self, commit_ts: int, replayed: Lsn) -> None:
        """Have the stream report the commit time of a transaction that ends before this replayed end."""
        with self._lock:
            self._marks.append(ExpectedMark(replayed, None, commit_ts))

    def look_beyond(self, unseen: Lsn) -> None:
        """Place later marks after `unseen`: a chunk's snapshot may see commits that begin before it."""
        with self._lock:
            self._beyond = max(self._beyond, unseen)

    def fail(self, error: CdcflowError) -> None:
        """Have the stream end with this error, because the server is no longer a standby."""
        with self._lock:
            self._failure = self._failure or error

    def check(self) -> None:
        """Raise the error that `fail` was called with, if it was."""
        if self._failure is not None:
            raise self._failure

    def next_bound(self) -> Lsn | None:
        """Return the lowest bound of a mark; None without marks."""
        with self._lock:
            return min((mark.bound for mark in self._marks), default=None)

    def take(self, upto: Lsn) -> list[ExpectedMark]:
        """Remove and return the marks through this bound, in the order in which they were requested."""
        with self._lock:
            found = [mark for mark in self._marks if mark.bound <= upto]
            self._marks = [mark for mark in self._marks if mark.bound > upto]
        return found


class PlacedMarks:
    """Places the expected marks among the events of one stream, which begins at `position`. Used by the stream's
    thread only."""

    def __init__(self, expected: ExpectedMarks, commits: DeliveredCommits, position: Lsn) -> None:
        self._expected = expected
        self._commits = commits
        self._reached = self._passed = position
        self._commit_ts = 0
        self._recent: list[Int64s] = []

    def add(self, xids: Uint64s, begins: Int64s) -> None:
        """Note transactions that were decoded, in the order of the log; their events follow at the next call of
        `place`."""
        self._commits.add(xids, begins)
        self._recent.append(begins)

    def restart(self) -> None:
        """Discard transactions that `add` noted and whose events have not been placed: the stream begins again after
        the delivered ones."""
        self._recent, self._passed = [], self._reached

    def place(self, events: Sequence[StreamEvent], passed: Lsn) -> list[StreamEvent]:
        """Return these events, with the marks that are due.

        `passed`: the server has sent each commit that ends at this position or earlier, and all of them are among these
        and earlier events.

        Raises:
            SourceUnavailable: the server is no longer a standby.
        """
        self._expected.check()
        begins = np.concatenate(self._recent) if self._recent else np.empty(0, np.int64)
        self._recent = []
        placed = self._due(self._passed)
        for event in events:
            if isinstance(event, Committed):
                count = event.run.transactions
                placed += self._split(event, begins[:count])
                begins = begins[count:]
            else:
                placed.append(event)
                self._reach(event)
            placed += self._due(self._reached)
        self._passed = max(self._passed, self._reached, passed)
        return placed + self._due(self._passed)

    def _split(self, event: Committed, begins: Int64s) -> list[StreamEvent]:
        """Split the transactions of an event at the marks that come before the last one, and return both in order."""
        placed: list[StreamEvent] = []
        rest = event.run
        while (bound := self._expected.next_bound()) is not None and bound.value <= begins[-1]:
            count = int(np.searchsorted(begins, bound.value))
            if count:
                head, rest = rest.split_at(count)
                begins = begins[count:]
                placed.append(Committed(head))
                self._reach(placed[-1])
            placed += self._due(bound)
        placed.append(event if rest is event.run else Committed(rest))
        self._reach(placed[-1])
        return placed

    def _reach(self, event: StreamEvent) -> None:
        match event:
            case Committed(run):
                self._reached, self._commit_ts = lsn_of(run.last_position), run.last_commit_ts
            case Advanced(position) | MarkSeen(position=position):
                self._reached = max(self._reached, lsn_of(position))

    def _due(self, upto: Lsn) -> list[StreamEvent]:
        marks = self._expected.take(upto)
        at = position_of(self._reached)
        seen: list[StreamEvent] = [MarkSeen(m.token, at, self._commit_ts) for m in marks if m.token is not None]
        times = [mark.commit_ts for mark in marks if mark.token is None]
        return [*seen, Advanced(at, max(times))] if times else seen
