"""Rows as MySQL and MariaDB send them in two ways: in the binary log's file, and in a SELECT's packets.

Neither the stream nor the chunks are needed here, so that values can be tested alone. Also builds row images and result
rows for tests without a server.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql

from cdcflow.model.table import Identity, TableId
from cdcflow.sources.engine.buffers import PAD
from cdcflow.sources.mysql import decoders, results, rows
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.rows import RowKind
from cdcflow.sources.mysql.tables import DescribedTable, TableMap, describe, table_map
from cdcflow.sources.mysql.types.columns import Policy, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.registry import select_expression

_KINDS = {
    **dict.fromkeys((23, 30), RowKind.INSERT),
    **dict.fromkeys((24, 31, 39), RowKind.UPDATE),
    **dict.fromkeys((25, 32), RowKind.DELETE),
}
WAYS: dict[str, tuple[Any, Any]] = {"plain": (rows.changes, results.decode)}
"""The decoders that can run here: what takes row images, and what takes result rows."""
if decoders.COMPILED is not None:
    WAYS["compiled"] = (decoders.changes, decoders.decode)
_TABLE_MAP, _FORMAT, _ROWS_V1, _PARTIAL = 19, 15, (23, 24, 25), 39


@dataclass(frozen=True, slots=True)
class RowEvent:
    """One ROWS event of a table: what its columns are, which are sent, and the bytes of its rows."""

    map: TableMap
    kind: RowKind
    before: bytes
    after: bytes
    rows: bytes
    partial_json: bool = False


def row_events(files: Sequence[Path], table: TableId) -> list[RowEvent]:
    """All ROWS events of a table in these binary log files."""
    found = []
    for file in files:
        maps: dict[int, TableMap] = {}
        for event in _events(file):
            number = int.from_bytes(event[19:25], "little")
            if event[4] == _TABLE_MAP:
                maps[number] = table_map(event)
            elif event[4] in _KINDS and maps[number].id == table:
                found.append(_row_event(event, maps[number]))
    return found


def _events(file: Path) -> Iterator[bytes]:
    data, at, tail = file.read_bytes(), 4, 0
    while at + 19 <= len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if size < 19 or at + size > len(data):
            return
        event = data[at : at + size]
        if event[4] == _FORMAT:
            tail = 4 if event[-5] == 1 else 0
        yield event[: size - tail]
        at += size


def _row_event(event: bytes, told: TableMap) -> RowEvent:
    at = 27
    if event[4] not in _ROWS_V1:
        at += int.from_bytes(event[at : at + 2], "little")
    columns = event[at]
    assert columns < 0xFB
    size = (columns + 7) // 8
    at += 1
    kind, before = _KINDS[event[4]], event[at : at + size]
    at += size
    after = before
    if kind is RowKind.UPDATE:
        after = event[at : at + size]
        at += size
    return RowEvent(told, kind, before, after, event[at:], event[4] == _PARTIAL)


def joined(pieces: Sequence[bytes]) -> tuple[bytes, Extents]:
    """Pieces one after another, each followed by padding, and the position of each."""
    ends = np.cumsum([len(p) for p in pieces], dtype=np.int64)
    starts = ends - np.array([len(p) for p in pieces], np.int64)
    return b"".join([*pieces, bytes(PAD)]), Extents(starts, ends)


def decoded(events: Sequence[RowEvent], described: DescribedTable, changes: Any = rows.changes) -> list[pa.RecordBatch]:
    """The decoded rows of each event."""
    found = []
    for event in events:
        data, extents = joined([event.rows])
        found.append(changes(described, data, extents, event.kind, event.before, event.after, event.partial_json).rows)
    return found


def described(told: TableMap, policy: Policy | None = None, extras: dict[str, str] | None = None) -> DescribedTable:
    """The shape that a table map describes; `extras` are what only the catalog has, by column."""
    columns = [replace(c, extra=(extras or {}).get(c.name, "")) for c in told.columns]
    return describe(told.id, columns, told.key_names, Identity.KEY, policy or Policy())


def extras_of(connection: pymysql.Connection[Any], table: TableId) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, column_type FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s",
            (table.schema, table.name),
        )
        return {name: kind for name, kind in cursor.fetchall() if kind in ("uuid", "inet4", "inet6", "year(2)")}


def selected(connection: pymysql.Connection[Any], shape: DescribedTable, order: str = "") -> tuple[bytes, Extents]:
    """The row packets of a SELECT of all columns, as the server sent them."""
    expressions = ", ".join(select_expression(c) for c in shape.columns)
    query = f"SELECT {expressions} FROM `{shape.table.id.schema}`.`{shape.table.id.name}` {order}"
    connection._execute_command(3, query)  # pymysql itself would return tuples
    columns = _packet(connection)[0]
    for _ in range(columns):
        _packet(connection)
    if not connection.client_flag & 0x1000000:
        _packet(connection)
    pieces: list[bytes] = []
    while True:
        packet = _packet(connection)
        if packet[0] == 0xFE and len(packet) < 9:
            return joined(pieces)
        pieces.append(packet)


def _packet(connection: pymysql.Connection[Any]) -> bytes:
    return bytes(connection._read_packet().get_all_data())


# ── without a server ─────────────────────────────────────────────────────────────────────────────────────────────


def column(name: str, code: TypeCode, metadata: int = 0, **options: Any) -> ServerColumn:
    return ServerColumn(name, code, metadata, options.pop("nullable", True), **options)


def table(*columns: ServerColumn, key: Sequence[str] = ("id",), policy: Policy | None = None) -> DescribedTable:
    return describe(TableId("shop", "orders"), columns, key, Identity.KEY, policy or Policy())


def image(shape: DescribedTable, cells: Sequence[bytes | None], sent: Sequence[bool] | None = None) -> bytes:
    """A row image of these cells (None: NULL), with a length before those that have one."""
    codecs = [c for c, here in zip(shape.codecs, sent or [True] * len(shape.codecs), strict=True) if here]
    nulls = sum(1 << number for number, cell in enumerate(cells) if cell is None)
    size = (len(cells) + 7) // 8
    # The servers set the bits after the last column, so these do, too.
    nulls |= ~((1 << len(cells)) - 1) & ((1 << 8 * size) - 1)
    out = [nulls.to_bytes(size, "little")]
    for cell, codec in zip(cells, codecs, strict=True):
        if cell is not None:
            out += [len(cell).to_bytes(codec.prefix, "little") if codec.prefix else b"", cell]
    return b"".join(out)


def bitmap(sent: Sequence[bool]) -> bytes:
    return sum(1 << number for number, here in enumerate(sent) if here).to_bytes((len(sent) + 7) // 8, "little")


def result_row(cells: Sequence[bytes | None]) -> bytes:
    """A row packet of the text protocol."""
    out = []
    for cell in cells:
        if cell is None:
            out.append(b"\xfb")
        elif len(cell) < 0xFB:
            out.append(bytes([len(cell)]) + cell)
        elif len(cell) < 1 << 16:
            out.append(b"\xfc" + struct.pack("<H", len(cell)) + cell)
        elif len(cell) < 1 << 24:
            out.append(b"\xfd" + len(cell).to_bytes(3, "little") + cell)
        else:
            out.append(b"\xfe" + struct.pack("<Q", len(cell)) + cell)
    return b"".join(out)
