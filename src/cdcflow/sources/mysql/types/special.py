"""Geometry, VECTOR, and MariaDB's UUID, INET4 and INET6.

The binary log shows MariaDB's three as strings of bytes, and a SELECT as text; only the catalog knows that a column is
one of them (`ServerColumn.extra`). Geometry and VECTOR are the same bytes on both paths. In the binary log MariaDB's
VECTOR is a VARBINARY, so again only the catalog knows.

These types have no compiled kernels.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from cdcflow.sources.engine.buffers import Cells, binary_array, bitmap, gather
from cdcflow.sources.mysql.sql import literal
from cdcflow.sources.mysql.types import row_texts
from cdcflow.sources.mysql.types.charsets import utf8
from cdcflow.sources.mysql.types.columns import BINARY_COLLATION, CatalogColumn, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.family import Codec, TypeFamily, Where, unreadable
from cdcflow.sources.mysql.types.text import fixed_width, prefix_of

VECTOR = pa.list_(pa.field("element", pa.float32()))
_SRID = 4
_GEOMETRY_MIN = 9
_HAS_SRID = 0x20
"""The flag of EWKB, in the last byte of a little-endian type."""


def well_known(cells: Cells, where: Where) -> pa.Array:
    """Return geometries as EWKB: with the SRID after the type, or as plain WKB if they have no SRID.

    server   srid(4) │ 1 │ type(4)              │ rest      little-endian always, inner geometries without SRID
    EWKB               1 │ type(4) | 0x20000000 │ srid(4) │ rest
    """
    present = cells.present
    if (cells.size[present] < _GEOMETRY_MIN).any() or (cells.byte(_SRID)[present] != 1).any():
        raise unreadable(where, "a geometry")
    head = cells.matrix(_GEOMETRY_MIN)
    has_srid = head[:, :_SRID].any(axis=1) & present
    if not has_srid.any():
        return cells.without_prefix(_SRID).binary()
    left_out = np.where(has_srid, 0, _SRID)
    size = np.where(present, cells.size - left_out, 0)
    data, offsets = gather(cells.buffer.bytes, cells.start + left_out, size)
    at = offsets[:-1][has_srid, None] + np.arange(_GEOMETRY_MIN)
    data[at] = np.hstack([head[has_srid, _SRID:], head[has_srid, :_SRID]])
    data[at[:, 4]] |= _HAS_SRID
    return binary_array(data, offsets, cells.valid)


def vector(cells: Cells, where: Where) -> pa.Array:
    """Decode a VECTOR: numbers of four bytes, as many as fit."""
    size = np.where(cells.present, cells.size, 0)
    if (size % 4).any():
        raise unreadable(where, "a vector")
    ends = np.zeros(len(cells) + 1, np.int32)
    np.cumsum(size // 4, out=ends[1:])
    data = cells.binary().buffers()[2]
    numbers = np.frombuffer(data, "<f4", int(ends[-1])) if ends[-1] else np.empty(0, "<f4")
    items = pa.array(numbers, pa.float32())
    return pa.Array.from_buffers(VECTOR, len(cells), [bitmap(cells.valid), pa.py_buffer(ends)], children=[items])


def uuid_text(cells: Cells, where: Where) -> pa.Array:
    """Return the text of MariaDB's UUIDs of 16 bytes.

    The server stores the groups of the time in reverse order, except in those whose version makes them sort correctly
    unchanged (since 10.11.5; MDEV-29959).
    """
    return _each(16, _uuid, cells)


def _uuid(value: bytes) -> str:
    turned = value[6] & 0x80 and 0 < value[8] < 0x60
    return str(uuid.UUID(bytes=value[12:16] + value[10:12] + value[8:10] + value[6:8] + value[:6] if turned else value))


def inet4(cells: Cells, where: Where) -> pa.Array:
    return _each(4, lambda value: ".".join(map(str, value)), cells)


def inet6(cells: Cells, where: Where) -> pa.Array:
    return _each(16, _inet6, cells)


def _inet6(value: bytes) -> str:
    """Return an address as MariaDB prints it: an embedded IPv4 address with dots, and `::` for the first of the longest
    runs of zero groups, even if that is only one group long."""
    mapped = value[:12] == bytes(10) + b"\xff\xff"
    if mapped or (value[:12] == bytes(12) and value[12:14] != b"\0\0"):
        return ("::ffff:" if mapped else "::") + ".".join(map(str, value[12:]))
    groups = [f"{value[at] << 8 | value[at + 1]:x}" for at in range(0, 16, 2)]
    runs = [0] * 9
    for at in range(7, -1, -1):
        runs[at] = runs[at + 1] + 1 if groups[at] == "0" else 0
    size = max(runs)
    first = runs.index(size)
    return f"{':'.join(groups[:first])}::{':'.join(groups[first + size :])}" if size else ":".join(groups)


def _each(width: int, text: Callable[[bytes], str], cells: Cells) -> pa.Array:
    rows = fixed_width(width, cells)
    there = cells.present.tolist()
    values = [text(row.tobytes()) if given else None for row, given in zip(rows, there, strict=True)]
    return pa.array(values, pa.string())


# ── the families ────────────────────────────────────────────────────────────────────────────────────────────────

_GEOMETRIES = frozenset(
    (
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        *("geometrycollection", "geomcollection"),
    )
)


GEOMETRY = TypeFamily(
    codes={TypeCode.GEOMETRY: 1},
    names=_GEOMETRIES,
    from_catalog=lambda column: column.stored_as(TypeCode.GEOMETRY, 4),
    type_text=lambda _: "geometry",
    codec=lambda column, where: Codec(where, pa.binary(), 0, column.metadata, well_known, well_known),
    row_text=row_texts.none,
)


def _vector_codec(column: ServerColumn, where: Where) -> Codec:
    prefix = column.metadata if column.type_code == TypeCode.VECTOR else prefix_of(column)
    return Codec(where, VECTOR, 0, prefix, vector, vector)


VECTORS = TypeFamily(
    codes={TypeCode.VECTOR: 1},
    names=frozenset(("vector",)),
    extras=frozenset(("vector",)),
    # MySQL's table map gives a character set for VECTOR columns, MariaDB's for geometry instead (`tables`).
    collated=frozenset((TypeCode.VECTOR,)),
    from_catalog=lambda column: column.stored_as(TypeCode.VECTOR, 4),
    type_text=lambda _: "vector",
    codec=_vector_codec,
    row_text=row_texts.none,
)

_IMAGES = {"uuid": (16, uuid_text), "inet6": (16, inet6), "inet4": (4, inet4)}


STORED: dict[str, tuple[TypeCode, int | None]] = {
    **{name: (TypeCode.CHAR, width) for name, (width, _) in _IMAGES.items()},
    "vector": (TypeCode.VARCHAR, None),
}
"""What table maps contain for the columns that only the catalog knows: bytes of this type and width (None: any)."""


def mariadb_vector(column: CatalogColumn) -> ServerColumn:
    """Return a column of MariaDB's type VECTOR as table maps describe it."""
    return column.stored_as(TypeCode.VARCHAR, column.octets or 0, collation=BINARY_COLLATION, extra="vector")


def _mariadb_column(column: CatalogColumn) -> ServerColumn:
    width, _ = _IMAGES[column.type]
    return column.stored_as(TypeCode.CHAR, width, collation=BINARY_COLLATION, extra=column.type)


def _mariadb_codec(column: ServerColumn, where: Where) -> Codec:
    _, image = _IMAGES[column.extra]
    return Codec(where, pa.string(), 0, prefix_of(column), image, utf8)


MARIADB = TypeFamily(
    codes={},
    names=frozenset(_IMAGES),
    extras=frozenset(_IMAGES),
    from_catalog=_mariadb_column,
    type_text=lambda column: column.extra,
    codec=_mariadb_codec,
    row_text=row_texts.cast_text,
    cell_literal=lambda _, cell: literal(cell.decode()),
)

FAMILIES = (GEOMETRY, VECTORS, MARIADB)
