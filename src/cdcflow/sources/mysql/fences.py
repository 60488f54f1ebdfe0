"""What a chunk's snapshot can see, bounded from two sides: the engine's and the binary log's. Pure.

A commit is written to the binary log first and becomes visible afterwards: after microseconds on a quiet server, or for
as long as a semi-synchronous replica makes it wait (hard case W03). So the reported end of the log (`SHOW BINARY LOG
STATUS`, `gtid_binlog_pos`) runs ahead of what a SELECT shows. The ids of transactions are coordinates
(`position.coordinate`): they grow in the order of the log.

On MariaDB a consistent snapshot has a position in the log: it sees everything before that position, and nothing after.

MySQL has no such position, but two bounds that hold whatever commits at the same time:

    `@@gtid_executed` read just before the snapshot     these are seen: the set grows after the engine's commit
    the log's end read just after the snapshot          later ones are not seen: they are logged before their commit

What happened in between is unknown, unless no transaction was being committed at that time; cdcflow retries for this
(`snapshots`). Otherwise both bounds go with the chunk, each as a separate fence. Where it matters, the machine places a
chunk only if both give it the same position; otherwise the chunk is read again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cdcflow.model.change import Int64s, Uint64s
from cdcflow.sources.engine.fences_in_use import FencesInUse
from cdcflow.sources.mysql.gtids import Gtids, GtidSet, MariadbGtids, MysqlGtids
from cdcflow.sources.mysql.position import Coordinate

NONE_HIDDEN = np.empty(0, np.uint64)
"""No transaction is hidden. What an earlier run delivered is visible when a run begins, because `preparation` waits for
that."""


@dataclass(frozen=True, slots=True)
class CoordinateVisibility:
    """Sees everything up to a position in the binary log, and nothing after it."""

    upto: Coordinate

    def hidden(self, xids: Uint64s) -> Uint64s:
        return xids[xids > np.uint64(self.upto.value)]

    def maybe_hidden(self) -> Uint64s:
        return NONE_HIDDEN


@dataclass(frozen=True, slots=True)
class GtidsSeen:
    """The visibility of a snapshot that was taken in a process without the stream. The process with the stream turns it
    into a fence."""

    executed: MysqlGtids

    def hidden(self, xids: Uint64s) -> Uint64s:
        raise TypeError("asked in a process that has no stream")

    def maybe_hidden(self) -> Uint64s:
        return NONE_HIDDEN


class NoStream:
    """Replaces `DeliveredGtids` in a process that reads for another process."""

    @contextlib.contextmanager
    def look(self) -> Iterator[None]:
        yield

    def fence(self, executed: MysqlGtids) -> GtidsSeen:
        return GtidsSeen(executed)


class GtidVisibility:
    """Sees the transactions of a set of GTIDs, and those that have no GTID."""

    def __init__(self, executed: GtidSet, delivered: DeliveredGtids) -> None:
        self._executed = executed
        self._delivered = delivered

    @property
    def executed_gtids(self) -> GtidSet:
        return self._executed

    def hidden(self, xids: Uint64s) -> Uint64s:
        return self._delivered.outside(self._executed, xids)

    def maybe_hidden(self) -> Uint64s:
        return NONE_HIDDEN


class DeliveredGtids(FencesInUse[GtidVisibility]):
    """Remembers the GTID of each delivered transaction, by its coordinate, while a fence may still need it.
    Thread-safe.

    Every later set of executed transactions contains the earlier ones, so transactions that all fences in use can see
    are forgotten.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[tuple[Uint64s, Gtids]] = []

    def __len__(self) -> int:
        return sum(len(c) for c, _ in self._parts)

    def add(self, coordinates: Uint64s, gtids: Gtids) -> None:
        """Remember transactions that were delivered, in the order of the log."""
        with self._lock:
            self._parts.append((coordinates, gtids))

    def fence(self, executed: GtidSet) -> GtidVisibility:
        """Return a fence for a snapshot that was taken after this set was read, within a `look`."""
        with self._lock:
            return self._use(GtidVisibility(executed, self))

    def outside(self, executed: GtidSet, xids: Uint64s) -> Uint64s:
        """Return those of these transactions that are not in the set.

        A transaction that is not remembered is in it: it was forgotten because every fence in use sees it, or it was
        delivered before this run, which waited for it.
        """
        with self._lock:
            parts = list(self._parts)
        lacking = [coordinates[are_outside(executed, gtids)] for coordinates, gtids in parts]
        if not lacking:
            return xids[:0]
        return xids[np.isin(xids, np.concatenate(lacking))]

    def _forget(self, fences: Sequence[GtidVisibility]) -> None:
        kept = []
        for coordinates, gtids in self._parts:
            lacking = np.logical_or.reduce([are_outside(fence.executed_gtids, gtids) for fence in fences])
            if lacking.any():
                kept.append((coordinates[lacking], Gtids(gtids.sources, gtids.which[lacking], gtids.number[lacking])))
        self._parts = kept


def are_outside(executed: GtidSet, gtids: Gtids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which of these transactions are not in the set; one without a GTID counts as being in it."""
    if isinstance(executed, MariadbGtids):
        return _are_after(executed, gtids)
    assert isinstance(executed, MysqlGtids)  # noqa: S101  there is no third kind of set
    out = np.zeros(len(gtids), np.bool_)
    known = dict(executed.intervals())
    for which, source in enumerate(gtids.sources):
        mine = gtids.which == which
        if not mine.any():
            continue
        ends = np.array(known.get(source, ()), np.int64).reshape(-1, 2)
        number: Int64s = gtids.number[mine]
        at = np.searchsorted(ends[:, 0], number, side="right") - 1
        inside = (at >= 0) & (number <= (ends[np.maximum(at, 0), 1] if len(ends) else -1))
        out[mine] = ~inside
    return out


def _are_after(applied: MariadbGtids, gtids: Gtids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which of these transactions follow the last one of their domain in `applied`. A domain's numbers grow
    along the log (`gtid_strict_mode`)."""
    out = np.zeros(len(gtids), np.bool_)
    last = {domain: number for domain, (_, number) in applied.domains().items()}
    for which, source in enumerate(gtids.sources):
        mine = gtids.which == which
        out[mine] = gtids.number[mine] > last.get(int(source.partition("-")[0]), -1)
    return out
