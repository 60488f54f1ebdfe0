"""Checks whether the server's binary log still is the one that the change log was read from.

A server that was restored from a copy of its files has the same identity. It begins a file with the same name as the
original did, continues its GTIDs from the same number, and soon is past the change log's position. The content of a
file reveals it:

    binlog.000007 of the original   ├──x────x──x─┤ log's position   x: a transaction, by its end and its time of commit
    binlog.000007 of the copy       ├───x──x────x─────x──▶

A server begins a new file when it starts, so two histories differ from the beginning of a file. Therefore the last few
transactions of the change log suffice, if they are in one file that the server still has.

If the change log has none there, or if sessions set the time (`SET timestamp`), so that both histories have the same
times, the file itself decides: each begins with the time at which the server created it, and the change log's position
contains that time (`BinlogPosition.began`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.ports.source import TransactionsBack
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import HistoryLost
from cdcflow.model.change import Int64s
from cdcflow.model.position import Position
from cdcflow.sources.mysql import binlog_status
from cdcflow.sources.mysql.connection import Connection, Connector, mapping_errors
from cdcflow.sources.mysql.dump import Dump, scan
from cdcflow.sources.mysql.errors import history_lost
from cdcflow.sources.mysql.events import IS_OPENER
from cdcflow.sources.mysql.position import FIRST_EVENT, BinlogFile, BinlogPosition, binlog_position_of
from cdcflow.sources.mysql.transactions import openers_of
from cdcflow.sources.mysql.wire import Events

COMPARED_MAX = 16
BYTES_MAX = 64 << 20
"""The comparison reads at most this much of the server's log."""


@dataclass(frozen=True, slots=True)
class Ours:
    """A transaction of the change log: its end, and its time of commit (microseconds since 1970)."""

    end: BinlogPosition
    commit_ts: int


def check_same(connector: Connector, dump: Dump, first_transaction: int, back: TransactionsBack) -> None:
    """Check that the server's log has the last transactions of the change log. `dump` begins at the change log's
    position; transactions with the number `first_transaction` or a later one were read from this server.

    Raises:
        HistoryLost: the log does not have them, because the server was restored and has diverged since.
    """
    ours = _newest(dump.position, first_transaction, back)
    if not ours:
        return
    oldest, newest = ours[0].end, ours[-1].end
    connection = connector.connect("overlap")
    try:
        with mapping_errors(f"comparing the change log with the binary log at {connector.address}"):
            size = dict(binlog_status.files(connection)).get(newest.file)
            if size is None:
                return
            if size < newest.pos or not _is_between(connection, oldest):
                raise _history_differs(connector, oldest if size >= newest.pos else newest)
        if len(ours) == 1 and newest.pos <= BYTES_MAX:
            oldest = replace(oldest, pos=FIRST_EVENT)
        compared = [one for one in ours if one.end.pos > oldest.pos]
        if compared and oldest.pos < 1 << 32:  # beyond this, a dump can only begin at the start of the file (M26)
            asked = replace(dump, position=replace(oldest, xa=None), by_gtid=False)
            theirs = _commit_times(connection, asked, np.array([one.end.pos for one in compared]), connector.account)
            for one in compared:
                if theirs.get(one.end.pos) != one.commit_ts:
                    raise _history_differs(connector, one.end)
    finally:
        connector.discard(connection)


def check_file(connector: Connector, dump: Dump) -> None:
    """Check that the file of the position at which `dump` begins is the one that the change log was read from.

    Raises:
        HistoryLost: the file was created at another time, because the server was restored and has diverged since.
    """
    position = replace(dump.position, xa=None)
    if not position.began:
        return
    found = _Began()
    connection = connector.connect("overlap")
    try:
        with mapping_errors(f"comparing the change log's position with the binary log at {connector.address}"):
            asked = replace(dump, position=position, by_gtid=False)
            scan(connection, asked, found, lambda: bool(found.seconds), connector.account)
    finally:
        connector.discard(connection)
    if found.seconds != position.began:
        raise history_lost(
            f"the binary log at {connector.address} has another file {position.file} than the one that the change log "
            f"was read from: it began at {_time(found.seconds)}, the other at {_time(position.began)}; the server was "
            "restored from a copy and has diverged since, or its binary log was started over",
            runbook="restored-source",
        )


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(slots=True)
class _Began:
    """Takes events as a decoder does, and notes when the first file began (0: not known yet)."""

    seconds: int = 0

    def rotate(self, file: BinlogFile, pos: int) -> list[StreamEvent]:
        return []

    def file_began(self, seconds: int) -> None:
        self.seconds = self.seconds or seconds

    def decode(self, events: Events) -> list[StreamEvent]:
        return []


def _newest(position: BinlogPosition, first_transaction: int, back: TransactionsBack) -> list[Ours]:
    """Return the last transactions of the change log that are in one file, oldest first; no more than can be
    compared."""
    seen: list[Position] = []

    def is_enough(found: Position) -> bool:
        seen.append(found)
        at = binlog_position_of(found)
        return len(seen) > COMPARED_MAX or at.file != position.file or at.pos <= position.pos - BYTES_MAX

    table = back(is_enough)
    table = table.filter(pc.greater_equal(table.column("number"), first_transaction))
    table = table.slice(max(0, len(table) - COMPARED_MAX))
    ends = [BinlogPosition.parse(text) for text in table.column("position").to_pylist()]
    times = table.column("commit_ts").cast(pa.int64()).to_pylist()
    found = [Ours(end, ts) for end, ts in zip(ends, times, strict=True) if end.coordinate <= position.coordinate]
    last = found[-1].end if found else position
    return [o for o in found if o.end.file == last.file and o.end.pos > last.pos - BYTES_MAX]


def _is_between(connection: Connection, at: BinlogPosition) -> bool:
    try:
        binlog_status.check_between(connection, at)
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class _Commits:
    """Takes events as a decoder does, and notes the commit time of each transaction that ends at one of the bytes
    `wanted` of `file`."""

    file: BinlogFile
    wanted: Int64s
    found: dict[int, int] = field(default_factory=dict)
    reached: int = 0
    commit_ts: int = -1
    is_past: bool = False

    def rotate(self, file: BinlogFile, pos: int) -> list[StreamEvent]:
        self.is_past = self.is_past or file != self.file
        return []

    def file_began(self, seconds: int) -> None:
        """Ignore the time at which the file was created."""

    def decode(self, events: Events) -> list[StreamEvent]:
        if self.is_past:
            return []
        at = np.flatnonzero(IS_OPENER[events.type])
        times = np.concatenate([[self.commit_ts], openers_of(events, at).commit_ts if len(at) else []])
        ends = np.flatnonzero(np.isin(events.reach, self.wanted))
        of = np.searchsorted(at, ends, side="right")
        self.found |= zip(events.reach[ends].tolist(), times[of].astype(np.int64).tolist(), strict=True)
        self.commit_ts, self.reached = int(times[-1]), int(events.reach[-1])
        return []


def _commit_times(connection: Connection, dump: Dump, ends: Int64s, account: str) -> dict[int, int]:
    """Return the commit times of the server's transactions that end at these bytes of the file (ascending), for those
    bytes where one ends.

    If the server refuses, raises the same errors as a stream.
    """
    commits, upto = _Commits(dump.start[0], ends), int(ends[-1])
    # If the dump ends early, raise its error instead of returning fewer transactions: the right to read the log may
    # have been revoked, which proves no difference.
    scan(connection, dump, commits, lambda: commits.reached >= upto or commits.is_past, account)
    return commits.found


def _history_differs(connector: Connector, at: BinlogPosition) -> HistoryLost:
    return history_lost(
        f"the binary log at {connector.address} has other transactions than the change log: no transaction of the "
        f"change log ends in {at.file} at byte {at.pos}; the server was restored from a copy and has diverged since",
        runbook="restored-source",
    )
