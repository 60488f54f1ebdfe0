"""Splits PostgreSQL's replication messages: where each begins and ends in one buffer; and parses those that are read
one by one.

Row messages, Begin and Commit are read thousands at a time (`tuples`, `pgoutput`). Relation and Truncate are rare.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdcflow.errors import InvariantViolated
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import PAD, Buffer, Bytes, protocol_error

_HEADER = 25  # XLogData: 'w', start, end and clock


@dataclass(frozen=True, slots=True)
class Frames:
    """Messages in one buffer: `kind` is each one's type byte, at `start`; the message ends before `end`.

    `seen` has a bit for each type that may be among them: bit number `letter - 64`, or 63 for any other byte.
    """

    buffer: Buffer
    start: Int64s
    end: Int64s
    kind: Bytes
    seen: int = -1

    def __len__(self) -> int:
        return len(self.start)

    def part(self, a: int, b: int) -> Frames:
        return Frames(self.buffer, self.start[a:b], self.end[a:b], self.kind[a:b], self.seen)

    def raw(self) -> bytes:
        """Return the bytes from the first message's header to the last one's end."""
        return self.buffer.raw[int(self.start[0]) - _HEADER : int(self.end[-1])] if len(self) else b""

    @property
    def lengths(self) -> Int64s:
        """Each message's length, header included: the lengths that `frames_of` needs in addition to `raw`."""
        return self.end - self.start + _HEADER

    def message_at(self, i: int) -> bytes:
        """Return one message's bytes, for messages that are read one by one."""
        return self.buffer.raw[int(self.start[i]) : int(self.end[i])]


@dataclass(frozen=True, slots=True)
class Joined:
    """Whole messages one after another, `lengths` bytes each, followed by `PAD` zero bytes."""

    data: bytes
    lengths: Int64s

    def __len__(self) -> int:
        return len(self.lengths)


def join_messages(pieces: Sequence[bytes], lengths: Int64s | None = None) -> Joined:
    """Join messages. `lengths` are those of the single messages if a piece holds several."""
    if lengths is None:
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    return Joined(b"".join([*pieces, bytes(PAD)]), lengths)


def frames_of(messages: Joined) -> Frames:
    """Find where XLogData messages begin and end."""
    lengths, buffer = messages.lengths, Buffer(messages.data)
    end = np.cumsum(lengths)
    if (int(end[-1]) if len(end) else 0) != buffer.size or (lengths < 0).any():
        raise InvariantViolated("messages joined with lengths that are not theirs", runbook="stream-not-understood")
    header = end - lengths
    if len(lengths) and (int(lengths.min()) <= _HEADER or not (buffer.bytes[header] == ord("w")).all()):
        raise protocol_error("a message that is not XLogData")
    start = header + _HEADER
    return Frames(buffer, start, end, buffer.bytes[start])


# ── messages that are read one by one ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """One column as a Relation message names it; `in_identity`: old keys carry it."""

    name: str
    type_oid: int
    type_modifier: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A Relation message. `identity` is `pg_class.relreplident`: d default, n nothing, f full, i index."""

    oid: int
    namespace: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


def relation_of(body: bytes) -> Relation:
    if len(body) < 8:
        raise protocol_error("a Relation message that ends early")
    (oid,) = struct.unpack_from(">I", body)
    namespace, rest = string_at(body, 4)
    name, rest = string_at(rest, 0)
    if len(rest) < 3:
        raise protocol_error("a Relation message that ends early")
    identity, count = chr(rest[0]), struct.unpack_from(">H", rest, 1)[0]
    rest = rest[3:]
    columns = []
    for _ in range(count):
        if not rest:
            raise protocol_error("a Relation message that ends early")
        flags = rest[0]
        column, rest = string_at(rest, 1)
        type_oid, modifier = struct.unpack(">Ii", exactly(rest[:8], 8))
        columns.append(RelationColumn(name_of(column), type_oid, modifier, bool(flags & 1)))
        rest = rest[8:]
    if rest:
        raise protocol_error("a Relation message that continues after its columns")
    return Relation(oid, name_of(namespace) or "pg_catalog", name_of(name), identity, tuple(columns))


def truncated_of(body: bytes) -> tuple[int, ...]:
    if len(body) < 5:
        raise protocol_error("a Truncate message that ends early")
    (count,) = struct.unpack_from(">I", body)
    if len(body) != 5 + 4 * count:
        raise protocol_error("a Truncate message of a wrong length")
    return struct.unpack_from(f">{count}I", body, 5)


def string_at(body: bytes, at: int) -> tuple[bytes, bytes]:
    """Return the zero-terminated string at `at`, and the bytes that follow it."""
    end = body.find(b"\0", at)
    if end < 0:
        raise protocol_error("a name without an end")
    return body[at:end], body[end + 1 :]


def name_of(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise protocol_error("a name that is not UTF-8") from None


def exactly(body: bytes, size: int) -> bytes:
    if len(body) != size:
        raise protocol_error("a message of a wrong length")
    return body
