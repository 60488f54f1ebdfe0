"""Proves each table's freshness, instead of assuming it from an open connection.

With a stream that sends nothing for a table, everything appears healthy: the table may be idle, or it may have left the
publication. A canary distinguishes the two. Periodically:

    T      read the clock, then query the source's catalog: do the changes of each captured table reach cdcflow?
    mark   commit a mark, which arrives through the same slot, after everything committed before T
    proof  the mark was seen, and what came before it is durable: covered tables are fresh as of T

That a table is covered does not mean that every change of it is logged: a MySQL session may switch that off. So each
canary also takes a digest of a few rows of one table in turn, before its mark. If the digest differs from the table's
last one, and the stream delivered no change of the table up to the mark, its rows changed without being logged. A
change that was streamed before it could be seen (a commit that waits for a replica) counts for the next digest, too.

Between two proofs a table that had changes is `fresh`. A table without changes is `quiet`: it is known that nothing was
changed in it. Every other table is `not proven`, with the reason. Pure except for the queries in `look`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.source import Covering, Sample, Sampled, Source
from cdcflow.errors import CdcflowError
from cdcflow.model.position import Epoch, Token
from cdcflow.model.table import Table, TableId, word

CAUSES = ("outage", "uncovered", "backfill", "late")
"""Why a table is not proven:

nothing is captured; its changes do not reach cdcflow; its existing rows are not all read; no mark has arrived for too
long.
"""
LATE_S = 90.0
"""A proof that is older than this, and than three canaries, no longer counts."""


@dataclass(slots=True)
class _Canary:
    """A mark that is on its way through the source's log.

    `cut`: once this cut is durable, everything before the mark is durable too. None until the mark was seen, and while
    a window still holds back rows that precede the mark.
    """

    token: Token
    as_of: float
    covered: frozenset[TableId]
    seen: bool = False
    windows: int = 0
    cut: int | None = None
    sampled: _Sampled | None = None


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A sample of a table's rows. `moved`: the stream has delivered changes of the table since its previous sample.

    `generation` counts the table's backfills: a backfill that reads the table again makes up for changes that were
    missed.
    """

    table: TableId
    sample: Sample
    moved: bool
    generation: int


class Freshness:
    """Sends the canaries of a capture, and holds what they have proven. `wall` returns seconds since 1970.

    `look` is called from a task's thread, `states` from any, the other methods from the loop's. It outlives attempts:
    what was proven before an outage stays known.
    """

    def __init__(self, every_s: float, wall: Callable[[], float] = time.time) -> None:
        self.every_s = every_s
        self._wall = wall
        self._lock = threading.Lock()
        self._prefix = ""
        self._number = 0
        self._tables: tuple[Table, ...] = ()
        self._canary: _Canary | None = None
        self._uncovered: Mapping[TableId, str] = {}
        self._unasked: str | None = None
        self._fresh_as_of: dict[TableId, float] = {}
        self._changed: set[TableId] = set()
        self._active: frozenset[TableId] = frozenset()
        self._turn = 0
        self._moved: set[TableId] = set()  # since their last sample
        self._samples: dict[TableId, _Sampled] = {}
        self._unlogged: dict[TableId, int] = {}  # with the generation in which that was found

    def begin(self, tables: Sequence[Table], epoch: Epoch) -> None:
        """Begin a new attempt, which captures these tables. Marks of the previous attempt are ignored from now on."""
        with self._lock:
            self._tables, self._prefix, self._canary = tuple(tables), f"canary {epoch}", None
            self._uncovered, self._unasked = {}, None
            known = {t.id for t in tables}
            self._fresh_as_of = {t: at for t, at in self._fresh_as_of.items() if t in known}

    # ── querying ────────────────────────────────────────────────────────────────────────────────────────────

    def look(self, source: Source, chunks: ChunkSource, progress: Progress) -> None:
        """Query which tables' changes reach cdcflow, then send a mark unless an earlier mark has not arrived yet."""
        as_of = self._wall()
        try:
            uncovered = self._query_uncovered(source)
            sampled = self._sample(source, progress) if self._canary is None else None
            token = self._send_mark(as_of, uncovered, sampled)
            if token is not None:
                chunks.write_mark(token)
        except CdcflowError as error:
            # The stream or the heartbeat has the same problem, and ends the attempt if necessary.
            with self._lock:
                self._unasked = str(error).split("\n")[0]
                if self._canary is not None and not self._canary.seen:
                    self._canary = None  # it may never have been written

    def _query_uncovered(self, source: Source) -> Mapping[TableId, str]:
        with self._lock:
            wanted = {t.id: t.incarnation for t in self._tables}
        if not isinstance(source, Covering):
            return dict.fromkeys(wanted, "this source cannot tell whether the table's changes reach cdcflow")
        return source.coverage(wanted)

    def _sample(self, source: Source, progress: Progress) -> _Sampled | None:
        """Sample some rows of the table whose turn it is. None if no table has a key and was read completely, or if the
        source cannot return a sample."""
        with self._lock:
            tables = [t for t in self._tables if t.key and _is_done(t.id, progress)]
            if not tables or not isinstance(source, Sampled):
                return None
            self._turn += 1
            table = tables[self._turn % len(tables)]
            # Before the rows are read: a change that arrives during the read also counts for the next sample.
            moved = table.id in self._moved
            self._moved.discard(table.id)
        try:
            found = source.sample(table.id, table.key)
        except CdcflowError:
            found = None  # a right, a lock, a large row: the canary runs without it
        if found is None:
            self._samples.pop(table.id, None)
            return None
        return _Sampled(table.id, found, moved, progress.tables[table.id].generation)

    def _send_mark(self, as_of: float, uncovered: Mapping[TableId, str], sampled: _Sampled | None) -> Token | None:
        with self._lock:
            self._uncovered, self._unasked = uncovered, None
            if self._canary is not None:
                # A mark is under way already. A table that was covered when it was sent but is not now may have lost
                # changes in between, so the mark does not prove it.
                self._canary.covered -= uncovered.keys()
                return None
            self._number += 1
            covered = frozenset(t.id for t in self._tables) - uncovered.keys()
            self._canary = _Canary(Token(f"{self._prefix} {self._number}"), as_of, covered, sampled=sampled)
            return self._canary.token

    # ── from the stream ─────────────────────────────────────────────────────────────────────────────────────

    def tables_changed(self, tables: Iterable[TableId]) -> None:
        """Note that the stream delivered changes of these tables."""
        with self._lock:
            self._changed.update(tables)
            self._moved.update(tables)

    def mark_arrived(self, token: Token, windows: int) -> None:
        """Note that a mark arrived. `windows`: how many windows of this capture were closed before it."""
        canary = self._canary
        if canary is not None and canary.token == token:
            canary.seen, canary.windows = True, windows

    @property
    def awaits_durability(self) -> bool:
        """Whether a mark was seen, and what precedes it may not be durable yet."""
        return self._canary is not None and self._canary.seen

    def settle(self, *, held: bool, windows: int, next_cut: int, durable_cut: int) -> None:
        """Record a proof if a mark was seen and everything before it is durable. `held`: a window holds rows back,
        maybe from before the mark.

        `next_cut`: once this cut is durable, everything appended so far is durable too.
        """
        canary = self._canary
        if canary is None or not canary.seen:
            return
        if canary.cut is None and (not held or windows > canary.windows):
            canary.cut = next_cut
        if canary.cut is not None and durable_cut >= canary.cut:
            self._prove(canary)

    def _prove(self, canary: _Canary) -> None:
        with self._lock:
            for table in canary.covered:
                self._fresh_as_of[table] = canary.as_of
            self._active, self._changed = frozenset(self._changed), set()
            self._canary = None
            if canary.sampled is not None:
                self._compare(canary.sampled)

    def _compare(self, now: _Sampled) -> None:
        """Compare a table's sample with its previous one, and note if its rows changed without a change in the
        stream."""
        before, self._samples[now.table] = self._samples.get(now.table), now
        if before is None or before.generation != now.generation or before.sample.shape != now.sample.shape:
            return
        witnessed = before.moved or now.moved or now.table in self._moved
        if before.sample.digest != now.sample.digest and not witnessed:
            self._unlogged[now.table] = now.generation

    # ── reporting ───────────────────────────────────────────────────────────────────────────────────────────

    def states(self, progress: Progress, interrupted: str | None = None) -> dict[str, dict[str, object]]:
        """Return, for each table, `freshness`, `fresh_as_of` (seconds since 1970; None if nothing was proven yet),
        `freshness_reason`, and `freshness_cause`, which is one of `CAUSES` if the freshness is not proven.

        `interrupted`: why nothing is captured currently.
        """
        now = self._wall()
        with self._lock:
            return {str(t.id): self._state(t.id, progress, interrupted, now) for t in self._tables}

    def _state(self, table: TableId, progress: Progress, interrupted: str | None, now: float) -> dict[str, object]:
        as_of = self._fresh_as_of.get(table)
        uncovered = self._uncovered.get(table) or self._unlogged_reason(table, progress)
        reasons = (interrupted, uncovered, _unread(table, progress), self._late(as_of, now))
        cause, reason = next(((c, r) for c, r in zip(CAUSES, reasons, strict=True) if r), (None, None))
        found = "not proven" if reason else "fresh" if table in self._active else "quiet"
        return {"freshness": found, "fresh_as_of": as_of, "freshness_reason": reason, "freshness_cause": cause}

    def _unlogged_reason(self, table: TableId, progress: Progress) -> str | None:
        known = progress.tables.get(table)
        if table not in self._unlogged or (known is not None and known.generation > self._unlogged[table]):
            return None
        return f"its rows changed at the source, but no change arrived; run `cdcflow backfill {word(table)}`"

    def _late(self, as_of: float | None, now: float) -> str | None:
        late_s = max(LATE_S, 3 * self.every_s)
        if as_of is not None and now - as_of <= late_s:
            return None
        if self._unasked is not None:
            return f"the source could not be queried: {self._unasked}"
        if self._canary is not None and not self._canary.seen:
            if as_of is None and now - self._canary.as_of <= late_s:
                return "the first mark is on its way"
            return f"a mark sent {now - self._canary.as_of:.0f} s ago has not returned through the log"
        return "no mark has been sent yet" if as_of is None else f"the last proof is {now - as_of:.0f} s old"


def _unread(table: TableId, progress: Progress) -> str | None:
    """Return why some of a table's rows may be wrong or missing in the log although its changes are fresh; None if all
    are right."""
    known = progress.tables.get(table)
    if known is not None and known.lacks_changes:
        return f"its changes cannot leave the source; fix the cause, and run `cdcflow backfill {word(table)}`"
    if known is not None and known.gap is not None and known.gap.is_open:
        return f"changes of it are missing until it is read again ({known.state})"
    if known is not None and known.in_doubt:
        why = "it was attached" if known.has_base else "changes of it were lost"
        return f"{why}, and its rows are unverified; run `cdcflow repair {word(table)}`"
    if known is not None and known.stale:
        what = f"it is read again ({known.state})" if known.active else f"run `cdcflow backfill {word(table)}`"
        return f"statements on other tables may have changed its rows; {what}"
    if known is None or known.state == "done" or known.whole_since is not None:
        return None
    return f"its existing rows are not all in the log ({known.state})"


def _is_done(table: TableId, progress: Progress) -> bool:
    known = progress.tables.get(table)
    return known is not None and known.state == "done"


def tables_of(run: object) -> Collection[TableId]:
    """Return the tables with rows in a run or a spooled transaction."""
    batches = getattr(run, "batches", None)
    if batches is not None:
        return {batch.table.id for batch in batches}
    return {table.id for table in getattr(run, "shapes", ())}
