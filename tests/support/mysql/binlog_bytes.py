"""A small writer of binary logs, for tests of the decoder: one event at a time, as simple as possible.

`Log` keeps what it wrote by file and byte, as a server does, and dumps it from any place as packets.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from cdcflow.model.table import Identity, TableId
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.position import BinlogFile
from cdcflow.sources.mysql.tables import DescribedTable, describe, table_map
from cdcflow.sources.mysql.types.columns import Policy

MYSQL_VERSION, MARIADB_VERSION = "9.7.4", "10.11.19-MariaDB-log"
FIRST_FILE = BinlogFile("binlog.000001")
SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
MARKS = TableId("cdcflow", "cdcflow_marks")
STMT_END = 1
_POST_HEADERS = {2: 13, 19: 8, **dict.fromkeys((23, 24, 25), 8), **dict.fromkeys((30, 31, 32, 39), 10)}

LONG, VARCHAR, TIMESTAMP = 3, 15, 17


def lenenc(number: int) -> bytes:
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + struct.pack("<H", number)
    return b"\xfd" + struct.pack("<I", number)[:3] if number < 1 << 24 else b"\xfe" + struct.pack("<Q", number)


def varying(number: int) -> bytes:
    """A number as tagged GTID events have it."""
    size = next((s for s in range(1, 9) if number < 1 << 7 * s), 9)
    if size == 9:
        return b"\xff" + struct.pack("<Q", number)
    return (number << size | (1 << size - 1) - 1).to_bytes(size, "little")


@dataclass(frozen=True)
class TestColumn:
    """A column of a test's table: type code, raw metadata bytes, and the contents of full metadata."""

    __test__ = False

    name: str
    code: int
    metadata: bytes = b""
    nullable: bool = True
    unsigned: bool = False


@dataclass(frozen=True)
class TestTable:
    __test__ = False

    id: TableId
    columns: tuple[TestColumn, ...]
    key: tuple[int, ...] = (0,)
    full: bool = True

    def body(self, table_id: int) -> bytes:
        schema, name = self.id.schema.encode(), self.id.name.encode()
        nulls = bytearray((len(self.columns) + 7) // 8)
        for i, column in enumerate(self.columns):
            nulls[i >> 3] |= column.nullable << (i & 7)
        metadata = b"".join(c.metadata for c in self.columns)
        out = struct.pack("<IHH", table_id & 0xFFFFFFFF, table_id >> 32, 1)
        out += bytes([len(schema)]) + schema + b"\0" + bytes([len(name)]) + name + b"\0"
        out += lenenc(len(self.columns)) + bytes(c.code for c in self.columns)
        out += lenenc(len(metadata)) + metadata + bytes(nulls)
        return out + (self._optional() if self.full else b"")

    def _optional(self) -> bytes:
        numeric = [c.unsigned for c in self.columns if c.code == LONG]
        bits = bytearray((len(numeric) + 7) // 8)
        for i, unsigned in enumerate(numeric):
            bits[i >> 3] |= unsigned << 7 - (i & 7)
        names = b"".join(lenenc(len(c.name.encode())) + c.name.encode() for c in self.columns)
        key = b"".join(lenenc(k) for k in self.key)
        fields = [(1, bytes(bits)), (2, lenenc(255)), (4, names), (8, key)]
        return b"".join(bytes([number]) + lenenc(len(value)) + value for number, value in fields if value)


def simple(name: str, schema: str = "shop", *, extra: Sequence[str] = (), full: bool = True) -> TestTable:
    """A table of a number as key, and texts."""
    columns = [TestColumn("id", LONG, nullable=False), TestColumn("v", VARCHAR, struct.pack("<H", 80))]
    columns += [TestColumn(n, VARCHAR, struct.pack("<H", 800)) for n in extra]
    return TestTable(TableId(schema, name), tuple(columns), full=full)


def shape_of(table: TestTable) -> DescribedTable:
    """A table's shape, as a catalog would have it."""
    found = table_map(bytes(4) + b"\x13" + bytes(14) + table.body(1))
    return describe(found.id, found.columns, found.key_names, Identity.KEY, Policy())


MARKS_TABLE = TestTable(
    MARKS,
    (
        TestColumn("slot", VARCHAR, struct.pack("<H", 256), nullable=False),
        TestColumn("token", VARCHAR, struct.pack("<H", 1020), nullable=False),
        TestColumn("at", TIMESTAMP, b"\x06"),
    ),
)


def cell(column: TestColumn, value: int | str) -> bytes:
    if isinstance(value, int):
        return struct.pack("<i", value)
    if column.code == TIMESTAMP:
        return bytes(7)
    raw = value.encode()
    wide = struct.unpack("<H", column.metadata)[0] > 255
    return struct.pack("<H" if wide else "<B", len(raw)) + raw


Values = Sequence[int | str | None]


def image(table: TestTable, values: Values, present: Sequence[int] | None = None) -> bytes:
    """One row image of the columns that are present (None: all)."""
    there = range(len(table.columns)) if present is None else present
    nulls = bytearray((len(there) + 7) // 8)
    out = b""
    for nth, i in enumerate(there):
        value = values[i]
        if value is None:
            nulls[nth >> 3] |= 1 << (nth & 7)
        else:
            out += cell(table.columns[i], value)
    return bytes(nulls) + out


def bitmap(table: TestTable, present: Sequence[int] | None = None) -> bytes:
    out = bytearray((len(table.columns) + 7) // 8)
    for i in range(len(table.columns)) if present is None else present:
        out[i >> 3] |= 1 << (i & 7)
    return bytes(out)


@dataclass
class Log:
    """A server's binary log. `gno` and `sequence` count its GTIDs."""

    flavor: Flavor = "mysql"
    checksum: bool = True
    compress: bool = False
    gtids: bool = True
    file_number: int = 1
    pos: int = 4
    gno: int = 0
    stamp: int = 1_700_000_000
    files: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    table_ids: dict[TestTable, int] = field(default_factory=dict)
    next_table_id: int = 100
    _inside: list[bytes] | None = None

    def __post_init__(self) -> None:
        self.begin_file()

    @property
    def file(self) -> str:
        return f"binlog.{self.file_number:06d}"

    @property
    def place(self) -> tuple[BinlogFile, int]:
        return BinlogFile(self.file), self.pos

    # ── events ──

    def event(self, kind: int, body: bytes, *, flags: int = 0, made_up: bool = False, server_id: int = 7) -> bytes:
        """An event, written at the log's end (made up ones are only returned)."""
        if self._inside is not None and not made_up:
            size = 19 + len(body)
            self._inside.append(struct.pack("<IBIIIH", self.stamp, kind, server_id, size, 0, flags) + body)
            return b""
        signed = self.checksum or kind == 15
        size = 19 + len(body) + 4 * signed
        end = 0 if made_up else self.pos + size
        event = struct.pack("<IBIIIH", self.stamp, kind, server_id, size, end & 0xFFFFFFFF, flags | 0x20 * made_up)
        event += body
        if signed:
            event += struct.pack("<I", zlib.crc32(event) if self.checksum else 0)
        if not made_up:
            self.files[self.file].append((self.pos, event))
            self.pos = end
        return event

    def format_body(self) -> bytes:
        version = MYSQL_VERSION if self.flavor == "mysql" else MARIADB_VERSION
        sizes = bytes(_POST_HEADERS.get(t, 0) for t in range(1, 173 if self.flavor == "mariadb" else 43))
        return struct.pack("<H50sIB", 4, version.encode(), 0, 19) + sizes + bytes([self.checksum])

    def begin_file(self) -> None:
        self.files[self.file] = []
        self.pos = 4
        self.table_ids.clear()
        self.event(15, self.format_body())
        self.event(35 if self.flavor == "mysql" else 163, bytes(8) if self.flavor == "mysql" else bytes(4))

    def rotate(self) -> None:
        self.event(4, struct.pack("<Q", 4) + f"binlog.{self.file_number + 1:06d}".encode())
        self.file_number += 1
        self.begin_file()

    def gtid(self, *, standalone: bool = False, flags: int = 0) -> None:
        """Open a group."""
        self.stamp += 1
        if self.flavor == "mariadb":
            self.gno += 1
            self.event(162, struct.pack("<QIB", self.gno, 0, flags | standalone) + bytes(6))
            return
        times = (self.stamp * 1_000_000 + 5).to_bytes(7, "little")
        counted = struct.pack("<Bqq", 2, 1, 2) + times + b"\x10" + struct.pack("<I", 90704)
        if not self.gtids:
            self.event(34, bytes(25) + counted)
            return
        self.gno += 1
        self.event(33, b"\0" + uuid.UUID(SERVER).bytes + struct.pack("<q", self.gno) + counted)

    def tagged_gtid(self, tag: str, gno: int) -> None:
        fields = varying(0) + varying(0)
        fields += varying(1) + b"".join(varying(b) for b in uuid.UUID(SERVER).bytes)
        fields += varying(2) + varying(gno << 1) + varying(3) + varying(len(tag)) + tag.encode()
        fields += varying(4) + varying(2) + varying(5) + varying(4)
        fields += (
            varying(6) + varying(self.stamp * 1_000_000 + 9) + varying(8) + varying(300) + varying(9) + varying(90704)
        )
        self.event(42, varying(1) + varying(len(fields)) + varying(9) + fields)

    def query(
        self, text: str | bytes, schema: str = "shop", sql_mode: int = 0, more: bytes = b"", *, flags: int = 0
    ) -> None:
        """`more`: status variables that follow those of each statement, as bytes."""
        raw, name = text.encode() if isinstance(text, str) else text, schema.encode()
        variables = struct.pack("<BIBQ", 0, 0, 1, sql_mode) + more
        head = struct.pack("<IIBHH", 9, 0, len(name), 0, len(variables)) + variables + name + b"\0"
        if self.compress and self.flavor == "mariadb":
            self.event(165, head + squeezed(raw), flags=flags)
        else:
            self.event(2, head + raw, flags=flags)

    def begin(self, *, flags: int = 0) -> None:
        self.gtid(flags=flags)
        if self.flavor == "mysql":
            if self.compress:
                self._inside = []
            self.query("BEGIN", "")

    def commit(self) -> None:
        self.event(16, struct.pack("<Q", self.gno))
        if self._inside is not None:
            events, self._inside = b"".join(self._inside), None
            self.event(40, payload(events))

    def standalone(
        self, text: str | bytes, schema: str = "shop", sql_mode: int = 0, more: bytes = b"", *, flags: int = 0
    ) -> None:
        """A statement that is a separate group."""
        self.gtid(standalone=True)
        self.query(text, schema, sql_mode, more, flags=flags)

    def xa_prepare(self, xid: bytes, *, one_phase: bool = False) -> None:
        self.event(38, struct.pack("<BIII", one_phase, 1, len(xid), 0) + xid)

    # ── rows ──

    def table_map(self, table: TestTable) -> int:
        if table not in self.table_ids:
            self.next_table_id += 1
            self.table_ids[table] = self.next_table_id
        self.event(19, table.body(self.table_ids[table]))
        return self.table_ids[table]

    def rows(
        self,
        kind: str,
        table: TestTable,
        *images: bytes,
        before: Sequence[int] | None = None,
        after: Sequence[int] | None = None,
        extra: bytes = b"",
        end: bool = True,
        mapped: bool = True,
    ) -> None:
        """A row event: kind i, u or d; `before` and `after` are the columns that are present."""
        table_id = self.table_map(table) if mapped else self.table_ids[table]
        v1 = self.flavor == "mariadb"
        number = {"i": 23, "u": 24, "d": 25}[kind] + (0 if v1 else 7)
        head = struct.pack("<IHH", table_id & 0xFFFFFFFF, table_id >> 32, STMT_END * end)
        if not v1:
            head += struct.pack("<H", 2 + len(extra)) + extra
        head += lenenc(len(table.columns))
        head += bitmap(table, before if kind == "d" or kind == "u" else after)
        if kind == "u":
            head += bitmap(table, after)
        data = b"".join(images)
        if self.compress and v1:
            self.event(number + 143, head + squeezed(data))
        else:
            self.event(number, head + data)

    def insert(self, table: TestTable, *rows: Values) -> None:
        self.rows("i", table, *(image(table, r) for r in rows))

    def update(self, table: TestTable, old: Values, new: Values) -> None:
        self.rows("u", table, image(table, old), image(table, new))

    def delete(self, table: TestTable, *rows: Values) -> None:
        self.rows("d", table, *(image(table, r) for r in rows))

    def mark(self, token: str, slot: str = "me") -> None:
        self.begin()
        self.insert(MARKS_TABLE, (slot, token, "now"))
        self.commit()

    # ── dumps ──

    def dump(self, begin: BinlogFile = FIRST_FILE, pos: int = 4) -> bytes:
        """Packets as a server sends them to a client that reads from this position."""
        file = begin.name
        out = [packet(self.event(4, struct.pack("<Q", pos) + file.encode(), made_up=True))]
        if pos > 4:
            out.append(packet(self.event(15, self.format_body(), made_up=True)))
        for name in sorted(self.files):
            if name > file:
                out.append(packet(self.event(4, struct.pack("<Q", 4) + name.encode(), made_up=True)))
            if name >= file:
                out += [packet(event) for at, event in self.files[name] if name > file or at >= pos]
        return b"".join(out)


def packet(event: bytes) -> bytes:
    """An event in a packet, or in several where it is long."""
    body = b"\0" + event
    out = b""
    while True:
        part, body = body[:0xFFFFFF], body[0xFFFFFF:]
        out += struct.pack("<I", len(part))[:3] + b"\0" + part
        if len(part) < 0xFFFFFF:
            return out


def squeezed(data: bytes) -> bytes:
    """Bytes as MariaDB compresses them."""
    size = max((len(data).bit_length() + 7) // 8, 1)
    return bytes([0x80 | size]) + len(data).to_bytes(size, "big") + zlib.compress(data)


def payload(events: bytes, declared: int | None = None) -> bytes:
    """A TRANSACTION_PAYLOAD's body."""
    data: bytes = pa.Codec("zstd").compress(events, asbytes=True)
    out = b""
    for field_number, value in ((2, 0), (3, len(events) if declared is None else declared), (1, len(data))):
        raw = lenenc(value)
        out += lenenc(field_number) + lenenc(len(raw)) + raw
    return out + b"\0" + data
