"""What the instruction guard runs under callgrind: decodes on request, and reports when it is done."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.postgres.message_bytes import (
    attribute,
    begin,
    commit,
    copy_rows,
    insert,
    numeric_modifier,
    relation,
    table,
    xlog,
)
from tests.support.postgres.wire import Spools

from cdcflow.sources.postgres.copy import decode_copy
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder
from cdcflow.sources.postgres.wire import Joined, join_messages

ORDERS = table(
    "orders",
    1,
    [
        attribute("id", 20, key=True),
        attribute("customer", 23),
        attribute("status", 25),
        attribute("amount", 1700, numeric_modifier(10, 2)),
        attribute("changed", 1184),
        attribute("note", 1043),
    ],
)


def cells(number: int, *, binary: bool) -> list[bytes | None]:
    note = None if number % 10 == 0 else b"note number %d" % number
    if binary:
        amount = struct.pack(">hhHhhh", 2, 0, 0, 2, number % 9999 + 1, number % 99 * 100 + 100)
        moment = struct.pack(">q", 8 * 10**14 + number)
        return [struct.pack(">q", number), struct.pack(">i", number % 1000), b"shipped", amount, moment, note]
    moment = b"2026-11-21 18:%02d:%02d.%06d+00" % (number // 60 % 60, number % 60, number)
    return [b"%d" % number, b"%d" % (number % 1000), b"shipped", b"%d.%02d" % (number, number % 100), moment, note]


def stream(changes: int, *, binary: bool) -> Joined:
    """Transactions of ten inserts each."""
    out = []
    for first in range(0, changes, 10):
        rows = [insert(1, cells(n, binary=binary), binary=binary) for n in range(first, first + 10)]
        out += [begin(first + 1, 8), *rows, commit(1000 + first)]
    return join_messages([xlog(m) for m in out])


def copied(rows: int) -> Joined:
    return join_messages(copy_rows([cells(n, binary=True) for n in range(rows)]))


def main(few: int, many: int) -> None:
    decoders = {}
    for binary in (True, False):
        decoders[binary] = PgoutputDecoder(
            describe=lambda _: ORDERS, open_spool=Spools(), spool_bytes_max=1 << 30, binary=binary, skip_until=0
        )
        decoders[binary].decode([xlog(m) for m in (begin(1, 8), relation(ORDERS), commit(16))])
    work: dict[tuple[str, int], tuple[Callable[[Joined], object], Joined]] = {}
    for size in (few, many):
        for binary in (True, False):
            work["binary" if binary else "text", size] = decoders[binary].decode, stream(size, binary=binary)
        work["copy", size] = lambda data: decode_copy(data, ORDERS), copied(size)
    for decode, data in work.values():
        decode(data)
    print("ready", flush=True)
    for line in sys.stdin:
        name, wanted = line.split()
        decode, data = work[name, int(wanted)]
        decode(data)
        print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
