"""Groups of events: where each transaction of a part of the log begins and ends.

    GTID  QUERY(BEGIN)  TABLE_MAP ROWS …  XID            a transaction           (MariaDB: without BEGIN)
    GTID  QUERY(BEGIN)  TABLE_MAP ROWS …  QUERY(COMMIT)  … of a table whose engine has no transactions
    GTID  QUERY(…)                                       a statement that stands alone
    GTID  QUERY(XA START)  …  XA_PREPARE                 the first half of an XA transaction

Almost every QUERY is BEGIN or COMMIT, so those two are recognised for a whole batch at once, and only the others are
read as text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdcflow.errors import InvariantViolated
from cdcflow.model.change import Int64s
from cdcflow.sources.buffers import Bools
from cdcflow.sources.mysql.events import (
    IS_BESIDE,
    IS_OPENER,
    EventType,
    prepared_xid,
    query_of,
    query_texts,
    table_of,
)
from cdcflow.sources.mysql.openers import STANDALONE, Openers, openers_of
from cdcflow.sources.mysql.statements import Begin, Commit, Harmless, Rollback, Statement, XaEnd, statement_of
from cdcflow.sources.mysql.wire import Events

_IS_QUERY = table_of(EventType.QUERY, EventType.EXECUTE_LOAD_QUERY)
_IS_END = table_of(EventType.XID, EventType.XA_PREPARE)
_MAY_END = _IS_END | _IS_QUERY | IS_OPENER
_IS_NEUTRAL = IS_BESIDE | table_of(EventType.IGNORABLE)
_BEGI, _COMM, _IT = (int.from_bytes(word, "little") for word in (b"BEGI", b"COMM", b"IT"))
_OTHER, _BEGIN, _COMMIT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Groups:
    """Whole groups: the numbers of the events that open and end them, what the openers say, and, in the log's order,
    the statements that are neither BEGIN nor COMMIT with the numbers of their events."""

    opener: Int64s
    ender: Int64s
    openers: Openers
    statements: tuple[tuple[int, Statement], ...]

    def __len__(self) -> int:
        return len(self.opener)

    def of(self, event: int) -> int:
        """The number of the group that an event is in."""
        return int(np.searchsorted(self.opener, event, side="right")) - 1

    def part(self, first: int, last: int, begin: int) -> Groups:
        """The groups number `first` to `last` (exclusive), of the events from number `begin` on."""
        if not begin and last == len(self):
            return self
        told, stop = self.openers, int(self.ender[last - 1]) if last > first else 0
        return Groups(
            self.opener[first:last] - begin,
            self.ender[first:last] - begin,
            Openers(told.gtids.part(first, last), told.commit_ts[first:last], told.flags[first:last]),
            tuple((place - begin, s) for place, s in self.statements if begin <= place <= stop),
        )


def queries(events: Events) -> tuple[Int64s, Int64s, list[tuple[int, Statement]]]:
    """The numbers of the QUERY events, which of them are BEGIN (1) or COMMIT (2), and what the others say."""
    at = np.flatnonzero(_IS_QUERY[events.type])
    if not len(at):
        return at, at, []
    code = np.zeros(len(at), np.int64)
    plain = np.flatnonzero(events.type[at] == EventType.QUERY)
    if len(plain):
        text = query_texts(events, at[plain])
        size = events.end[at[plain]] - text
        head, buffer = events.buffer.le32(text), events.buffer
        code[plain[(size == 5) & (head == _BEGI) & (buffer.bytes[text + 4] == ord("N"))]] = _BEGIN
        code[plain[(size == 6) & (head == _COMM) & (buffer.le16(text + 4) == _IT)]] = _COMMIT
    said: list[tuple[int, Statement]] = []
    for nth in np.flatnonzero(code == _OTHER).tolist():
        statement = statement_of(query_of(events.one(int(at[nth]))))
        match statement:
            case Begin():
                code[nth] = _BEGIN
            case Commit():
                code[nth] = _COMMIT
        said.append((int(at[nth]), statement))
    return at, code, said


def may_end(events: Events) -> int | None:
    """The first event at which a group that is open before these events could end; None: not among them."""
    found = np.flatnonzero(_MAY_END[events.type])
    return int(found[0]) if len(found) else None


def first_end(events: Events) -> tuple[int | None, list[tuple[int, Statement]]]:
    """Where a transaction that is open before these events ends (None: not here), and the statements up to there."""
    at, code, said = queries(events)
    ends = [*np.flatnonzero(_IS_END[events.type])[:1].tolist(), *at[code == _COMMIT][:1].tolist()]
    ends += [place for place, statement in said if isinstance(statement, (Rollback, XaEnd))][:1]
    end = min(ends) if ends else None
    if IS_OPENER[events.type[:end]].any():
        raise InvariantViolated("a transaction in the binary log begins before the one before it has ended")
    return end, [(place, s) for place, s in said if end is None or place <= end]


def groups_of(events: Events) -> tuple[Groups, int]:
    """The whole groups among events that begin outside of any, and the number of the event that opens one which is not
    whole (as many as there are events: none).

    Raises:
        InvariantViolated: events that hold something stand outside of groups.
    """
    opener = np.flatnonzero(IS_OPENER[events.type])
    openers = openers_of(events, opener)
    at, code, said = queries(events)
    ender = _enders(events, opener, openers, at, code, said)
    whole = len(opener)
    if whole and ender[-1] >= len(events):
        whole -= 1
    after = np.append(opener, len(events))
    if (ender[:whole] >= after[1 : whole + 1]).any():
        raise InvariantViolated("a transaction in the binary log begins before the one before it has ended")
    stop = int(opener[whole]) if whole < len(opener) else len(events)
    _check_between(events, opener[:whole], ender[:whole], stop)
    part = Openers(openers.gtids.part(0, whole), openers.commit_ts[:whole], openers.flags[:whole])
    told = tuple((place, s) for place, s in said if place < stop and not isinstance(s, (Begin, Commit, Harmless)))
    return Groups(opener[:whole], ender[:whole], part, told), stop


def xa_groups(events: Events, groups: Groups) -> list[int]:
    """The numbers of the groups that are halves of XA transactions; those committed in one phase are whole."""
    found = {groups.of(at) for at, statement in groups.statements if isinstance(statement, XaEnd)}
    for number in np.flatnonzero(events.type[groups.ender] == EventType.XA_PREPARE).tolist():
        if not prepared_xid(events.one(int(groups.ender[number])))[1]:
            found.add(number)
    return sorted(found)


def _enders(
    events: Events,
    opener: Int64s,
    openers: Openers,
    at: Int64s,
    code: Int64s,
    said: list[tuple[int, Statement]],
) -> Int64s:
    """The event that ends each group; the number of events where none does."""
    marked = np.zeros(len(events) + 1, np.bool_)
    marked[:-1] = _IS_END[events.type]
    marked[at[code == _COMMIT]] = True
    marked[[place for place, s in said if isinstance(s, (Rollback, XaEnd))]] = True
    if len(at) and len(opener):
        nth = np.searchsorted(at, opener)
        there = nth < len(at)
        first = at[np.minimum(nth, len(at) - 1)]
        there &= first < np.append(opener[1:], len(events))
        # MariaDB flags what stands alone; at MySQL's it is a first statement other than BEGIN.
        flagged: Bools = openers.flags & STANDALONE != 0
        if (events.type[opener] != EventType.MARIADB_GTID).any():
            flagged = code[np.minimum(nth, len(at) - 1)] != _BEGIN
        marked[first[there & flagged]] = True
    marked[-1] = True
    ends = np.flatnonzero(marked)
    return ends[np.searchsorted(ends, opener)]


def _check_between(events: Events, opener: Int64s, ender: Int64s, stop: int) -> None:
    depth = np.zeros(stop + 1, np.int64)
    depth[opener] += 1
    np.subtract.at(depth, ender + 1, 1)
    outside = (np.cumsum(depth[:stop]) == 0) & ~_IS_NEUTRAL[events.type[:stop]]
    if outside.any():
        kind = int(events.type[:stop][outside][0])
        name = EventType(kind).name
        raise InvariantViolated(f"a {name} event stands in the binary log outside of any transaction")
