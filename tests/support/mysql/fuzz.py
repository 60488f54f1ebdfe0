"""Random tables, rows and packets for both MySQL decoders, each generated from one seed."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from tests.support.mysql.values import bitmap, column, image, joined, result_row

from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.mysql import decoders, results, rows, wire
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.rows import RowKind
from cdcflow.sources.mysql.tables import DescribedTable, describe
from cdcflow.sources.mysql.types.columns import Policy, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.numbers import bit_metadata, decimal_metadata, digit_groups

Pick = random.Random
Cell = Callable[[Pick], bytes]


@dataclass(frozen=True, slots=True)
class Kind:
    """A column, and how its values are generated: as a row image has them, and as text."""

    column: ServerColumn
    image: Cell
    text: Cell


def kind_of(pick: Pick, name: str) -> Kind:
    return pick.choice(_KINDS)(pick, name)


def _integer(pick: Pick, name: str) -> Kind:
    sizes = {TypeCode.TINY: 1, TypeCode.SHORT: 2, TypeCode.INT24: 3, TypeCode.LONG: 4, TypeCode.LONGLONG: 8}
    code, unsigned = pick.choice(list(sizes)), pick.random() < 0.5
    bits = 8 * sizes[code]

    def number(pick: Pick) -> int:
        low, high = (0, 2**bits) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        return pick.choice((low, high - 1, pick.randrange(low, high), min(7, high - 1)))

    return Kind(
        column(name, code, unsigned=unsigned),
        lambda p: (number(p) & (2**bits - 1)).to_bytes(bits // 8, "little"),
        lambda p: str(number(p)).encode(),
    )


def _float(pick: Pick, name: str) -> Kind:
    def number(p: Pick) -> float:
        return p.choice((0.0, -0.0, 1.5, 0.1, p.uniform(-1e6, 1e6), p.uniform(-1, 1) * 10.0 ** p.randrange(-37, 38)))

    code, form = pick.choice(((TypeCode.FLOAT, "<f"), (TypeCode.DOUBLE, "<d")))
    return Kind(
        column(name, code, struct.calcsize(form)),
        lambda p: struct.pack(form, number(p)),
        lambda p: repr(number(p)).replace("e+", "e").encode(),
    )


def _decimal(pick: Pick, name: str) -> Kind:
    precision = pick.choice((1, 9, 10, 18, 19, 20, 38, 39, 65))
    scale = pick.randrange(min(precision, 30) + 1)

    def stored(p: Pick) -> bytes:
        raw = bytearray(
            b"".join(p.randrange(10**n).to_bytes(size, "big") for size, n in digit_groups(precision, scale))
        )
        raw[0] ^= 0x80
        return bytes(b ^ 0xFF for b in raw) if p.random() < 0.5 else bytes(raw)

    def printed(p: Pick) -> bytes:
        digits = f"{p.randrange(10 ** p.randrange(1, precision + 1)):0{scale + 1}d}"
        return (p.choice(("", "-")) + digits[: len(digits) - scale] + ("." + digits[-scale:] if scale else "")).encode()

    return Kind(column(name, TypeCode.DECIMAL, decimal_metadata(precision, scale)), stored, printed)


def _bits(pick: Pick, name: str) -> Kind:
    bits = pick.choice((1, 8, 9, 64))

    def value(p: Pick) -> bytes:
        return p.getrandbits(bits).to_bytes((bits + 7) // 8, "big")

    return Kind(column(name, TypeCode.BIT, bit_metadata(bits)), value, value)


def _day(p: Pick) -> tuple[int, int, int]:
    if p.random() < 0.01:
        return p.randrange(3000), p.randrange(16), p.randrange(32)
    return p.randrange(1, 10000), p.randrange(1, 13), p.randrange(1, 29)


def _clock(p: Pick) -> tuple[int, int, int]:
    return p.randrange(24), p.randrange(60), p.randrange(60)


def _date(pick: Pick, name: str) -> Kind:
    def stored(p: Pick) -> bytes:
        year, month, day = _day(p)
        return (year << 9 | month << 5 | day).to_bytes(3, "little")

    return Kind(column(name, TypeCode.DATE), stored, lambda p: b"%04d-%02d-%02d" % _day(p))


def _fraction(digits: int) -> Cell:
    width = (digits + 1) // 2
    return lambda p: (p.randrange(10**digits) * 10 ** (2 * width - digits)).to_bytes(width, "big")


def _moment(pick: Pick, name: str) -> Kind:
    digits, code = pick.randrange(7), pick.choice((TypeCode.DATETIME, TypeCode.TIMESTAMP))
    fraction = _fraction(digits)

    def stored(p: Pick) -> bytes:
        if code == TypeCode.TIMESTAMP:
            return p.choice((0, 1, p.getrandbits(32), p.getrandbits(31))).to_bytes(4, "big") + fraction(p)
        (year, month, day), (hour, minute, second) = _day(p), _clock(p)
        packed = (year * 13 + min(month, 12)) << 22 | day << 17 | hour << 12 | minute << 6 | second
        return (packed + (1 << 39)).to_bytes(5, "big") + fraction(p)

    def printed(p: Pick) -> bytes:
        tail = b".%0*d" % (digits, p.randrange(10**digits)) if digits else b""
        return b"%04d-%02d-%02d %02d:%02d:%02d" % (*_day(p), *_clock(p)) + tail

    return Kind(column(name, code, digits), stored, printed)


def _time(pick: Pick, name: str) -> Kind:
    digits = pick.randrange(7)
    width = (digits + 1) // 2

    def stored(p: Pick) -> bytes:
        _, minute, second = _clock(p)
        packed = (p.randrange(839) << 12 | minute << 6 | second) << 8 * width
        packed |= int.from_bytes(_fraction(digits)(p), "big")
        return ((0x800000 << 8 * width) + p.choice((1, -1)) * packed).to_bytes(3 + width, "big")

    def printed(p: Pick) -> bytes:
        _, minute, second = _clock(p)
        tail = b".%0*d" % (digits, p.randrange(10**digits)) if digits else b""
        return p.choice((b"", b"-")) + b"%02d:%02d:%02d" % (p.randrange(839), minute, second) + tail

    return Kind(column(name, TypeCode.TIME, digits), stored, printed)


def _year(pick: Pick, name: str) -> Kind:
    return Kind(column(name, TypeCode.YEAR), lambda p: p.randbytes(1), lambda p: b"%04d" % p.choice((0, 1901, 2155)))


def _text(pick: Pick, name: str) -> Kind:
    collation = pick.choice((45, 45, 45, 33, 8, 8, 11, 10, 13, 28, 54, 63, 63))
    code, size = pick.choice(
        (
            (TypeCode.CHAR, 40),
            (TypeCode.CHAR, 900),
            (TypeCode.VARCHAR, 200),
            (TypeCode.VARCHAR, 400),
            *((TypeCode.BLOB, n) for n in (1, 2, 3, 4)),
        )
    )

    def value(p: Pick) -> bytes:
        length = p.choice((0, 1, 3, 7, 8, 9, 20, 38))
        letters = "abc xyz0123" if p.random() < 0.95 else "aé€😀"
        raw = "".join(p.choice(letters) for _ in range(length)).encode()[:40]
        if collation == 54:
            return raw.decode("utf-8", "ignore").encode("utf-16-be")[:40]
        return raw.decode("utf-8", "ignore").encode() if collation in (45, 33) else raw

    return Kind(column(name, code, size, collation=collation), value, value)


def _labelled(pick: Pick, name: str) -> Kind:
    labels = tuple(f"l{n}" for n in range(pick.choice((1, 3, 8, 60, 64))))
    if pick.random() < 0.5:
        of = column(name, TypeCode.ENUM, 1, labels=labels, collation=45)
        return Kind(of, lambda p: bytes([p.randrange(len(labels) + 1)]), lambda p: p.choice(labels).encode())
    width = next(n for n in (1, 2, 3, 4, 8) if 8 * n >= len(labels))
    of = column(name, TypeCode.SET, width, labels=labels, collation=45)
    return Kind(
        of,
        lambda p: p.getrandbits(len(labels)).to_bytes(width, "little"),
        lambda p: ",".join(p.sample(labels, p.randrange(len(labels) + 1))).encode(),
    )


_DOCUMENTS = tuple(
    bytes.fromhex(document)
    for document in (
        "0400",
        "05ffff",
        "0003002a00190001001a0001001b000200021d000501000502006162616103000d00040100040200040000",
        "0207003b00050100071900071d000921000a29000b31000c3900409c00007011010000a22f4dffffffffffffffffffffffff0000000"
        "00000f83f0178",
    )
)


def _document(pick: Pick, name: str) -> Kind:
    def stored(p: Pick) -> bytes:
        if p.random() < 0.2:
            return p.choice(_DOCUMENTS)
        kind, value = _json(p, p.randrange(4))
        raw = bytearray(bytes([kind]) + value)
        if p.random() < 0.02:
            raw[p.randrange(len(raw))] = p.choice((0, 1, 4, 12, 15, 255))
        return bytes(raw)

    return Kind(column(name, TypeCode.JSON, 4), stored, lambda p: p.choice((b"[]", b'{"a": 1}', b'"x"')))


def _json(p: Pick, depth: int) -> tuple[int, bytes]:
    """A value's type and its binary form."""
    if depth == 0 or p.random() < 0.3:
        return _json_scalar(p)
    keyed, large = p.random() < 0.5, p.random() < 0.2
    width = 4 if large else 2
    parts = [_json(p, depth - 1) for _ in range(p.randrange(4))]
    keys = [p.choice(("", "a", "key", 'é"')).encode() for _ in parts] if keyed else []
    at = 2 * width + len(keys) * (width + 2) + len(parts) * (width + 1)
    heads, tails = [], []
    for key in keys:
        heads.append(at.to_bytes(width, "little") + len(key).to_bytes(2, "little"))
        tails.append(key)
        at += len(key)
    for kind, value in parts:
        inline = kind in (4, 5, 6) or (large and kind in (7, 8))
        heads.append(bytes([kind]) + (value.ljust(width, b"\0") if inline else at.to_bytes(width, "little")))
        if not inline:
            tails.append(value)
            at += len(value)
    head = len(parts).to_bytes(width, "little") + at.to_bytes(width, "little")
    return (0 if keyed else 2) + large, head + b"".join(heads + tails)


def _json_scalar(p: Pick) -> tuple[int, bytes]:
    kind = p.choice((4, 5, 6, 7, 8, 9, 10, 11, 12, 15 if p.random() < 0.05 else 12))
    if kind == 4:
        return kind, bytes([p.randrange(3)])
    if kind == 11:
        odd = struct.unpack("<d", p.randbytes(8))[0]
        return kind, struct.pack("<d", p.choice((0.0, -0.0, 1e15, 1e-15, 5e-324, round(p.uniform(-1e6, 1e6), 3), odd)))
    if kind == 12:
        raw = "".join(p.choice('abc "\\\n\x01é😀') for _ in range(p.choice((0, 3, 40)))).encode()
        return kind, (bytes([len(raw)]) if len(raw) < 128 else bytes([len(raw) & 127 | 128, len(raw) >> 7])) + raw
    if kind == 15:
        return kind, b"\xf6\x04\x03\x02\x81\x32"
    return kind, p.randbytes((2, 2, 4, 4, 8, 8)[kind - 5])


def _special(pick: Pick, name: str) -> Kind:
    extra, size = pick.choice((("uuid", 16), ("inet4", 4), ("inet6", 16)))
    of = column(name, TypeCode.CHAR, size, collation=63, extra=extra)
    return Kind(of, lambda p: p.randbytes(p.choice((0, size - 1, size))), lambda p: p.choice((b"::1", b"10.0.0.1")))


def _packed(pick: Pick, name: str) -> Kind:
    value = pick.choice((b"abc" * 20, b"", b"z"))
    of = column(name, TypeCode.BLOB_COMPRESSED, 2, collation=45)
    stored = b"\x82" + len(value).to_bytes(2, "big") + zlib.compress(value)
    return Kind(of, lambda p: p.choice((stored, b"\0" + value)), lambda p: value)


_KINDS = (
    *(_integer,) * 4, _float, *(_decimal,) * 2, _bits, _date, _moment, _moment, _time, _year, *(_text,) * 4, _labelled,
    _document, _special, _packed,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One batch for both decoders. `rows` counts the rows before any was malformed."""

    shape: DescribedTable
    kinds: tuple[Kind, ...]
    kind: RowKind
    before: tuple[bool, ...]
    after: tuple[bool, ...]
    data: bytes
    extents: Extents
    rows: int
    malformed: bool


def case_of(number: int) -> Case:
    """Rows of ROWS events."""
    pick = random.Random(number)
    kinds = tuple(kind_of(pick, f"c{n}") for n in range(pick.choice((1, 2, 4, 8, 9, 17))))
    shape = _shape(pick, kinds)
    kind = pick.choice(list(RowKind))
    count = len(kinds)
    before, after = ((True,) * count for _ in range(2))
    if kind is RowKind.UPDATE and pick.random() < 0.3:
        before = tuple(name in shape.table.key or pick.random() < 0.6 for name in shape.table.row_schema.names)
        after = tuple(pick.random() < 0.6 for _ in kinds)
    sent = {RowKind.INSERT: (after,), RowKind.DELETE: (before,), RowKind.UPDATE: (before, after)}[kind]
    events, total = [], 0
    for _ in range(pick.choice((0, 1, 2, 5))):
        event = b""
        for _ in range(pick.choice((0, 1, 3, 30))):
            event += _row(pick, shape, kinds, sent)
            total += 1
        events.append(event)
    data, extents = joined(events)
    malformed = pick.random() < 0.3
    if malformed:
        data, extents = _garbled(pick, data, extents)
    return Case(shape, kinds, kind, before, after, data, extents, total, malformed)


def result_case_of(number: int) -> Case:
    """Rows of a result set."""
    pick = random.Random(number)
    kinds = tuple(kind_of(pick, f"c{n}") for n in range(pick.choice((1, 3, 8))))
    shape = _shape(pick, kinds)
    count = pick.choice((0, 1, 10, 60))
    packets = []
    for _ in range(count):
        cells = [None if pick.random() < 0.1 else kind.text(pick) for kind in kinds]
        if pick.random() < 0.01:
            cells[pick.randrange(len(cells))] = pick.choice((b"", b"-", b"1e400", b"\xff", b"0000-00-00", b"1" * 70))
        packets.append(result_row(cells))
    data, extents = joined(packets)
    malformed = pick.random() < 0.3
    if malformed:
        data, extents = _garbled(pick, data, extents)
    sent = (True,) * len(kinds)
    return Case(shape, kinds, RowKind.INSERT, sent, sent, data, extents, count, malformed)


def _shape(pick: Pick, kinds: tuple[Kind, ...]) -> DescribedTable:
    key = [] if pick.random() < 0.1 else [k.column.name for k in kinds[: pick.choice((1, 2))]]
    policy = Policy(pick.choice(("stop", "null", "null", "text")), pick.choice(("stop", "replace")))
    table, columns = TableId("shop", "orders"), [k.column for k in kinds]
    try:
        return describe(table, columns, key, Identity.KEY, policy)
    except ConfigurationError:  # the policy would make two keys equal
        return describe(table, columns, key, Identity.KEY, Policy())


def _row(pick: Pick, shape: DescribedTable, kinds: tuple[Kind, ...], sent: tuple[tuple[bool, ...], ...]) -> bytes:
    cells: list[bytes | None] = [None if pick.random() < 0.1 else kind.image(pick) for kind in kinds]
    out = b""
    for part in sent:
        out += image(shape, [c for c, here in zip(cells, part, strict=True) if here], part)
        if pick.random() < 0.5:
            cells[pick.randrange(len(cells))] = pick.choice(kinds).image(pick) if pick.random() < 0.001 else None
    return out


def _garbled(pick: Pick, data: bytes, extents: Extents) -> tuple[bytes, Extents]:
    """Some bytes are others, or some event ends elsewhere."""
    raw, end = bytearray(data), extents.end.copy()
    reached = int(end.max()) if len(end) else 0
    for _ in range(pick.choice((1, 1, 2, 5))):
        if reached:
            raw[pick.randrange(reached)] = pick.choice((0, 1, 255, 254, 0x80, pick.randrange(256)))
    if len(end) and pick.random() < 0.3:
        n = pick.randrange(len(end))
        end[n] = pick.randrange(int(extents.start[n]), int(end[n]) + 1)
    return bytes(raw), Extents(extents.start, end)


def outcome(decode: Callable[[], Any]) -> Any:
    """The result, or the error's kind and words."""
    try:
        return decode()
    except CdcflowError as error:
        return type(error).__name__, str(error)


def differs(number: int) -> str:
    """Where the decoders do not give the same for rows of ROWS events; empty where they do."""
    case = case_of(number)
    found = [
        outcome(
            lambda decode=decode: decode(  # type: ignore[misc]  # bound at once, as it must be
                case.shape, case.data, case.extents, case.kind, bitmap(case.before), bitmap(case.after)
            )
        )
        for decode in (rows.changes, decoders.changes)
    ]
    if isinstance(found[0], tuple) or isinstance(found[1], tuple):
        return "" if found[0] == found[1] else f"plain: {found[0]}\ncompiled: {found[1]}"
    if found[0].counts.tolist() != found[1].counts.tolist():
        return f"counts: plain {found[0].counts}, compiled {found[1].counts}"
    return _columns(found[0].rows, found[1].rows)


def results_differ(number: int) -> str:
    """The same for rows of a result set."""
    case = result_case_of(number)
    plain = outcome(lambda: results.decode(case.shape, case.data, case.extents))
    compiled = outcome(lambda: decoders.decode(case.shape, case.data, case.extents))
    if isinstance(plain, tuple) or isinstance(compiled, tuple):
        return "" if plain == compiled else f"plain: {plain}\ncompiled: {compiled}"
    return _columns(plain, compiled)


def _columns(plain: pa.RecordBatch, compiled: pa.RecordBatch) -> str:
    compiled.validate(full=True)
    if surplus := [
        n for n, column in zip(compiled.schema.names, compiled.columns, strict=True) if _has_surplus(column)
    ]:
        return f"bytes after the values of {surplus}: Arrow would write them, and they are of other columns"
    if plain.equals(compiled):
        return ""
    for name in plain.schema.names:
        a, b = plain.column(name), compiled.column(name)
        if not a.equals(b) and not _same_bits(a, b):
            return f"column {name} ({a.type}):\nplain {a}\ncompiled {b}"
    return ""


def _same_bits(a: pa.Array, b: pa.Array) -> bool:
    """Garbled floats may be NaN, which equals nothing."""
    if not pa.types.is_floating(a.type) or not a.is_null().equals(b.is_null()):
        return False
    kind = np.uint32 if a.type == pa.float32() else np.uint64
    x, y = (part.fill_null(0).to_numpy(zero_copy_only=False).view(kind) for part in (a, b))
    return bool((x == y).all())


def split_differs(number: int) -> tuple[int, str]:
    """How many events there were, and where the decoders cut their packets into events in different ways."""
    pick = random.Random(number)
    checked = pick.random() < 0.7
    packets = [_packet(pick, checked) for _ in range(pick.randrange(40))]
    raw = bytearray(b"".join(packets))
    if raw and pick.random() < 0.4:
        for _ in range(pick.randrange(1, 4)):
            raw[pick.randrange(len(raw))] = pick.choice((0, 255, 254, pick.randrange(256)))
    if pick.random() < 0.3:
        del raw[pick.randrange(len(raw) + 1) :]
    data = bytes(raw) + bytes(64)
    plain, compiled = (cut(data, 0, len(raw), checked) for cut in (wire.split, decoders.split))
    same = (plain.reached, plain.state) == (compiled.reached, compiled.state) and all(
        a.dtype == b.dtype and a.tolist() == b.tolist()
        for a, b in ((plain.start, compiled.start), (plain.end, compiled.end), (plain.type, compiled.type))
    )
    return len(packets), "" if same else f"plain: {plain}\ncompiled: {compiled}"


def _packet(pick: Pick, checked: bool) -> bytes:
    kind = pick.choice((2, 16, 19, 30, 31, 32, 33)) if pick.random() < 0.97 else pick.choice((4, 15))
    body = pick.randbytes(pick.randrange(60))
    event = struct.pack("<IBIIIH", 0, kind, 1, 19 + len(body) + 4 * checked, 0, 0) + body
    if checked:
        event += struct.pack("<I", zlib.crc32(event) ^ (pick.random() < 0.01))
    if pick.random() < 0.01:
        return pick.choice((b"\xff\xff\xff\0\0", b"\5\0\0\0\xfe....", b"\3\0\0\0\xff.."))
    return (1 + len(event)).to_bytes(3, "little") + bytes([pick.randrange(256)]) + b"\0" + event


def _has_surplus(column: pa.Array) -> bool:
    """Whether an array has bytes after its values. They may be of values that must not be stored."""
    sizes = [0 if buffer is None else buffer.size for buffer in column.buffers()]
    if (
        column.offset
        or column.null_count == len(column)
        or pa.types.is_nested(column.type)
        or pa.types.is_boolean(column.type)
    ):
        return False
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        ends = column.buffers()[1]
        used = (
            0 if ends is None or not len(column) else int.from_bytes(ends[4 * len(column) :][:4].to_pybytes(), "little")
        )
        return bool(sizes[2] > used)
    return bool(sizes[1] > len(column) * column.type.bit_width // 8)
