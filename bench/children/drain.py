"""A slot's backlog through psycopg.pq, without cdcflow.

Argument: `dsn`, `slot`, `publication`, `rows`, and `mode`:
    nowhere   count the row changes, nothing else. With `imports` the process first loads what cdcflow loads
    python    decode every change into Python values, one list per row: the plain Python consumer
    disk      append every message to `path`, one fdatasync for whatever arrived together; `times` names a file for one
              line `id nanoseconds` per row: when it was on disk. The id is the row's first column, a bigint
"""

from __future__ import annotations

import datetime
import importlib
import os
import struct
import time
from collections.abc import Callable
from decimal import Decimal

from psycopg import pq
from psycopg.pq.abc import PGconn

from bench.children.usage import Clock, given, tell

_KIND = 25  # where an XLogData's own message begins: 'w' and three int64
_ROW_KINDS = frozenset(b"IUD")
_ENDS = frozenset(b"Cc")  # Commit, Stream Commit
_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_DAY = datetime.date(2000, 1, 1)
_STATUS = struct.Struct(">cQQQqB")


def connected(dsn: str, slot: str, publication: str) -> PGconn:
    """A connection whose slot streams."""
    conn = pq.PGconn.connect(dsn.encode())
    if conn.status != pq.ConnStatus.OK:
        raise SystemExit(conn.error_message.decode())
    options = f"proto_version '4', publication_names '{publication}', messages 'true', binary 'true', streaming 'on'"
    result = conn.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})".encode())
    if result.status != pq.ExecStatus.COPY_BOTH:
        raise SystemExit(result.error_message.decode())
    return conn


def nowhere(conn: PGconn, expected: int) -> int:
    """Counts the row changes until their number is reached and their transaction has ended."""
    rows, kind = 0, 0
    get = conn.get_copy_data
    while rows < expected or kind not in _ENDS:
        length, message = get(0)
        if length <= 0:
            break
        if message[0] == 119:
            kind = message[_KIND]
            if kind in _ROW_KINDS:
                rows += 1
        elif message[17]:
            conn.put_copy_data(_STATUS.pack(b"r", 0, 0, 0, 0, 0))
            conn.flush()
    return rows


# ── plain Python ────────────────────────────────────────────────────────────────────────────────────────────


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _numeric(data: bytes) -> Decimal:
    count, weight, sign, scale = struct.unpack_from(">hhHH", data)
    digits = struct.unpack_from(f">{count}H", data, 8)
    number = 0
    for digit in digits:
        number = number * 10_000 + digit
    return (-1 if sign else 1) * Decimal(number).scaleb(4 * (weight - count + 1)).quantize(Decimal(1).scaleb(-scale))


_VALUE: dict[int, Callable[[bytes], object]] = {
    16: lambda data: data != b"\0",
    20: _integer,
    21: _integer,
    23: _integer,
    25: bytes.decode,
    1043: bytes.decode,
    1082: lambda data: _DAY + datetime.timedelta(days=_integer(data)),
    1184: lambda data: _EPOCH + datetime.timedelta(microseconds=_integer(data)),
    1700: _numeric,
}


def _relation(message: bytes, at: int) -> tuple[int, list[Callable[[bytes], object]]]:
    """A Relation message's id, and a decoder for each column."""
    (oid,) = struct.unpack_from(">I", message, at)
    at = message.index(0, at + 4) + 1
    at = message.index(0, at) + 2  # past the name and the replica identity
    (count,) = struct.unpack_from(">h", message, at)
    at += 2
    decoders = []
    for _ in range(count):
        at = message.index(0, at + 1) + 1
        decoders.append(_VALUE[struct.unpack_from(">I", message, at)[0]])
        at += 8
    return oid, decoders


def _tuple(message: bytes, at: int, decoders: list[Callable[[bytes], object]]) -> list[object]:
    row: list[object] = []
    at += 2
    for decode in decoders:
        kind = message[at]
        if kind == 98:  # binary
            end = at + 5 + int.from_bytes(message[at + 1 : at + 5], "big")
            row.append(decode(message[at + 5 : end]))
            at = end
        else:
            row.append(None)
            at += 1
    return row


def in_python(conn: PGconn, expected: int) -> int:
    rows = 0
    relations: dict[int, list[Callable[[bytes], object]]] = {}
    kept: list[list[object]] = []
    get = conn.get_copy_data
    streamed = False
    while rows < expected:
        length, view = get(0)
        if length <= 0:
            break
        message = bytes(view)
        kind = message[_KIND] if message[0] == 119 else 0
        at = _KIND + (5 if streamed else 1)
        if kind in _ROW_KINDS:
            decoders = relations[int.from_bytes(message[at : at + 4], "big")]
            kept.append(_tuple(message, at + 5, decoders))
            rows += 1
            if len(kept) >= 10_000:
                kept = []
        elif kind == 82:
            oid, decoders = _relation(message, at)
            relations[oid] = decoders
        elif kind in b"SE":
            streamed = kind == 83
    return rows


# ── to disk ─────────────────────────────────────────────────────────────────────────────────────────────────


_ID = slice(_KIND + 13, _KIND + 21)  # after kind, relation, 'N', count of columns, 'b' and its length


def to_disk(conn: PGconn, expected: int, path: str) -> list[tuple[int, int]]:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    times: list[tuple[int, int]] = []
    while len(times) < expected:
        length, message = conn.get_copy_data(0)
        arrived, ids = [], []
        while length > 0:
            data = bytes(message)
            if data[0] == 119:
                arrived.append(data)
                if data[_KIND] == 73:
                    ids.append(int.from_bytes(data[_ID], "big"))
            elif data[17]:
                conn.put_copy_data(_STATUS.pack(b"r", 0, 0, 0, 0, 0))
                conn.flush()
            length, message = conn.get_copy_data(1)
            if length == 0:
                conn.consume_input()
                length, message = conn.get_copy_data(1)
        if arrived:
            os.write(fd, b"".join(arrived))
            os.fdatasync(fd)
            now = time.monotonic_ns()
            times.extend((i, now) for i in ids)
    os.close(fd)
    return times


def main() -> None:
    asked = given()
    dsn, slot, publication = str(asked["dsn"]), str(asked["slot"]), str(asked["publication"])
    expected = int(str(asked["rows"]))
    if asked.get("imports"):
        importlib.import_module("cdcflow.wiring")
    clock = Clock()
    conn = connected(dsn, slot, publication)
    match asked["mode"]:
        case "nowhere":
            rows = nowhere(conn, expected)
        case "python":
            rows = in_python(conn, expected)
        case _:
            times = to_disk(conn, expected, str(asked["path"]))
            rows = len(times)
            with open(str(asked["times"]), "w") as file:
                file.writelines(f"{n} {ns}\n" for n, ns in times)
    tell({**clock.stop(), "rows": rows})


if __name__ == "__main__":
    main()
