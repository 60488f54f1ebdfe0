"""What the instruction guard of the MySQL decoders runs under callgrind: decodes on request."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.mysql.values import bitmap, column, image, joined, result_row, table

from cdcflow.sources.mysql import decoders
from cdcflow.sources.mysql.rows import RowKind
from cdcflow.sources.mysql.types.columns import TypeCode
from cdcflow.sources.mysql.types.numbers import decimal_metadata

ORDERS = table(
    column("id", TypeCode.LONGLONG, nullable=False),
    column("customer", TypeCode.LONG),
    column("status", TypeCode.VARCHAR, 80, collation=45),
    column("amount", TypeCode.DECIMAL, decimal_metadata(10, 2)),
    column("changed", TypeCode.TIMESTAMP, 6),
    column("note", TypeCode.VARCHAR, 1020, collation=45),
)
ALL = bitmap([True] * 6)
ROWS_AN_EVENT = 10


def row(number: int) -> bytes:
    note = None if number % 10 == 0 else b"note number %d" % number
    amount = bytes([0x80]) + number.to_bytes(3, "big") + bytes([number % 100])
    moment = struct.pack(">I", 1_700_000_000 + number) + b"\0\0\7"
    return image(
        ORDERS, [struct.pack("<q", number), struct.pack("<i", number % 1000), b"shipped", amount, moment, note]
    )


def selected(number: int) -> bytes:
    note = None if number % 10 == 0 else b"note number %d" % number
    moment = b"2026-11-21 18:%02d:%02d.%06d" % (number // 60 % 60, number % 60, number)
    return result_row(
        [b"%d" % number, b"%d" % (number % 1000), b"shipped", b"%d.%02d" % (number, number % 100), moment, note]
    )


def images(kind: RowKind, rows: int) -> Callable[[], object]:
    changed = [row(n) * (2 if kind is RowKind.UPDATE else 1) for n in range(rows)]
    events = [b"".join(changed[first : first + ROWS_AN_EVENT]) for first in range(0, rows, ROWS_AN_EVENT)]
    data, extents = joined(events)
    return lambda: decoders.changes(ORDERS, data, extents, kind, ALL, ALL)


def results(rows: int) -> Callable[[], object]:
    data, extents = joined([selected(n) for n in range(rows)])
    return lambda: decoders.decode(ORDERS, data, extents)


def packets(rows: int) -> Callable[[], object]:
    """A packet with a checksum for each row."""
    found = []
    for number in range(rows):
        body = row(number)
        event = struct.pack("<IBIIIH", 0, 30, 1, 19 + len(body) + 4, 0, 0) + body
        event += struct.pack("<I", zlib.crc32(event))
        found.append((1 + len(event)).to_bytes(3, "little") + b"\0\0" + event)
    data, extents = joined(found)
    size = int(extents.end[-1])
    return lambda: decoders.split(data, 0, size, True)


def main(*sizes: int) -> None:
    work: dict[tuple[str, int], Callable[[], object]] = {}
    for size in sizes:
        work["insert", size] = images(RowKind.INSERT, size)
        work["update", size] = images(RowKind.UPDATE, size)
        work["result", size] = results(size)
        work["packet", size] = packets(size)
    for decode in work.values():
        decode()
    print("ready", flush=True)
    for line in sys.stdin:
        name, wanted = line.split()
        work[name, int(wanted)]()
        print("done", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
