"""A small writer of the server's formats, for tests of the decoders: one message at a time, as simple as possible."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cdcflow.model.table import Identity, TableId
from cdcflow.sources.postgres.types import AttributeInfo, DescribedTable, Policy, describe_table

EPOCH_US = 946_684_800_000_000


@dataclass(frozen=True)
class Unchanged:
    """A cell that the server did not repeat."""


UNCHANGED = Unchanged()
Cell = bytes | None | Unchanged
"""A value's bytes, NULL, or unchanged."""


def xlog(payload: bytes) -> bytes:
    """A payload as the walsender wraps it."""
    return b"w" + struct.pack(">QQq", 0, 0, 0) + payload


def attribute(
    name: str, oid: int, modifier: int = -1, *, key: bool = False, element: int = 0, kind: str = "b"
) -> AttributeInfo:
    return AttributeInfo(
        name=name,
        number=1 + sum(name.encode()) % 1000,
        type_oid=oid,
        type_modifier=modifier,
        type_text=f"type {oid}",
        in_key=key,
        base_oid=oid,
        base_modifier=modifier,
        kind=kind,
        element_oid=element,
        element_modifier=modifier,
    )


def table(
    name: str, oid: int, attributes: Sequence[AttributeInfo], *, full: bool = False, policy: Policy | None = None
) -> DescribedTable:
    identity = Identity.FULL if full else Identity.KEY
    return describe_table(TableId("public", name), oid, attributes, identity, policy or Policy())


def numeric_modifier(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


NO_NUMBERS = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}


def numeric_bytes(text: str) -> bytes:
    """A numeric as the server sends it: groups of four digits around the point, none of them zero at either end."""
    if text in NO_NUMBERS:
        return struct.pack(">HhHh", 0, 0, NO_NUMBERS[text], 0)
    sign, plain = text.startswith("-"), text.removeprefix("-")
    whole, _, fraction = plain.partition(".")
    left, right = whole.rjust(-(-len(whole) // 4) * 4, "0"), fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((left + right)[i : i + 4]) for i in range(0, len(left + right), 4)]
    weight = len(left) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        weight, sign = 0, False
    return struct.pack(f">HhHh{len(groups)}H", len(groups), weight, 0x4000 * sign, len(fraction), *groups)


def _inside(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def begin(xid: int, lsn: int, micros: int = 0) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, micros - EPOCH_US, xid)


def commit(end: int, micros: int = 0) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, end - 8, end, micros - EPOCH_US)


def relation(described: DescribedTable, xid: int | None = None) -> bytes:
    full = described.table.identity is Identity.FULL
    out = b"R" + _inside(xid) + struct.pack(">I", described.table.incarnation)
    out += described.table.id.schema.encode() + b"\0" + described.table.id.name.encode() + b"\0"
    out += (b"f" if full else b"d") + struct.pack(">H", len(described.table.columns))
    for column in described.table.columns:
        flag = full or column.name in described.table.key
        out += struct.pack(">B", flag) + column.name.encode() + b"\0" + struct.pack(">Ii", 25, -1)
    return out


def row(cells: Sequence[Cell], *, binary: bool = False) -> bytes:
    out = struct.pack(">H", len(cells))
    for cell in cells:
        if cell is None:
            out += b"n"
        elif isinstance(cell, Unchanged):
            out += b"u"
        else:
            out += (b"b" if binary else b"t") + struct.pack(">I", len(cell)) + cell
    return out


def insert(oid: int, new: Sequence[Cell], xid: int | None = None, *, binary: bool = False) -> bytes:
    return b"I" + _inside(xid) + struct.pack(">I", oid) + b"N" + row(new, binary=binary)


def update(
    oid: int,
    new: Sequence[Cell],
    xid: int | None = None,
    *,
    old: Sequence[Cell] | None = None,
    key: Sequence[Cell] | None = None,
    binary: bool = False,
) -> bytes:
    before = b"" if old is None else b"O" + row(old, binary=binary)
    before = before if key is None else b"K" + row(key, binary=binary)
    return b"U" + _inside(xid) + struct.pack(">I", oid) + before + b"N" + row(new, binary=binary)


def delete(
    oid: int,
    xid: int | None = None,
    *,
    old: Sequence[Cell] | None = None,
    key: Sequence[Cell] | None = None,
    binary: bool = False,
) -> bytes:
    if key is not None:
        return b"D" + _inside(xid) + struct.pack(">I", oid) + b"K" + row(key, binary=binary)
    assert old is not None
    return b"D" + _inside(xid) + struct.pack(">I", oid) + b"O" + row(old, binary=binary)


def truncate(oids: Sequence[int], xid: int | None = None) -> bytes:
    return b"T" + _inside(xid) + struct.pack(f">IB{len(oids)}I", len(oids), 0, *oids)


def message(content: bytes, prefix: bytes = b"cdcflow", xid: int | None = None, *, transactional: bool = True) -> bytes:
    head = b"M" + _inside(xid) + struct.pack(">BQ", transactional, 1)
    return head + prefix + b"\0" + struct.pack(">I", len(content)) + content


def stream_start(xid: int, *, first: bool) -> bytes:
    return b"S" + struct.pack(">IB", xid, first)


def stream_stop() -> bytes:
    return b"E"


def stream_commit(xid: int, end: int, micros: int = 0) -> bytes:
    return b"c" + struct.pack(">IBQQq", xid, 0, end - 8, end, micros - EPOCH_US)


def stream_abort(xid: int, subxid: int) -> bytes:
    return b"A" + struct.pack(">II", xid, subxid)


def copy_rows(rows: Sequence[Sequence[bytes | None]]) -> list[bytes]:
    """Rows as the CopyData messages of COPY (FORMAT binary), header and trailer included."""
    out = []
    for cells in rows:
        body = struct.pack(">H", len(cells))
        for cell in cells:
            body += struct.pack(">i", -1) if cell is None else struct.pack(">I", len(cell)) + cell
        out.append(body)
    head = b"PGCOPY\n\xff\r\n\0" + struct.pack(">II", 0, 0)
    return [head + out[0] if out else head, *out[1:], b"\xff\xff"]
