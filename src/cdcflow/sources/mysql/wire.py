"""Bytes of a binary log dump, cut into events with numpy: where each begins and ends, never what it means.

    packet   length(3) number(1) │ 00 │ event …            FE: the log's end; FF: an error
    event    timestamp(4) type(1) server(4) length(4) log_pos(4) flags(2) │ body … │ CRC32(4)

An event of 16 MiB and more spans several packets. `log_pos` is where the event ends in its file, modulo 2^32: a file
with one huge transaction is longer than 4 GiB, so positions are counted in 64 bits (hard case M26). If the server made
the event up for its reader, `log_pos` is 0 or the event is flagged artificial; then the position does not move.

If the file has checksums, every event's checksum is verified. A wrong one means that the bytes were damaged in transit
or on the server's disk: `SourceUnavailable`, and cdcflow reads them again.

`split` has a compiled form (`cdcflow.sources.mysql.decoders`); both return the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from cdcflow.model.change import Int64s
from cdcflow.model.checksum import crc32
from cdcflow.sources.engine.buffers import PAD, Bools, Buffer, protocol_error

__all__ = [
    "ARTIFICIAL",
    "CHECKSUM",
    "HEADER",
    "IGNORABLE",
    "Events",
    "Little",
    "PacketEvents",
    "protocol_error",
    "with_padding",
    "split",
]

HEADER: Final = 19
CHECKSUM: Final = 4
LONG: Final = 0xFFFFFF
"""A packet of this length continues in the next one."""

ARTIFICIAL: Final = 0x20
IGNORABLE: Final = 0x80

ROTATE, FORMAT = 4, 15

_FILE_EVENTS = frozenset((ROTATE, FORMAT))

# Why `split` stopped.
NEEDS_MORE: Final = 0
FILE_EVENT: Final = 1
"""The last event is a ROTATE or FORMAT_DESCRIPTION: later events may have other checksum settings and positions. Its
own checksum was not verified, and its `end` is that of the packet."""
ENDED: Final = 2
REFUSED: Final = 3
LONG_EVENT: Final = 4
DAMAGED: Final = 5
MALFORMED: Final = 6

Types = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PacketEvents:
    """Events found in packets: `start` to `end` (exclusive, without the checksum) are their bytes, header included.

    `reached` is the offset of the first packet that was not taken, and `state` the reason.
    """

    start: Int64s
    end: Int64s
    type: Types
    reached: int
    state: int


SplitFunction = Callable[[bytes, int, int, bool], PacketEvents]


def split(data: bytes, begin: int, size: int, checksum: bool) -> PacketEvents:
    """Cut the packets in `data[begin:size]` into events. `checksum`: the events end with a checksum, which is
    verified."""
    starts: list[int] = []
    ends: list[int] = []
    types = bytearray()
    at, state = begin, NEEDS_MORE
    view, little = memoryview(data), int.from_bytes
    tail = CHECKSUM if checksum else 0
    while at + 5 <= size:
        length = little(data[at : at + 3], "little")
        if length == LONG:
            state = LONG_EVENT
            break
        first, stop = at + 5, at + 4 + length
        if stop > size:
            break
        if data[at + 4]:
            state = ENDED if data[at + 4] == 0xFE else REFUSED if data[at + 4] == 0xFF else MALFORMED
            break
        if length < 1 + HEADER or little(data[first + 9 : first + 13], "little") != length - 1:
            state = MALFORMED
            break
        kind = data[first + 4]
        if kind in _FILE_EVENTS:
            starts.append(first)
            ends.append(stop)
            types.append(kind)
            return _split(starts, ends, types, stop, FILE_EVENT)
        end = stop - tail
        if tail and (end < first + HEADER or crc32(view[first:end]) != little(data[end:stop], "little")):
            state = DAMAGED
            break
        starts.append(first)
        ends.append(end)
        types.append(kind)
        at = stop
    return _split(starts, ends, types, at, state)


def _split(starts: list[int], ends: list[int], types: bytearray, reached: int, state: int) -> PacketEvents:
    return PacketEvents(
        np.array(starts, np.int64), np.array(ends, np.int64), np.frombuffer(bytes(types), np.uint8), reached, state
    )


def long_event(data: bytes, at: int, size: int) -> tuple[bytes, int] | None:
    """Return the event whose packets begin at `at`, joined, and the offset after them; None if some have not
    arrived."""
    parts: list[bytes] = []
    while at + 4 <= size:
        length = int.from_bytes(data[at : at + 3], "little")
        if at + 4 + length > size:
            return None
        parts.append(data[at + 4 : at + 4 + length])
        at += 4 + length
        if length < LONG:
            event = b"".join(parts)[1:]
            if parts[0][0] or len(event) < HEADER or int.from_bytes(event[9:13], "little") != len(event):
                raise protocol_error("an event over several packets that does not have the length in its header")
            return event, at
    return None


def bytes_needed(data: bytes | bytearray, size: int) -> int:
    """Return how many bytes must have arrived until the first event in `data[:size]` is complete, with the headers of
    its packets. While that is unknown: until it can be computed."""
    if size < 5:
        return 5
    length = int.from_bytes(data[:3], "little")
    if length < LONG:
        return 4 + length
    if size < 4 + 1 + HEADER:
        return 4 + 1 + HEADER
    event = 1 + int.from_bytes(data[14:18], "little")
    return event + 4 * (event // LONG + 1)


def checksum_of(event: bytes) -> int:
    """Return the checksum that the event should end with. The checksum does not cover the flag in a file's first event
    that marks the file as in use."""
    body = event[:-CHECKSUM]
    if event[4] == FORMAT and body[17] & 1:
        body = body[:17] + bytes([body[17] & 0xFE]) + body[18:]
    return crc32(body)


def has_checksum(event: bytes) -> bool:
    """Whether an event ends with its correct checksum."""
    return len(event) >= HEADER + CHECKSUM and checksum_of(event) == int.from_bytes(event[-CHECKSUM:], "little")


class Little(Buffer):
    """A buffer with the binary log's little-endian numbers at every offset."""

    __slots__ = ()

    def le16(self, at: Int64s) -> Int64s:
        return self._view("<u2", 2)[at].astype(np.int64)

    def le32(self, at: Int64s) -> Int64s:
        return self._view("<u4", 4)[at].astype(np.int64)

    def le48(self, at: Int64s) -> Int64s:
        return self.le32(at) | self.le16(at + 4) << 32

    def le64(self, at: Int64s) -> Int64s:
        return self._view("<i8", 8)[at].astype(np.int64)


def with_padding(data: bytes | bytearray | memoryview) -> Little:
    return Little(b"".join([data, bytes(PAD)]))


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one file in order: bytes `start` to `end` of the buffer, their types, and `reach`, the byte of the file
    just after each."""

    buffer: Little
    start: Int64s
    end: Int64s
    type: Types
    reach: Int64s

    def __len__(self) -> int:
        return len(self.start)

    def part(self, first: int, last: int) -> Events:
        return Events(
            self.buffer, self.start[first:last], self.end[first:last], self.type[first:last], self.reach[first:last]
        )

    def where(self, keep: Bools) -> Events:
        return Events(self.buffer, self.start[keep], self.end[keep], self.type[keep], self.reach[keep])

    def event_at(self, at: int) -> bytes:
        """An event's bytes, header included."""
        return self.buffer.raw[int(self.start[at]) : int(self.end[at])]

    def stamps(self, at: Int64s) -> Int64s:
        """The seconds since 1970 in the headers of these events."""
        return self.buffer.le32(self.start[at])

    def flags(self) -> Int64s:
        return self.buffer.le16(self.start + 17)

    def copy(self) -> Events:
        """Return the same events in a separate buffer, so that the one they arrived in can be freed."""
        return joined_events([self, self.part(0, 0)])

    @property
    def bytes(self) -> int:
        return int((self.end - self.start).sum())


def reaches(buffer: Little, start: Int64s, before: int) -> Int64s:
    """Return where in the file each event ends; `before`: where the previous event ended (64 bits, M26)."""
    said = buffer.le32(start + 13)
    real = (said != 0) & (buffer.le16(start + 17) & ARTIFICIAL == 0)
    out = np.full(len(start), before, np.int64)
    if not real.any():
        return out
    low = said[real]
    # Positions in a file only grow, so a smaller one has passed 2^32.
    wraps = np.cumsum(low < np.concatenate([[before & 0xFFFFFFFF], low[:-1]]))
    out[real] = (before & ~0xFFFFFFFF) + (wraps << 32) + low
    return np.maximum.accumulate(out)


def offsets(*at: int) -> Int64s:
    return np.array(at, np.int64)


def joined_events(parts: list[Events]) -> Events:
    """Return the events of all parts in one buffer."""
    if len(parts) == 1:
        return parts[0]
    pieces: list[memoryview] = []
    starts: list[Int64s] = []
    ends: list[Int64s] = []
    size = 0
    for part in parts:
        first, last = (int(part.start[0]), int(part.end[-1])) if len(part) else (0, 0)
        pieces.append(memoryview(part.buffer.raw)[first:last])
        starts.append(part.start + (size - first))
        ends.append(part.end + (size - first))
        size += last - first
    return Events(
        Little(b"".join([*pieces, bytes(PAD)])),
        np.concatenate(starts),
        np.concatenate(ends),
        np.concatenate([p.type for p in parts]),
        np.concatenate([p.reach for p in parts]),
    )
