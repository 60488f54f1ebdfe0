"""Finds the transactions of the log: what opens each, where it ends, and those whose rows wait outside of memory.

    GTID  QUERY(BEGIN)  TABLE_MAP ROWS …  XID            a transaction           (MariaDB: without BEGIN)
    GTID  QUERY(BEGIN)  TABLE_MAP ROWS …  QUERY(COMMIT)  … of a table whose engine has no transactions
    GTID  QUERY(…)                                       a single statement
    GTID  QUERY(XA START)  …  XA_PREPARE                 the first half of an XA transaction

Each such group of events begins with an opener, which has the GTID and the time of the commit; many openers are read at
once. Almost every QUERY is BEGIN or COMMIT, so those two are recognised for a whole batch at once, and only the others
are read as text.

A large transaction goes into a spool piece by piece while it arrives. ROLLBACK TO reverts the rows since a savepoint,
so rows are counted by segment: each SAVEPOINT and ROLLBACK TO begins a new one, and whole segments are reverted. The
spool treats segments as sub-transactions.

An XA transaction that is prepared may be committed or rolled back much later, with others in between (hard case M45).
Its rows are held until then; a restart reads again from before the oldest one (`BinlogPosition.xa`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdcflow.errors import InvariantViolated
from cdcflow.model.change import Int64s, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import TableId
from cdcflow.sources.engine.buffers import Bools
from cdcflow.sources.engine.spooled import SpooledRows
from cdcflow.sources.mysql.effects import Effects
from cdcflow.sources.mysql.events import (
    IS_BETWEEN_GROUPS,
    IS_OPENER,
    EventType,
    prepared_xid,
    query_of,
    query_texts,
    table_of,
)
from cdcflow.sources.mysql.gtids import Flavor, Gtids
from cdcflow.sources.mysql.position import BinlogPosition
from cdcflow.sources.mysql.readings import statement_in
from cdcflow.sources.mysql.row_events import Incomplete
from cdcflow.sources.mysql.statements import Begin, Commit, Harmless, Rollback, Statement, XaEnd
from cdcflow.sources.mysql.wire import HEADER, Events, protocol_error

# ── openers ────────────────────────────────────────────────────────────────────────────────────────────────────

STANDALONE = 1
"""A flag of MariaDB's GTID events: the group is one statement, and no event ends it."""

_TIMES = 68
"""An untagged GTID event with commit times is at least this long."""


@dataclass(frozen=True, slots=True)
class Openers:
    """The events that open groups: GTIDs, times of commit (microseconds since 1970), and MariaDB's flags."""

    gtids: Gtids
    commit_ts: Int64s
    flags: Int64s


def openers_of(events: Events, at: Int64s) -> Openers:
    """Parse the events number `at`, each of which opens a group.

    On MySQL the time is that of the commit on the server where the transaction was first committed; on MariaDB it is
    the second in which its last statement began, the only time that it has.
    """
    stamp = events.stamps(at) * 1_000_000
    kinds = events.type[at]
    if (kinds == EventType.MARIADB_GTID).all():
        return _mariadb(events, at, stamp)
    if (kinds == EventType.MARIADB_GTID).any():
        raise protocol_error("GTID events of two kinds of servers")
    tagged = np.flatnonzero(kinds == EventType.GTID_TAGGED)
    plain = _mysql(events, at, stamp)
    if not len(tagged):
        return plain
    sources, which, number = list(plain.gtids.sources), plain.gtids.which.copy(), plain.gtids.number.copy()
    for index in tagged.tolist():
        found = tagged_gtid(events.event_at(int(at[index])))
        if found.source not in sources:
            sources.append(found.source)
        which[index], number[index] = sources.index(found.source), found.number
        plain.commit_ts[index] = found.commit_ts or stamp[index]
    return Openers(Gtids(tuple(sources), which, number), plain.commit_ts, plain.flags)


def _mysql(events: Events, at: Int64s, stamp: Int64s) -> Openers:
    start, size = events.start[at], events.end[at] - events.start[at]
    kinds, buffer = events.type[at], events.buffer
    untagged = kinds != EventType.GTID_TAGGED
    if (untagged & (size < 44)).any():
        raise protocol_error("a GTID event that ends early")
    number = buffer.le64(start + 36)
    high, low = buffer.le64(start + 20), buffer.le64(start + 28)
    named = kinds == EventType.GTID
    which = np.full(len(at), -1, np.int64)
    sources: list[str] = []
    for index in _firsts(high, low, named):
        raw = events.event_at(int(at[index]))[20:36]
        which[named & (high == high[index]) & (low == low[index])] = len(sources)
        sources.append(str(uuid.UUID(bytes=raw)))
    if (named & (number < 1)).any():
        raise protocol_error("a GTID event with a number below 1")
    micros = (1 << 55) - 1
    immediate, original = buffer.le64(start + 61), buffer.le64(start + 68)
    has_original = (immediate >> 55 & 1 != 0) & (size >= _TIMES + 7)
    committed = np.where(has_original, original, immediate) & micros
    commit_ts = np.where(untagged & (size >= _TIMES) & (committed > 0), committed, stamp)
    return Openers(Gtids(tuple(sources), which, number), commit_ts, np.zeros(len(at), np.int64))


def _firsts(high: Int64s, low: Int64s, named: Bools) -> list[int]:
    """Return the index of the first occurrence of each server's id."""
    found = np.flatnonzero(named)
    if not len(found):
        return []
    first = int(found[0])
    if ((high[found] == high[first]) & (low[found] == low[first])).all():
        return [first]
    pairs = np.stack([high[found], low[found]], axis=1)
    return sorted(int(found[i]) for i in np.unique(pairs, axis=0, return_index=True)[1])


def _mariadb(events: Events, at: Int64s, stamp: Int64s) -> Openers:
    start = events.start[at]
    if (events.end[at] - start < HEADER + 13).any():
        raise protocol_error("a GTID event that ends early")
    buffer = events.buffer
    pairs = buffer.le32(start + 27) << 32 | buffer.le32(start + 5)  # domain; the server is in the event's header
    found, which = np.unique(pairs, return_inverse=True)
    sources = tuple(f"{int(p) >> 32 & 0xFFFFFFFF}-{int(p) & 0xFFFFFFFF}" for p in found)
    flags = buffer.bytes[start + 31].astype(np.int64)
    return Openers(Gtids(sources, which.astype(np.int64), buffer.le64(start + 19)), stamp, flags)


@dataclass(frozen=True, slots=True)
class TaggedGtid:
    source: str
    number: int
    commit_ts: int


def tagged_gtid(event: bytes) -> TaggedGtid:
    """Parse a GTID_TAGGED event: numbered fields, in numbers of varying length."""
    body = event[HEADER:]
    _, at = _varying(body, 0)
    _, at = _varying(body, at)
    _, at = _varying(body, at)
    raw, tag, number, times = bytearray(), "", 0, {6: 0, 7: 0}
    while at < len(body):
        kind, at = _varying(body, at)
        if kind == 1:
            for _ in range(16):
                value, at = _varying(body, at)
                raw.append(value & 0xFF)
        elif kind == 3:
            size, at = _varying(body, at)
            tag, at = body[at : at + size].decode("ascii", "replace"), at + size
        else:
            value, at = _varying(body, at)
            if kind == 2:
                number = value >> 1 if not value & 1 else -1 - (value >> 1)
            elif kind in times:
                times[kind] = value
            elif kind > 11:
                break  # a later field; all needed ones precede it
    if len(raw) != 16 or number < 1 or at > len(body):
        raise protocol_error("a GTID_TAGGED event that names no transaction")
    server = str(uuid.UUID(bytes=bytes(raw)))
    return TaggedGtid(f"{server}:{tag}" if tag else server, number, times[7] or times[6])


def _varying(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of varying length, and the offset after it; the lowest set bits of its first byte determine how
    many bytes follow."""
    if at >= len(data):
        raise protocol_error("a GTID_TAGGED event that ends early")
    first = data[at]
    if first == 0xFF:
        size, shift, begin = 9, 0, at + 1
    else:
        size = (~first & first + 1).bit_length()
        shift, begin = size, at
    if at + size > len(data):
        raise protocol_error("a GTID_TAGGED event that ends early")
    return int.from_bytes(data[begin : at + size], "little") >> shift, at + size


# ── groups ─────────────────────────────────────────────────────────────────────────────────────────────────────

_IS_QUERY = table_of(EventType.QUERY, EventType.EXECUTE_LOAD_QUERY)
_IS_END = table_of(EventType.XID, EventType.XA_PREPARE)
_MAY_END = _IS_END | _IS_QUERY | IS_OPENER
_IS_NEUTRAL = IS_BETWEEN_GROUPS | table_of(EventType.IGNORABLE)
_BEGI, _COMM, _IT = (int.from_bytes(word, "little") for word in (b"BEGI", b"COMM", b"IT"))
_OTHER, _BEGIN, _COMMIT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Groups:
    """Whole groups. `opener` and `ender` are the numbers of the events that open and end each, `openers` the content of
    the events that open. `statements` are those other than BEGIN and COMMIT, with the numbers of their events, in the
    log's order."""

    opener: Int64s
    ender: Int64s
    openers: Openers
    statements: tuple[tuple[int, Statement], ...]

    def __len__(self) -> int:
        return len(self.opener)

    def of(self, event: int) -> int:
        """Return the number of the group that an event is in."""
        return int(np.searchsorted(self.opener, event, side="right")) - 1

    def part(self, first: int, last: int, begin: int) -> Groups:
        """Return the groups number `first` to `last` (exclusive), with events numbered starting at event `begin`."""
        if not begin and last == len(self):
            return self
        told, stop = self.openers, int(self.ender[last - 1]) if last > first else 0
        return Groups(
            self.opener[first:last] - begin,
            self.ender[first:last] - begin,
            Openers(told.gtids.part(first, last), told.commit_ts[first:last], told.flags[first:last]),
            tuple((event - begin, s) for event, s in self.statements if begin <= event <= stop),
        )


def queries(events: Events, flavor: Flavor) -> tuple[Int64s, Int64s, list[tuple[int, Statement]]]:
    """Return the numbers of the QUERY events, which of them are BEGIN (1) or COMMIT (2), and the meaning of the
    others."""
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
        statement = statement_in(query_of(events.event_at(int(at[nth])), flavor))
        match statement:
            case Begin():
                code[nth] = _BEGIN
            case Commit():
                code[nth] = _COMMIT
        said.append((int(at[nth]), statement))
    return at, code, said


def may_end(events: Events) -> int | None:
    """Return the first event at which a group that is open before these events could end; None if it cannot end among
    them."""
    found = np.flatnonzero(_MAY_END[events.type])
    return int(found[0]) if len(found) else None


def first_end(events: Events, flavor: Flavor) -> tuple[int | None, list[tuple[int, Statement]]]:
    """Return where a transaction that is open before these events ends (None if later), and the statements
    until then."""
    at, code, said = queries(events, flavor)
    ends = [*np.flatnonzero(_IS_END[events.type])[:1].tolist(), *at[code == _COMMIT][:1].tolist()]
    ends += [event for event, statement in said if isinstance(statement, (Rollback, XaEnd))][:1]
    end = min(ends) if ends else None
    if IS_OPENER[events.type[:end]].any():
        raise InvariantViolated(
            "a transaction in the binary log begins before the one before it has ended", runbook="stream-not-understood"
        )
    return end, [(event, s) for event, s in said if end is None or event <= end]


def groups_of(events: Events, flavor: Flavor) -> tuple[Groups, int]:
    """Return the whole groups among events that begin outside of a group, and the number of the event that opens an
    incomplete group (the number of events if all groups are complete).

    Raises:
        InvariantViolated: events with content are outside of groups.
    """
    opener = np.flatnonzero(IS_OPENER[events.type])
    openers = openers_of(events, opener)
    at, code, said = queries(events, flavor)
    ender = _enders(events, opener, openers, at, code, said)
    whole = len(opener)
    if whole and ender[-1] >= len(events):
        whole -= 1
    after = np.append(opener, len(events))
    if (ender[:whole] >= after[1 : whole + 1]).any():
        raise InvariantViolated(
            "a transaction in the binary log begins before the one before it has ended", runbook="stream-not-understood"
        )
    stop = int(opener[whole]) if whole < len(opener) else len(events)
    _check_between(events, opener[:whole], ender[:whole], stop)
    part = Openers(openers.gtids.part(0, whole), openers.commit_ts[:whole], openers.flags[:whole])
    told = tuple((event, s) for event, s in said if event < stop and not isinstance(s, (Begin, Commit, Harmless)))
    return Groups(opener[:whole], ender[:whole], part, told), stop


def xa_groups(events: Events, groups: Groups) -> list[int]:
    """Return the numbers of the groups that are halves of XA transactions; those committed in one phase are
    complete."""
    found = {groups.of(at) for at, statement in groups.statements if isinstance(statement, XaEnd)}
    for number in np.flatnonzero(events.type[groups.ender] == EventType.XA_PREPARE).tolist():
        if not prepared_xid(events.event_at(int(groups.ender[number])))[1]:
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
    """Return the event that ends each group; the number of events if no event does."""
    marked = np.zeros(len(events) + 1, np.bool_)
    marked[:-1] = _IS_END[events.type]
    marked[at[code == _COMMIT]] = True
    marked[[event for event, s in said if isinstance(s, (Rollback, XaEnd))]] = True
    if len(at) and len(opener):
        nth = np.searchsorted(at, opener)
        there = nth < len(at)
        first = at[np.minimum(nth, len(at) - 1)]
        there &= first < np.append(opener[1:], len(events))
        # MariaDB flags single statements; on MySQL it is a group whose first statement is not BEGIN.
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
        raise InvariantViolated(
            f"a {name} event is in the binary log outside of any transaction", runbook="stream-not-understood"
        )


# ── transactions that wait ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Large(SpooledRows):
    """A transaction that goes into a spool. Its parts are segments.

    `savepoints` has the segment that each savepoint began. `incomplete` are the rows that must be read by key, and
    `purges` the names in purge marks, both with the segment of each. `effects`: those of its statements and rows, which
    count once it is committed.
    """

    segment: int = 0
    savepoints: dict[str, int] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    incomplete: list[tuple[Incomplete, Uint64s]] = field(default_factory=list)
    purges: list[tuple[int, str]] = field(default_factory=list)
    effects: Effects = field(default_factory=Effects)

    def save(self, name: str) -> None:
        """Handle a SAVEPOINT: a new segment begins here."""
        self.segment += 1
        self.savepoints[name.lower()] = self.segment

    def take_back(self, name: str) -> None:
        """Handle a ROLLBACK TO: all segments since the savepoint are reverted, and a new one begins."""
        self.aborted |= set(range(self.savepoints.get(name.lower(), 0), self.segment + 1))
        self.segment += 1

    def purge(self) -> str | None:
        """Return the name in the last purge mark that was not reverted; None if no mark was."""
        return next((name for segment, name in reversed(self.purges) if segment not in self.aborted), None)

    def incomplete_keys(self) -> dict[TableId, KeySet]:
        """Return the rows that must be read by key, once the transaction is committed; without reverted rows."""
        aborted = np.fromiter(self.aborted, np.uint64, len(self.aborted))
        return keys_by_table(
            (found.table, found.keys.filter(pa.array(~np.isin(segments, aborted))))
            for found, segments in self.incomplete
        )


def keys_by_table(found: Iterable[tuple[TableId, pa.RecordBatch]]) -> dict[TableId, KeySet]:
    """Return keys of several batches as one set per table."""
    out: dict[TableId, KeySet] = {}
    for table, batch in found:
        if batch.num_rows:
            keys = KeySet(pa.Table.from_batches([batch]))
            out[table] = out[table].union(keys) if table in out else keys
    return out


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared XA transaction, and the position from which to read it again."""

    large: Large
    again: BinlogPosition

    def commit(
        self, xid: int, position: Position, commit_ts: int, origin: str | None = None
    ) -> Run | SpooledTransaction | None:
        """Return the transaction, which XA COMMIT at this position committed; None if it has no captured rows."""
        return self.large.commit(xid, position, commit_ts, origin)

    @property
    def effects(self) -> Effects:
        return self.large.effects

    def purge(self) -> str | None:
        return self.large.purge()

    def incomplete_keys(self) -> dict[TableId, KeySet]:
        return self.large.incomplete_keys()
