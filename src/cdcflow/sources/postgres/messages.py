"""Messages of pgoutput that are read one by one, because they are rare, and what they are made of."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cdcflow.sources.buffers import protocol_error


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
        raise protocol_error("a Relation message that goes on after its columns")
    return Relation(oid, name_of(namespace) or "pg_catalog", name_of(name), identity, tuple(columns))


def truncated_of(body: bytes) -> tuple[int, ...]:
    if len(body) < 5:
        raise protocol_error("a Truncate message that ends early")
    (count,) = struct.unpack_from(">I", body)
    if len(body) != 5 + 4 * count:
        raise protocol_error("a Truncate message of a wrong length")
    return struct.unpack_from(f">{count}I", body, 5)


def string_at(body: bytes, at: int) -> tuple[bytes, bytes]:
    """The zero-terminated string at `at`, and what follows it."""
    end = body.find(b"\0", at)
    if end < 0 or at > len(body):
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
