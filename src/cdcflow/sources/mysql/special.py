"""Values of the rarer types: UUID, INET4, INET6, VECTOR, geometry, and MariaDB's COMPRESSED columns."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from cdcflow.sources.buffers import Cells, binary_array, bitmap, gathered, padded
from cdcflow.sources.mysql.values import Decoder, Where, unreadable

VECTOR = pa.list_(pa.field("element", pa.float32()))
_SRID = 4
_GEOMETRY_MIN = 9
_HAS_SRID = 0x20
"""The flag of EWKB, in the last byte of a little-endian type."""
_DEFLATED = 8


def raw(cells: Cells, where: Where) -> pa.Array:
    return cells.binary()


def fixed(width: int, cells: Cells, where: Where) -> pa.Array:
    """BINARY(n): the binary log leaves zero bytes at the end away, and here they come back (hard case N11)."""
    if (cells.size[cells.present] > width).any():
        raise unreadable(where, f"at most {width} bytes")
    return binary_array(_filled(width, cells).reshape(-1), np.arange(len(cells) + 1) * width, cells.valid)


def _filled(width: int, cells: Cells) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Values of `width` bytes, one a row, zero where there are none."""
    places = np.arange(width)
    there = places < np.where(cells.present, cells.size, 0)[:, None]
    at = np.minimum(cells.start[:, None] + places, len(cells.buffer.bytes) - 1)
    return np.where(there, cells.buffer.bytes[at], np.uint8(0))


def well_known(cells: Cells, where: Where) -> pa.Array:
    """Geometry as EWKB: with the SRID behind the type where there is one, else plain WKB.

    server   srid(4) │ 1 │ type(4)              │ rest      little-endian always, inner geometries without SRID
    EWKB               1 │ type(4) | 0x20000000 │ srid(4) │ rest
    """
    present = cells.present
    if (cells.size[present] < _GEOMETRY_MIN).any() or (cells.byte(_SRID)[present] != 1).any():
        raise unreadable(where, "a geometry")
    head = cells.matrix(_GEOMETRY_MIN)
    has_srid = head[:, :_SRID].any(axis=1) & present
    if not has_srid.any():
        return cells.trimmed(_SRID).binary()
    left_out = np.where(has_srid, 0, _SRID)
    size = np.where(present, cells.size - left_out, 0)
    data, offsets = gathered(cells.buffer.bytes, cells.start + left_out, size)
    at = offsets[:-1][has_srid, None] + np.arange(_GEOMETRY_MIN)
    data[at] = np.hstack([head[has_srid, _SRID:], head[has_srid, :_SRID]])
    data[at[:, 4]] |= _HAS_SRID
    return binary_array(data, offsets, cells.valid)


def vector(cells: Cells, where: Where) -> pa.Array:
    """Numbers of four bytes, as many as fit."""
    size = np.where(cells.present, cells.size, 0)
    if (size % 4).any():
        raise unreadable(where, "a vector")
    values = cells.where(cells.present).binary() if cells.valid is not None else cells.binary()
    data = values.buffers()[2]
    first, last = (values.offset, values.offset + len(values)) if len(values) else (0, 0)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[first : last + 1] if len(values) else np.zeros(1, np.int32)
    numbers = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].view("<f4") if data else np.empty(0, "<f4")
    ends = np.zeros(len(cells) + 1, np.int32)
    np.cumsum(size // 4, out=ends[1:])
    items = pa.array(numbers, pa.float32())
    return pa.Array.from_buffers(VECTOR, len(cells), [bitmap(cells.valid), pa.py_buffer(ends)], children=[items])


def uuid_text(cells: Cells, where: Where) -> pa.Array:
    """MariaDB's UUID: 16 bytes, of which the server stores the time's groups the other way round, except in those
    whose version says that they sort as they are (from 10.11.5 on; MDEV-29959)."""
    return _each(16, _uuid, cells)


def _uuid(value: bytes) -> str:
    turned = value[6] & 0x80 and 0 < value[8] < 0x60
    return str(uuid.UUID(bytes=value[12:16] + value[10:12] + value[8:10] + value[6:8] + value[:6] if turned else value))


def inet4(cells: Cells, where: Where) -> pa.Array:
    return _each(4, lambda value: ".".join(map(str, value)), cells)


def inet6(cells: Cells, where: Where) -> pa.Array:
    return _each(16, _inet6, cells)


def _inet6(value: bytes) -> str:
    """As MariaDB prints it: an IPv4 address at the end where one stands for it, and the first of the longest runs of
    zero groups left away, even if it is only one group long."""
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
    rows = _filled(width, cells)
    there = cells.present.tolist()
    values = [text(row.tobytes()) if given else None for row, given in zip(rows, there, strict=True)]
    return pa.array(values, pa.string())


def inflated(decode: Decoder, cells: Cells, where: Where) -> pa.Array:
    """MariaDB's COMPRESSED columns: a byte that says how, the length, and the value."""
    # zlib knows no columns: each value was deflated by itself.
    values = [b"" if value is None else _inflate(value, where) for value in cells.binary().to_pylist()]
    size = np.fromiter(map(len, values), np.int64, len(values))
    return decode(Cells(padded(values), np.cumsum(size) - size, size, cells.valid), where)


def _inflate(value: bytes, where: Where) -> bytes:
    """The first byte: 0 as it is; else 8 << 4 (zlib), 8 (without its header), and the bytes that the length takes."""
    if not value:
        return b""
    first = value[0]
    if first == 0:
        return value[1:]
    size = first & 7
    length = int.from_bytes(value[1 : 1 + size], "big")
    if first >> 4 != _DEFLATED or not 0 < size <= 4:
        raise unreadable(where, "compressed in a way that is known")
    try:
        inflate = zlib.decompressobj(-15 if first & 8 else 15)
        found = inflate.decompress(value[1 + size :], length)
    except zlib.error:
        raise unreadable(where, "compressed text") from None
    if len(found) != length or (inflate.unconsumed_tail and inflate.decompress(inflate.unconsumed_tail, 1)):
        raise unreadable(where, "compressed text of the length that it says")
    return found
