"""Numbers, BIT, YEAR, ENUM and SET: from row images (little-endian) and from the server's text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import Int64s, Uint64s
from cdcflow.sources.buffers import Cells
from cdcflow.sources.mysql.values import Where, unreadable


def integer(kind: str, arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """Integers of 1, 2, 4 and 8 bytes; `kind` is the numpy type that lies there. FLOAT and DOUBLE are the same."""
    values = cells.buffer.values(kind, cells.start)
    return pa.array(values, arrow, mask=cells.mask)


def medium(arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """Integers of 3 bytes."""
    values = cells.buffer.values("<u4", cells.start).astype(np.int64) & 0xFFFFFF
    if pa.types.is_signed_integer(arrow):
        values = (values ^ 0x800000) - 0x800000
    return pa.array(values, pa.int64(), mask=cells.mask).cast(arrow)


def year(cells: Cells, where: Where) -> pa.Array:
    """One byte, counted from 1900; 0 is the year 0 (hard case N05)."""
    values = cells.buffer.bytes[cells.start].astype(np.int16)
    return pa.array(np.where(values == 0, 0, values + 1900).astype(np.int16), mask=cells.mask)


def bits(width: int, cells: Cells, where: Where) -> pa.Array:
    """BIT(n): its bytes, the greatest first; the same in both paths."""
    if (cells.size[cells.present] != width).any():
        raise unreadable(where, f"{width} bytes of bits")
    return pa.array(_big_endian(width, cells), pa.uint64(), mask=cells.mask)


def _big_endian(width: int, cells: Cells) -> Uint64s:
    values = np.zeros(len(cells), np.uint64)
    for place in range(width):
        values = values << np.uint64(8) | cells.buffer.bytes[cells.start + place].astype(np.uint64)
    return values


def _little_endian(width: int, cells: Cells) -> Uint64s:
    values = cells.buffer.values("<u8", cells.start)
    return values if width == 8 else values & np.uint64((1 << 8 * width) - 1)


def enum_label(width: int, labels: Sequence[str], cells: Cells, where: Where) -> pa.Array:
    """An ENUM's number as its label. 0 is the empty string, which stands for a value that was no label."""
    number = _little_endian(width, cells).astype(np.int64)
    if (number[cells.present] > len(labels)).any():
        raise unreadable(where, f"one of its {len(labels)} labels")
    return _labels(["", *labels], number, cells)


def set_labels(width: int, labels: Sequence[str], cells: Cells, where: Where) -> pa.Array:
    """A SET's bits as its labels with commas between, as the server prints them. No bit at all is the empty string."""
    value = _little_endian(width, cells)
    there = value[cells.present]
    if len(labels) < 64 and (there >> np.uint64(len(labels))).any():
        raise unreadable(where, f"some of its {len(labels)} labels")
    distinct, number = np.unique(np.where(cells.present, value, 0), return_inverse=True)
    texts = [",".join(label for i, label in enumerate(labels) if bits >> i & 1) for bits in distinct.tolist()]
    return _labels(texts, number, cells)


def _labels(texts: Sequence[str], number: Int64s, cells: Cells) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(number, mask=cells.mask))


def number_text(arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """The server's text of a number. Arrow rounds to nearest, so the shortest text of a double gives its bits."""
    return parsed(cells.binary(), arrow, where, f"a number that {arrow} holds")


def float_text(cells: Cells, where: Where) -> pa.Array:
    """A FLOAT that the server was asked for as a double, so that all its bits are in the text (hard case N21)."""
    return number_text(pa.float64(), cells, where).cast(pa.float32(), safe=False)


def parsed(strings: pa.Array, arrow: pa.DataType, where: Where, expected: str) -> pa.Array:
    try:
        return pc.cast(strings.view(pa.string()), arrow)  # not looked at as UTF-8: what is no digit is refused anyway
    except pa.ArrowInvalid:
        raise unreadable(where, expected) from None
