"""Events that open groups: the transaction's GTID and the time of its commit, for many at once."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np

from cdcflow.model.change import Int64s
from cdcflow.sources.buffers import Bools
from cdcflow.sources.mysql.events import EventType
from cdcflow.sources.mysql.gtids import Gtids
from cdcflow.sources.mysql.wire import HEADER, Events, protocol_error

STANDALONE = 1
"""MariaDB: the group is one statement, nothing ends it."""

_TIMES = 68
"""An untagged GTID event with commit times is at least this long."""


@dataclass(frozen=True, slots=True)
class Openers:
    """What the events that open groups say: GTIDs, times of commit (microseconds since 1970), and MariaDB's flags."""

    gtids: Gtids
    commit_ts: Int64s
    flags: Int64s


def openers_of(events: Events, at: Int64s) -> Openers:
    """The events number `at`, each of which opens a group.

    The time is that of the commit on the server where the transaction was first committed, as MySQL has it; on
    MariaDB the second in which its last statement began, for it has no other.
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
    for place in tagged.tolist():
        found = tagged_gtid(events.one(int(at[place])))
        if found.source not in sources:
            sources.append(found.source)
        which[place], number[place] = sources.index(found.source), found.number
        plain.commit_ts[place] = found.commit_ts or stamp[place]
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
    for place in _firsts(high, low, named):
        raw = events.one(int(at[place]))[20:36]
        which[named & (high == high[place]) & (low == low[place])] = len(sources)
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
    """Where each server's id comes first."""
    places = np.flatnonzero(named)
    if not len(places):
        return []
    first = int(places[0])
    if ((high[places] == high[first]) & (low[places] == low[first])).all():
        return [first]
    pairs = np.stack([high[places], low[places]], axis=1)
    return sorted(int(places[i]) for i in np.unique(pairs, axis=0, return_index=True)[1])


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
    """A GTID_TAGGED event: numbered fields, in numbers of varying length."""
    body = event[HEADER:]
    _, at = _varying(body, 0)
    _, at = _varying(body, at)
    _, at = _varying(body, at)
    raw, tag, number, times = bytearray(), "", 0, {6: 0, 7: 0}
    while at < len(body):
        field, at = _varying(body, at)
        if field == 1:
            for _ in range(16):
                value, at = _varying(body, at)
                raw.append(value & 0xFF)
        elif field == 3:
            size, at = _varying(body, at)
            tag, at = body[at : at + size].decode("ascii", "replace"), at + size
        else:
            value, at = _varying(body, at)
            if field == 2:
                number = value >> 1 if not value & 1 else -1 - (value >> 1)
            elif field in times:
                times[field] = value
            elif field > 11:
                break  # newer than this; what is needed comes before
    if len(raw) != 16 or number < 1 or at > len(body):
        raise protocol_error("a GTID_TAGGED event that names no transaction")
    server = str(uuid.UUID(bytes=bytes(raw)))
    return TaggedGtid(f"{server}:{tag}" if tag else server, number, times[7] or times[6])


def _varying(data: bytes, at: int) -> tuple[int, int]:
    """A number whose first byte's lowest ones say how many bytes follow it."""
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
