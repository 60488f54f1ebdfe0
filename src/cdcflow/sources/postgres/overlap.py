"""Checks that the server's log is still the one that the change log was captured from.

A server that was restored from a copy of its files has the same identity, the same timeline and the same slot, and soon
its log is past the change log's position again, with other changes. The copy's slot is at the position where the copy
was taken or before, and the change log continues after that:

    the server's log   ─────┤ slot ├──x──x──x──x──x──▶       x: a transaction: its end, its id, its time of commit
    the change log     ──x──x──x──x──x──┤ its position        both must be equal up to that position
                                 └ the overlap ┘

Ends and ids are not enough: a copy on which the same job runs again (with new uuids, or a later `now()`) assigns the
same ids and writes as many bytes. The time of commit is enough. It is in the commit record, in microseconds: after a
restart the server sends the same time, and so does a standby that was promoted, while a copy commits later than the
original did. But for a transaction with a replication origin the server reports the time that its session set, or the
year 2000 for the first one of a session that set none. A copy is not recognized if all its transactions have such a
time and repeat the original byte for byte.

Rows and their number are not compared: docs/postgres.md has the reasons.

So the transactions that the slot still sends up to the change log's position must be exactly those that the change log
has there. If the slot is at that position, the server knew that cdcflow has everything before, and no comparison is
needed; that is the case after every orderly stop.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.interleave.messages import Advanced
from cdcflow.capture.ports.source import TransactionsBack
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import HistoryLost
from cdcflow.model.change import Int64s, Uint64s
from cdcflow.sources.engine.descriptors import READABLE, wait_until
from cdcflow.sources.postgres.connection import Connector, history_lost
from cdcflow.sources.postgres.lsn import EPOCH_US, Lsn, lsn_of, position_of, positions
from cdcflow.sources.postgres.slot import Slot
from cdcflow.sources.postgres.stream import PostgresStream, position_after
from cdcflow.sources.postgres.wire import Frames, Joined, frames_of, truncated_of

Bools = npt.NDArray[np.bool_]
_BEGIN, _COMMIT, _TRUNCATE = (ord(c) for c in "BCT")
_ROWS = np.array([ord(c) for c in "IUDT"])

SPOKEN_S = 1.0
_COMPARED = ("position", "xid", "commit_ts")


def check_same(
    connector: Connector,
    slot: Slot,
    publication: str,
    since: Lsn,
    position: Lsn,
    back: TransactionsBack,
    captured: Collection[int] | None = None,
) -> None:
    """Check that the change log and the server's have the same transactions after `since` and up to `position`.

    `captured`: set if the publication sends more tables than are captured; only transactions that touch one of these
    tables must be in the change log. None: all that it sends.

    Raises:
        HistoryLost: the logs differ, because the server was restored and has diverged.
        SourceUnavailable: another process still uses the slot.
    """
    first, last = str(since), str(position)
    ours = back(lambda found: str(found) <= first)
    theirs = _slot_transactions(connector, slot, publication, since, position, captured)
    wanted = pc.or_(theirs.column("counts"), pc.is_in(theirs.column("position"), ours.column("position")))
    theirs = theirs.filter(wanted)
    if (differs := first_difference(_between(ours, first, last), _between(theirs, first, last))) is not None:
        raise history_differs(slot.name, differs, last)


def history_differs(slot: str, differs: str, last: str) -> HistoryLost:
    return history_lost(
        f"slot {slot} gives other transactions than the change log has since {differs}, before its position "
        f"{last}: the server was restored from a copy and has diverged since",
        runbook="restored-source",
    )


def first_difference(ours: pa.Table, theirs: pa.Table) -> str | None:
    """Return the first position at which one of the two has a transaction that the other lacks; None if both are
    alike."""
    length = min(len(ours), len(theirs))
    position, xid, commit_ts = (pc.equal(ours.column(n)[:length], theirs.column(n)[:length]) for n in _COMPARED)
    alike = pc.and_(pc.and_(position, xid), commit_ts)
    where = pc.index(alike, False).as_py() if length else -1
    at = where if where >= 0 else length
    left = [str(table.column("position")[at]) for table in (ours, theirs) if at < len(table)]
    return min(left, default=None)


def _between(table: pa.Table, first: str, last: str) -> pa.Table:
    """Return the transactions after `first` and up to `last`, in the order of their positions."""
    position = table.column("position")
    return table.filter(pc.and_(pc.greater(position, first), pc.less_equal(position, last))).sort_by("position")


def _slot_transactions(
    connector: Connector, slot: Slot, publication: str, since: Lsn, position: Lsn, captured: Collection[int] | None
) -> pa.Table:
    """Return the transactions that the slot sends up to a position, and perhaps a few more: `position`, `xid` and
    `commit_ts`, and whether one `counts`.

    The transactions are streamed, without acknowledging any. SQL functions could read them, too, but first write all
    changes into temporary files, for which a transaction may be too large. This takes as long as the server needs to
    read its log from the slot's position.
    """
    found = TransactionsOnly(captured)
    stream = PostgresStream(
        connector,
        slot=slot.name,
        publication=publication,
        position=since,
        binary=False,
        streaming=False,
        make_decoder=lambda after, binary: found,
        check_slot=lambda after: None,
    )
    reached = since
    try:
        while reached < position:
            if not stream.ready:
                wait_until(READABLE, stream.fileno(), SPOKEN_S)
            for event in stream.poll():
                reached = max(reached, lsn_of(position_after(event)))
    finally:
        stream.close()
    return found.table()


class TransactionsOnly:
    """Implements `stream.MessageDecoder`: of each transaction with a row it returns the id, the end and the time of
    commit, and none of the rows."""

    def __init__(self, captured: Collection[int] | None) -> None:
        self._captured = None if captured is None else np.array(sorted(captured), np.int64)
        self._found: list[tuple[Int64s, Uint64s, Int64s, Bools]] = []
        self._xid = 0
        self._rows = self._counts = 0  # of a transaction that has arrived in part
        self.idle = True
        self.gathering = False

    def take_filled(self) -> list[StreamEvent]:
        return []

    def decode(self, messages: Joined) -> list[StreamEvent]:
        frames = frames_of(messages)
        start, buffer = frames.start, frames.buffer
        has_row, counts = (self._sums(flags) for flags in self._flags(frames))
        begins, commits = np.flatnonzero(frames.kind == _BEGIN), np.flatnonzero(frames.kind == _COMMIT)
        xids = np.append(self._xid, buffer.uint32(start[begins] + 17)).astype(np.uint64)
        xids = xids[1:] if self.idle else xids
        if len(commits):
            rows, counted = (np.diff(sums[commits], prepend=0) for sums in (has_row, counts))
            rows[0] += self._rows
            counted[0] += self._counts
            ends, times = buffer.int64(start[commits] + 10), buffer.int64(start[commits] + 18) + EPOCH_US
            full = rows > 0
            self._found.append((ends[full], xids[: len(commits)][full], times[full], counted[full] > 0))
            self._rows = self._counts = 0
            last = int(commits[-1])
            self._rows, self._counts = int(has_row[-1] - has_row[last]), int(counts[-1] - counts[last])
        else:
            self._rows, self._counts = self._rows + int(has_row[-1]), self._counts + int(counts[-1])
        self.idle = len(xids) == len(commits)
        self._xid = 0 if self.idle else int(xids[-1])
        return [Advanced(position_of(Lsn(int(ends[-1]))))] if len(commits) else []

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def table(self) -> pa.Table:
        ends, xids, times, counts = (
            np.concatenate(parts) if parts else np.zeros(0, kind)
            for parts, kind in zip(
                zip(*self._found, strict=True) if self._found else ((), (), (), ()),
                (np.int64, np.uint64, np.int64, np.bool_),
                strict=True,
            )
        )
        commit_ts = pa.array(times).view(pa.timestamp("us", tz="UTC"))
        return pa.table({"position": positions(ends), "xid": xids, "commit_ts": commit_ts, "counts": counts})

    def _flags(self, frames: Frames) -> tuple[Bools, Bools]:
        """Return which messages are rows, and which of them are of a captured table."""
        has_row = np.isin(frames.kind, _ROWS)
        if self._captured is None:
            return has_row, has_row
        counts = has_row & np.isin(frames.buffer.uint32(frames.start + 1), self._captured)
        for at in np.flatnonzero(frames.kind == _TRUNCATE).tolist():
            counts[at] = np.isin(truncated_of(frames.message_at(at)[1:]), self._captured).any()
        return has_row, counts

    @staticmethod
    def _sums(flags: Bools) -> Int64s:
        return np.cumsum(flags, dtype=np.int64)
