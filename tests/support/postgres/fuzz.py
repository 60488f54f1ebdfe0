"""Random bytes as a server would send them, and worse: both decoders must decode them alike.

One seed gives one case: tables of random types, a history of their rows, and the damage that a broken link may do to
it. The whole output is compared: rows to the last bit, transactions, marks and positions, and the place, kind and text
of an error that ends it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from tests.support.postgres.message_bytes import (
    EPOCH_US,
    UNCHANGED,
    Cell,
    attribute,
    begin,
    commit,
    copy_rows,
    message,
    numeric_modifier,
    row,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    truncate,
    xlog,
)
from tests.support.postgres.wire import MemorySpool, Spools

from cdcflow.capture.interleave.messages import Committed
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError
from cdcflow.model.change import ChangeBatch, Run, SpooledTransaction
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.postgres.copy import decode_copy
from cdcflow.sources.postgres.decoders import COMPILED, Compiled
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder, Relation
from cdcflow.sources.postgres.types import AttributeInfo, DescribedTable, Policy, describe_table
from cdcflow.sources.postgres.wire import join_messages


class Pick(random.Random):
    """Where a case's choices are drawn from; `odd`: values that are rare or wrong may be among them."""

    odd = True


Value = Callable[[Pick], bytes]


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────


def _whole(bits: int) -> Callable[[Pick], int]:
    def value(pick: Pick) -> int:
        edge = pick.choice((0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 7, -42))
        return edge if pick.random() < 0.4 else pick.randrange(-(2 ** pick.randrange(1, bits)), 2 ** (bits - 1))

    return value


def _packed(form: str, value: Callable[[Pick], Any]) -> Value:
    return lambda pick: struct.pack(form, value(pick))


def _printed(value: Callable[[Pick], Any]) -> Value:
    return lambda pick: str(value(pick)).encode()


@dataclass(frozen=True)
class OneOf:
    values: tuple[bytes, ...]

    def __call__(self, pick: Pick) -> bytes:
        return pick.choice(self.values)


def _one_of(*values: bytes) -> OneOf:
    return OneOf(values)


@dataclass(frozen=True)
class Mostly:
    """Usual values, and in odd cases rare or wrong ones among them."""

    usual: Value
    rare: Value
    share: float

    def __call__(self, pick: Pick) -> bytes:
        return (self.rare if pick.odd and pick.random() < self.share else self.usual)(pick)


def _mostly(usual: Value, rare: Value, share: float = 0.01) -> Mostly:
    return Mostly(usual, rare, share)


def odd_values(value: Value | None) -> tuple[bytes, ...]:
    """The rare and wrong values that are listed one by one."""
    return value.rare.values if isinstance(value, Mostly) and isinstance(value.rare, OneOf) else ()


def _text(pick: Pick) -> bytes:
    size = pick.choice((0, 1, 3, 9, 15, 16, 17, 40, 200))
    letters = "abc xyz0123" if pick.random() < 0.9 else "aé€😀\n"
    return "".join(pick.choice(letters) for _ in range(size)).encode()


_BAD_TEXT = _one_of(b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82", b"\x80", b"\xf0\x9f\x98")
_TEXT = _mostly(_text, _BAD_TEXT, 0.003)


def _float(pick: Pick) -> float:
    return pick.choice(
        (
            0.0,
            -0.0,
            1.5,
            0.1,
            1e22,
            1e23,
            5e-324,
            1.7976931348623157e308,
            pick.uniform(-1e6, 1e6),
            round(pick.uniform(-1e3, 1e3), 2),
            pick.uniform(-1, 1) * 10 ** pick.randrange(-300, 300),
        )
    )


def _single(pick: Pick) -> bytes:
    """The shortest exact form, as the server prints it."""
    return str(np.float32(pick.uniform(-1, 1) * 10 ** pick.randrange(-30, 30))).encode()


_SPECIAL_FLOATS = _one_of(b"NaN", b"Infinity", b"-Infinity")
_ODD_FLOATS = _one_of(b"nan", b"1e400", b"1.", b".5", b"+1", b"1e5", b"0x1p3", b"", b"-", b"1e", b"1e+", b"1e+5", b"-0")
_FLOATS = _mostly(lambda p: _SPECIAL_FLOATS(p) if p.random() < 0.1 else repr(_float(p)).encode(), _ODD_FLOATS)
_SINGLES = _mostly(lambda p: _SPECIAL_FLOATS(p) if p.random() < 0.1 else _single(p), _ODD_FLOATS)


def _nan_bits(pick: Pick) -> bytes:
    return pick.choice((b"\x7f\xf8\0\0\0\0\0\1", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\x7f\xf0\0\0\0\0\0\0"))


def _numeric(precision: int, scale: int) -> tuple[Value, Value]:
    def number(pick: Pick) -> int:
        return pick.choice((0, 1, -1, 10**precision - 1, pick.randrange(-(10**precision) + 1, 10**precision)))

    def as_text(pick: Pick) -> bytes:
        value = number(pick)
        digits = f"{abs(value):0{scale + 1}d}"
        text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
        return (("-" if value < 0 else "") + text).encode()

    def as_binary(pick: Pick) -> bytes:
        value = number(pick)
        groups, weight = _groups(value, scale)
        return struct.pack(f">hhHh{len(groups)}h", len(groups), weight, 0x4000 if value < 0 else 0, scale, *groups)

    odd_text = _one_of(b"NaN", b"Infinity", b"-Infinity", b"1e3", b"", b"-", b"1.2.3", b"00012", b"9" * 90, b"-0.00")
    odd_binary = _one_of(
        struct.pack(">hhHh", 0, 0, 0xC000, 0),
        struct.pack(">hhHh", 0, 0, 0xD000, 0),
        struct.pack(">hhHh", 0, 0, 0xF000, 0),
        struct.pack(">hhHhh", 1, 300, 0, 0, 1),
        struct.pack(">hhHhh", 1, -9, 0, 20, 1),
        struct.pack(">hhHhh", 1, 0, 0, 0, 12345),
        struct.pack(">hhHhh", 1, 0, 0x1234, 0, 1),
        struct.pack(">hhHhh", 2, 0, 0, 0, 1),
        struct.pack(">hhHhhh", 2, 0, 0, 4, 1, 1234),
    )
    return _mostly(as_text, odd_text), _mostly(as_binary, odd_binary)


def _any_numeric(pick: Pick) -> tuple[int, int]:
    """Digits and a scale."""
    scale = pick.choice((0, 0, 1, 2, 3, 4, 5, 17, 300))
    return pick.choice((0, 1, -5, 10 ** pick.randrange(60), pick.randrange(-(10**30), 10**30))), scale


def _any_numeric_text(pick: Pick) -> bytes:
    value, scale = _any_numeric(pick)
    digits = f"{abs(value):0{scale + 1}d}"
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return (("-" if value < 0 else "") + text).encode()


def _any_numeric_binary(pick: Pick) -> bytes:
    value, scale = _any_numeric(pick)
    groups, weight = _groups(value, scale)
    return struct.pack(f">hhHh{len(groups)}h", len(groups), weight, 0x4000 if value < 0 else 0, scale, *groups)


def _groups(value: int, scale: int) -> tuple[list[int], int]:
    """Groups of four digits around the point, without zero groups at either end, and the first one's weight."""
    digits = str(abs(value)) + "0" * (-scale % 4)
    digits = digits.rjust(-(-len(digits) // 4) * 4, "0")
    groups = [int(digits[i : i + 4]) for i in range(0, len(digits), 4)]
    weight = len(groups) - 1 - -(-scale // 4)
    while groups and not groups[0]:
        groups, weight = groups[1:], weight - 1
    while groups and not groups[-1]:
        groups = groups[:-1]
    return groups, weight if groups else 0


_ODD_NUMERICS = _one_of(
    *(struct.pack(">hhHh", 0, 0, sign, 0) for sign in (0xC000, 0xD000, 0xF000, 0x4000, 0x8000)),
    struct.pack(">hhHhh", 1, 0, 0, 0, 12345),
    struct.pack(">hhHhh", 1, 0, 0, 0, -1),
    struct.pack(">hhHhh", 1, 0, 0, 2, 0),
    struct.pack(">hhHhhh", 2, 1, 0, 0, 0, 7),
    struct.pack(">hhHhh", 1, -2, 0, 3, 0),
    struct.pack(">hhHhh", 1, -1, 0, 0, 0),
    struct.pack(">hhHhh", 1, -1, 0, 0, 1234),
    struct.pack(">hhHhh", 1, -3, 0, 14, 1234),
    struct.pack(">hhHhh", 1, 300, 0x4000, 16383, 1),
    struct.pack(">hhHhh", 1, 0, 0, -1, 1),
    struct.pack(">hhHhh", 1, 0, 0, 0x4000, 1),
    struct.pack(">hhHh", 0, 5, 0, 2),
    struct.pack(">hhHh", 0, 0, 0, 3),
    struct.pack(">hhHh", 3, 0, 0, 0),
    b"\0\0",
    b"",
)


def _array_binary(pick: Pick) -> bytes:
    count = pick.choice((0, 1, 2, 5, 40))
    if not count:
        return struct.pack(">iii", 0, 0, 23)
    element, null = struct.Struct(">ii"), b"\xff\xff\xff\xff"
    cells = (null if pick.random() < 0.2 else element.pack(4, pick.randrange(-9, 9)) for _ in range(count))
    return struct.pack(">iiiii", 1, 1, 23, count, 1) + b"".join(cells)


_ODD_ARRAYS = _one_of(
    struct.pack(">iiiiiiiii", 2, 0, 23, 1, 1, 1, 1, 4, 5),
    struct.pack(">iiiiiii", 1, 0, 23, 1, 0, 4, 5),
    struct.pack(">iiiii", 1, 0, 23, 0, 1),
    struct.pack(">iiiii", 1, 0, 23, 2**31 - 1, 1),
    struct.pack(">iiiii", 1, 0, 23, -1, 1),
    struct.pack(">iiiiiii", 1, 0, 23, 1, 1, 4, 5) + b"x",
    struct.pack(">iiiiii", 1, 0, 23, 1, 1, 4),
    struct.pack(">iiiiiii", 1, 0, 23, 1, 1, -2, 5),
    struct.pack(">iiiiiii", 1, 0, 23, 1, 1, 2**31 - 1, 5),
    struct.pack(">iiiii", 7, 0, 23, 1, 1),
    struct.pack(">iiii", 0, 0, 23, 0),
    struct.pack(">ii", 0, 0),
    b"",
)


def _date_text(pick: Pick) -> bytes:
    return f"{pick.randrange(1, 9999):04d}-{pick.randrange(1, 13):02d}-{pick.randrange(1, 29):02d}".encode()


_ODD_DATES = _one_of(
    b"infinity",
    b"-infinity",
    b"0044-03-15 BC",
    b"12026-01-01",
    b"2023-02-29",
    b"1900-02-29",
    b"2000-02-29",
    b"2026-04-31",
    b"2024-02-29",
    b"2026-13-01",
    b"0000-01-01",
    b"2026-00-10",
    b"20260101",
    b"",
)


def _moment_text(zone: bytes) -> Value:
    def usual(pick: Pick) -> bytes:
        clock = f" {pick.randrange(24):02d}:{pick.randrange(60):02d}:{pick.randrange(60):02d}"
        digits = pick.randrange(7)
        fraction = f".{pick.randrange(10**digits):0{digits}d}" if digits else ""
        return _date_text(pick) + (clock + fraction).encode() + zone

    odd = _one_of(
        b"infinity",
        b"-infinity",
        b"0044-03-15 12:00:00" + zone + b" BC",
        b"294276-12-31 23:59:59.999999" + zone,
        b"2026-01-01 24:00:00" + zone,
        b"2026-01-01 23:59:60" + zone,
        b"2026-01-01T10:00:00" + zone,
        b"2026-01-01 10:00" + zone,
        b"2026-01-01",
        b"2026-02-30 10:00:00" + zone,
        b"2026-01-01 10:00:00.1234567" + zone,
        b"2026-01-01 10:00:00." + zone,
        b"2026-01-01 10:00:00+02",
        b"2026-01-01 10:00:00" + zone + b"+00",
    )
    return _mostly(usual, odd)


_MICROS = _mostly(
    _packed(">q", lambda p: p.randrange(-(2**56), 2**56)),
    _one_of(*(struct.pack(">q", v) for v in (2**63 - 1, -(2**63), 2**63 - EPOCH_US, -(2**63) + 1))),
)
_DAYS = _mostly(
    _packed(">i", lambda p: p.randrange(-700_000, 2_900_000)),
    _one_of(*(struct.pack(">i", v) for v in (2**31 - 1, -(2**31), 2**31 - 2, 2**31 - 10_957))),
)
_CLOCK = _mostly(
    _packed(">q", lambda p: p.choice((0, 86_400_000_000, p.randrange(86_400_000_000)))),
    _packed(">q", lambda p: p.choice((-1, 86_400_000_001, 2**60))),
)


def _interval(pick: Pick) -> bytes:
    if pick.odd and pick.random() < 0.01:
        return pick.choice(
            (struct.pack(">qii", 2**63 - 1, 2**31 - 1, 2**31 - 1), struct.pack(">qii", 0, -5, 2**31 - 1))
        )
    return struct.pack(">qii", pick.randrange(-(2**40), 2**40), pick.randrange(-99, 99), pick.randrange(-99, 99))


def _bits(pick: Pick) -> bytes:
    count = pick.choice((0, 1, 7, 8, 9, 40))
    return struct.pack(">I", count) + pick.randbytes((count + 7) // 8)


@dataclass(frozen=True)
class Way:
    """How one type's values are written; `binary` None: only as text."""

    oid: int
    text: Value
    binary: Value | None
    modifier: int = -1
    element: int = 0


_BOOLS = _mostly(_one_of(b"t", b"f"), _one_of(b"x", b"", b"true"))
_INT4S = _mostly(_printed(_whole(32)), _one_of(b"-0", b"007", b"2147483648", b"1 ", b""))
_FLOAT4S = _mostly(_packed(">f", lambda p: p.uniform(-9, 9)), _one_of(b"\x7f\xc0\0\1", b"\xff\xff\0\0"))
_HEX = _mostly(
    lambda p: b"\\x" + p.randbytes(p.randrange(20)).hex().encode(), _one_of(b"\\x0", b"\\xAB", b"ab", b"", b"\\x")
)
_ARRAYS = _mostly(_one_of(b"{1,2,NULL}", b"{}", b"{-5}"), _one_of(b"{{1},{2}}", b"[0:1]={1,2}", b"{x}"))
_INTERVALS = _one_of(b"1 year 2 mons 3 days 04:05:06.7", b"-1 days +02:03:04", b"00:00:00", b"infinity", b"1 day")
WAYS = (
    Way(16, _BOOLS, _mostly(_one_of(b"\0", b"\1"), _one_of(b"\2"))),
    Way(21, _printed(_whole(16)), _packed(">h", _whole(16))),
    Way(23, _INT4S, _packed(">i", _whole(32))),
    Way(20, _mostly(_printed(_whole(64)), _one_of(b"9" * 19, b"-", b"1_0")), _packed(">q", _whole(64))),
    Way(26, _printed(lambda p: p.randrange(2**32)), _packed(">I", lambda p: p.randrange(2**32))),
    Way(701, _FLOATS, _mostly(_packed(">d", _float), _nan_bits, 0.1)),
    Way(700, _SINGLES, _FLOAT4S),
    Way(1700, *_numeric(10, 2), modifier=numeric_modifier(10, 2)),
    Way(1700, *_numeric(18, 7), modifier=numeric_modifier(18, 7)),
    Way(1700, *_numeric(18, 1), modifier=numeric_modifier(18, 1)),
    Way(1700, *_numeric(5, 5), modifier=numeric_modifier(5, 5)),
    Way(1700, *_numeric(38, 9), modifier=numeric_modifier(38, 9)),
    Way(1700, *_numeric(76, 38), modifier=numeric_modifier(76, 38)),
    Way(1700, _any_numeric_text, _mostly(_any_numeric_binary, _ODD_NUMERICS)),
    Way(790, _one_of(b"$1,234.50", b"-$0.01", b"$0.00"), _packed(">q", _whole(64))),
    Way(25, _TEXT, _TEXT),
    Way(1043, _TEXT, _TEXT),
    Way(17, _HEX, _TEXT),
    Way(3802, _TEXT, lambda p: (b"\2" if p.odd and p.random() < 0.001 else b"\1") + _TEXT(p)),
    Way(1082, _mostly(_date_text, _ODD_DATES), _DAYS),
    Way(1114, _moment_text(b""), _MICROS),
    Way(1184, _moment_text(b"+00"), _MICROS),
    Way(1083, _TEXT, _CLOCK),
    Way(1266, _TEXT, lambda p: _CLOCK(p) + struct.pack(">i", p.choice((0, 3600, -7200, 19_800, -57_599, 100)))),
    Way(1186, _INTERVALS, _interval),
    Way(2950, _TEXT, lambda p: p.randbytes(16)),
    Way(1562, _TEXT, _bits),
    Way(869, _TEXT, None),
    Way(1007, _ARRAYS, _mostly(_array_binary, _ODD_ARRAYS), element=23),
)


# ── tables and histories ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Fuzzed:
    """One table: its shape, how its values are generated, and its Relation message."""

    described: DescribedTable
    ways: list[Way]
    in_identity: list[bool]

    @property
    def oid(self) -> int:
        return self.described.table.incarnation

    def relation(self, xid: int | None) -> bytes:
        table = self.described.table
        letter = b"f" if table.identity is Identity.FULL else b"d"
        out = b"R" + _inside(xid) + struct.pack(">I", self.oid) + table.id.schema.encode() + b"\0"
        out += table.id.name.encode() + b"\0" + letter + struct.pack(">H", len(table.columns))
        for column, flag in zip(table.columns, self.in_identity, strict=True):
            out += struct.pack(">B", flag) + column.name.encode() + b"\0" + struct.pack(">Ii", 25, -1)
        return out

    def values(self, pick: Pick, *, binary: bool) -> list[Cell]:
        return [
            None if pick.random() < 0.1 else self.value(pick, way, binary=binary and way.binary is not None)
            for way in self.ways
        ]

    def value(self, pick: Pick, way: Way, *, binary: bool) -> bytes:
        if pick.odd and pick.random() < 0.002:
            return pick.randbytes(pick.randrange(24))
        return way.binary(pick) if binary and way.binary is not None else way.text(pick)


def _inside(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def fuzzed_table(pick: Pick, oid: int, name: str, *, binary: bool, like: Fuzzed | None = None) -> Fuzzed:
    """A table; with `like`, a different shape of that table, with the same key."""
    ways = [pick.choice([w for w in WAYS if w.binary or not binary]) for _ in range(pick.choice((1, 2, 3, 6, 10)))]
    keys = pick.choice((0, 1, 1, 1, 2)) if like is None else len(like.described.table.key)
    ways[:0] = [WAYS[2], *ways[: keys - 1]] if like is None else like.ways[: max(keys, 1)]
    attributes = [attribute(f"c{n}", w.oid, w.modifier, key=n < keys, element=w.element) for n, w in enumerate(ways)]
    return _described(pick, oid, name, attributes, ways, full=not keys or pick.random() < 0.4)


def _described(
    pick: Pick, oid: int, name: str, attributes: Sequence[AttributeInfo], ways: list[Way], *, full: bool
) -> Fuzzed:
    stopping = {f"public.{name}.{a.name}": "stop" for a in attributes if a.in_key}  # keys bear nothing else
    policy = Policy(special_values=pick.choice(("stop", "null", "null", "clamp", "clamp")), columns=stopping)
    identity = Identity.FULL if full else Identity.KEY
    described = describe_table(TableId("public", name), oid, attributes, identity, policy)
    lacking = pick.odd and pick.random() < 0.05
    return Fuzzed(described, ways, [(full or a.in_key) and not lacking for a in attributes])


@dataclass
class Case:
    """What both decoders are given: messages with their headers, how many at a time, and how to begin."""

    messages: list[bytes]
    shapes: list[Fuzzed]
    sizes: int
    options: dict[str, Any]
    joined: bool
    malformed: bool = False


@dataclass
class _Writer:
    pick: Pick
    binary: bool
    tables: list[list[Fuzzed]]
    messages: list[bytes] = field(default_factory=list)
    told: dict[int, Fuzzed] = field(default_factory=dict)
    lsn: int = 2**32 - 900
    ends: list[int] = field(default_factory=list)

    def relation(self, oid: int, xid: int | None, told: dict[int, Fuzzed]) -> Fuzzed:
        if oid not in told or self.pick.random() < 0.03:
            told[oid] = self.pick.choice(self.tables[oid - 1])
            self.messages.append(told[oid].relation(xid))
        return told[oid]

    def change(self, xid: int | None, told: dict[int, Fuzzed]) -> None:
        pick = self.pick
        table = self.relation(pick.randrange(len(self.tables)) + 1, xid, told)
        roll = pick.random()
        if roll < 0.02:
            self.messages.append(truncate([table.oid, *(o for o in sorted(told) if pick.random() < 0.2)], xid))
            return
        if roll < 0.04:
            self.messages.append(
                pick.choice(
                    (
                        message(b"e/1/low", xid=xid),
                        message(b"heartbeat", xid=xid, transactional=False),
                        message(b"x", b"other", xid),
                        b"Y" + _inside(xid) + struct.pack(">I", 9) + b"s\0t\0",
                    )
                )
            )
            return
        new = table.values(pick, binary=self.binary)
        if pick.random() < 0.2:
            new = [UNCHANGED if n and pick.random() < 0.4 else c for n, c in enumerate(new)]
        old = table.values(pick, binary=self.binary)
        if pick.random() < 0.7:
            keys = sum(c.name in table.described.table.key for c in table.described.table.columns)
            old[:keys] = [new[n] if new[n] is not UNCHANGED else old[n] for n in range(keys)]
        full = table.described.table.identity is Identity.FULL
        marker = b"O" if (full and pick.random() < 0.95) or pick.random() < 0.02 else b"K"
        if marker == b"K":
            old = [c if sent else None for c, sent in zip(old, table.in_identity, strict=True)]
        head = _inside(xid) + struct.pack(">I", table.oid)
        before, after = marker + row(old, binary=self.binary), b"N" + row(new, binary=self.binary)
        kind = pick.choice("IIIUUUD")
        if kind == "I":
            self.messages.append(b"I" + head + after)
        elif kind == "D":
            self.messages.append(b"D" + head + before)
        else:
            self.messages.append(b"U" + head + (before if pick.random() < (0.9 if full else 0.4) else b"") + after)

    def transaction(self, xid: int, rows: int) -> None:
        self.messages.append(begin(xid, self.lsn))
        if self.pick.random() < 0.05:
            self.messages.append(b"O" + struct.pack(">Q", 5) + b"origin\0")
        for _ in range(rows):
            self.change(None, self.told)
        self.lsn += self.pick.randrange(50, 90)
        self.ends.append(self.lsn)
        self.messages.append(commit(self.lsn, xid * 1000))

    def streamed(self, xid: int) -> None:
        told: dict[int, Fuzzed] = {}
        for number in range(self.pick.randrange(1, 4)):
            self.messages.append(stream_start(xid, first=not number))
            for _ in range(self.pick.randrange(6)):
                self.change(xid + self.pick.randrange(3), told)
            self.messages.append(stream_stop())
            if self.pick.random() < 0.3:
                self.messages.append(stream_abort(xid, xid + self.pick.randrange(1, 3)))
                told.clear()
        self.lsn += 64
        self.messages.append(stream_commit(xid, self.lsn, xid))
        self.told |= told


def case_of_value(way: Way, policy: Policy, before: bytes, value: bytes, *, binary: bool) -> Case:
    """Two rows of one column, the second with this value."""
    column = attribute("v", way.oid, way.modifier, element=way.element)
    described = describe_table(TableId("public", "t"), 1, [column], Identity.KEY, policy)
    table = Fuzzed(described, [way], [False])
    rows = [b"I" + struct.pack(">I", 1) + b"N" + row([v], binary=binary) for v in (before, value)]
    messages = [xlog(m) for m in (begin(1, 8), table.relation(None), *rows, commit(64))]
    return Case(messages, [table], 10, {"binary": binary, "spool_bytes_max": 1 << 30, "skip_until": 0}, joined=True)


def case_of(seed: int) -> Case:
    """The case with this number."""
    pick = Pick(seed)
    pick.odd = pick.random() < 0.3
    binary = pick.random() < 0.5
    tables = []
    for oid in range(1, pick.randrange(2, 5)):
        first = fuzzed_table(pick, oid, f"t{oid}", binary=binary)
        shapes = [first]
        if pick.random() < 0.4:
            shapes.append(fuzzed_table(pick, oid, f"t{oid}", binary=binary, like=first))
        tables.append(shapes)
    writer = _Writer(pick, binary, tables)
    for step in range(pick.randrange(1, 8)):
        if pick.random() < 0.2:
            writer.streamed(100 * step + 10)
        else:
            writer.transaction(100 * step + 1, pick.choice((0, 1, 1, 2, 5, 20, 50, 300)))
    messages = [xlog(m) for m in writer.messages]
    malformed = pick.random() < 0.35
    if malformed:
        messages = _garbled(pick, messages)
    return Case(
        messages=messages,
        shapes=[shape for shapes in tables for shape in shapes],
        sizes=pick.choice((1, 2, 3, 7, 20, 10_000, 10_000)),
        options={
            "binary": binary,
            "spool_bytes_max": pick.choice((60, 3000, *(1 << 30 for _ in range(4)))),
            "skip_until": pick.choice((0, 0, *writer.ends)),
        },
        joined=pick.random() < 0.5,
        malformed=malformed,
    )


def _garbled(pick: Pick, messages: list[bytes]) -> list[bytes]:
    """The damage that a broken link or a hostile server may do to messages."""
    out = list(messages)
    for _ in range(pick.choice((1, 1, 2, 5))):
        number = pick.randrange(len(out))
        body = bytearray(out[number])
        if len(body) <= 25:
            continue
        match pick.randrange(8):
            case 0 | 1 | 2:
                place = pick.randrange(25 if pick.random() < 0.9 else 0, len(body))
                body[place] ^= pick.randrange(1, 256)
            case 3:
                del body[pick.randrange(25 if pick.random() < 0.9 else 0, len(body)) :]
            case 4:
                body += pick.randbytes(pick.randrange(1, 9))
            case 5:
                place = pick.randrange(25, len(body))
                body[place : place + 4] = pick.choice(
                    (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\1\0\0")
                )
            case 6:
                out.insert(pick.randrange(len(out)), bytes(body))
                continue
            case _:
                if len(out) > 1:
                    del out[number]
                continue
        out[number] = bytes(body)
    return out


# ── the same of both ────────────────────────────────────────────────────────────────────────────────────────


class UnknownTable(Exception):
    """A relation that no shape of the case is."""


def outcome(case: Case, compiled: Compiled | None) -> list[object]:
    """The whole output of one decoder for a case, in a comparable form."""
    spools = Spools()

    def describe(found: Relation) -> DescribedTable:
        for shape in case.shapes:
            names = [c.name for c in shape.described.table.columns]
            if shape.oid == found.oid and names == [c.name for c in found.columns]:
                return shape.described
        raise UnknownTable

    decoder = PgoutputDecoder(describe=describe, open_spool=spools, compiled=compiled, **case.options)
    seen: list[object] = []
    try:
        for i in range(0, len(case.messages), case.sizes):
            some = case.messages[i : i + case.sizes]
            seen += map(_event, decoder.decode(join_messages(some) if case.joined else some))
    except (CdcflowError, UnknownTable) as error:
        seen.append((type(error), str(error), getattr(error, "remedy", None)))
    seen.append((decoder.idle, decoder.messages_ignored))
    seen += [_spool(spool) for spool in spools.all.values()]
    return seen


def differs(case: Case) -> str | None:
    """Where the decoders differ; None: nowhere."""
    plain, compiled = outcome(case, None), outcome(case, COMPILED)
    if plain == compiled:
        return None
    for a, b in zip(plain, compiled, strict=False):
        if a != b:
            return f"plain:    {a!r}\ncompiled: {b!r}"
    return f"plain: {len(plain)} things, compiled: {len(compiled)}"


def copy_differs(seed: int) -> tuple[int, bool, str | None]:
    """Rows of a COPY: how many, whether they were malformed, and where the decoders differ."""
    pick = Pick(seed)
    pick.odd = pick.random() < 0.3
    table = fuzzed_table(pick, 1, "t1", binary=pick.random() < 0.5)
    rows = []
    for _ in range(pick.choice((0, 1, 2, 9, 40, 300))):
        cells = table.values(pick, binary=True)
        rows.append([c if isinstance(c, bytes) else None for c in cells])
    messages = copy_rows(rows)
    malformed = pick.random() < 0.5
    if malformed:
        messages = [m[25:] for m in _garbled(pick, [bytes(25) + m for m in messages])]
    data: Any = pick.choice((messages, join_messages(messages), b"".join(messages)))
    found = []
    for compiled in (None, COMPILED):
        try:
            found.append(_rows(decode_copy(data, table.described, compiled)))
        except CdcflowError as error:
            found.append((type(error), str(error), error.remedy))
    return len(rows), malformed, None if found[0] == found[1] else f"plain:    {found[0]!r}\ncompiled: {found[1]!r}"


def _rows(batch: pa.RecordBatch) -> object:
    batch.validate(full=True)
    return batch.schema.to_string(), [_column(c) for c in batch.columns]


def _column(array: pa.Array) -> object:
    """A column's values; floats as their bits, for NaN is not equal to itself."""
    if pa.types.is_floating(array.type):
        return array.view(pa.int64() if array.type.bit_width == 64 else pa.int32()).to_pylist()
    if pa.types.is_struct(array.type):
        return array.is_valid().to_pylist(), [_column(c) for c in array.flatten()]
    if pa.types.is_timestamp(array.type):
        return array.view(pa.int64()).to_pylist()
    if pa.types.is_date(array.type):
        return array.view(pa.int32()).to_pylist()
    return array.to_pylist()


def _batch(batch: ChangeBatch) -> object:
    return batch.table, batch.index.dtype, batch.index.tolist(), _rows(batch.rows)


def _event(event: StreamEvent) -> object:
    if not isinstance(event, Committed):
        return event
    run = event.run
    if isinstance(run, SpooledTransaction):
        partial = {table: _rows(k.keys.combine_chunks().to_batches()[0]) for table, k in run.partial.items()}
        return (
            *(run.xid, run.position, run.commit_ts, run.rows, run.spool, run.aborted, run.shapes, run.truncated),
            *(partial, run.origin),
        )
    assert isinstance(run, Run)
    return (
        *((a.dtype, a.tolist()) for a in (run.xid, run.commit_ts, run.ends)),
        run.position.to_pylist(),
        [_batch(b) for b in run.batches],
        run.kind,
        None if run.origin is None else run.origin.to_pylist(),
    )


def _spool(spool: MemorySpool) -> object:
    pieces = [([_batch(b) for b in batches], None if subs is None else subs.tolist()) for batches, subs in spool.pieces]
    return spool.finished, spool.discarded, pieces
