"""Reads a server's bytes with numpy: a buffer, the cells of a column in it, Arrow arrays over them.

Bytes that arrive together are joined into one buffer; everything else is arrays of offsets into it. `PAD` zero bytes
follow every buffer, so that a read at any offset inside it stays inside it, whatever a length on the wire claims. Code
that follows a length checks the resulting offset before it uses it: a hostile or malformed length raises
`SourceUnavailable` and never causes a read beyond the buffer (hard case O10).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import Int64s

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

PAD = 64
_OFFSETS_MAX = 2**31 - 1
_GATHERED_AT_ONCE = 1 << 20


def protocol_error(what: str) -> SourceUnavailable:
    """Return the error for bytes that violate the protocol: nothing was lost, and the connection must be opened
    again."""
    return SourceUnavailable(f"decoding the server's stream: {what}; cdcflow connects again")


def _too_many_bytes() -> ConfigurationError:
    return ConfigurationError(
        "decoding the server's stream: the values of one column in one batch are larger than 2 GiB",
        remedy="lower source.spool_bytes_max and source.backfill.chunk_rows_max",
        runbook="too-large",
    )


class Buffer:
    """A server's bytes, with numpy views at every offset."""

    __slots__ = ("_views", "bytes", "raw", "size")

    def __init__(self, raw: bytes) -> None:
        """`raw` must end with `PAD` bytes of padding (`with_padding`)."""
        self.raw = raw
        self.size = len(raw) - PAD
        self.bytes: Bytes = np.frombuffer(raw, np.uint8)
        self._views: dict[str, Int64s] = {}

    def _view(self, kind: str, width: int) -> Int64s:
        found = self._views.get(kind)
        if found is None:
            found = self._views[kind] = np.ndarray((len(self.raw) - width + 1,), kind, self.raw, strides=(1,))
        return found

    def values(self, kind: str, at: Int64s) -> npt.NDArray[Any]:
        """Return the values of this numpy type (`<u4`) at these offsets, which need not be aligned."""
        return self._view(kind, int(kind[2:]))[at]

    def int16(self, at: Int64s) -> Int64s:
        return self._view(">i2", 2)[at].astype(np.int64)

    def int32(self, at: Int64s) -> Int64s:
        return self._view(">i4", 4)[at].astype(np.int64)

    def uint32(self, at: Int64s) -> Int64s:
        return self._view(">u4", 4)[at].astype(np.int64)

    def int64(self, at: Int64s) -> Int64s:
        return self._view(">i8", 8)[at].astype(np.int64)


def with_padding(pieces: Sequence[bytes | memoryview]) -> Buffer:
    return Buffer(b"".join([*pieces, bytes(PAD)]))


@dataclass(frozen=True, slots=True)
class Cells:
    """One column's values as bytes: value i is the `size[i]` bytes at `start[i]`. `valid` marks the values that are not
    NULL; None if none is NULL."""

    buffer: Buffer
    start: Int64s
    size: Int64s
    valid: Bools | None = None

    def __len__(self) -> int:
        return len(self.start)

    @property
    def mask(self) -> Bools | None:
        """Which values are NULL, as pyarrow expects a mask; None if no value is NULL."""
        return None if self.valid is None else ~self.valid

    def where(self, rows: Bools) -> Cells:
        return Cells(self.buffer, self.start[rows], self.size[rows], None if self.valid is None else self.valid[rows])

    def without(self, rows: Bools) -> Cells:
        """Return the same cells, with these rows NULL."""
        return Cells(self.buffer, self.start, self.size, ~rows if self.valid is None else self.valid & ~rows)

    def without_prefix(self, count: int) -> Cells:
        """Return the same cells, without each value's first `count` bytes."""
        return Cells(self.buffer, self.start + count, np.maximum(self.size - count, 0), self.valid)

    def byte(self, at: int) -> Bytes:
        """Return byte number `at` of each value; 0 if the value is shorter or NULL."""
        there = self.size > at if self.valid is None else self.valid & (self.size > at)
        return np.where(there, self.buffer.bytes[self.start + at], np.uint8(0))

    @property
    def present(self) -> Bools:
        return np.ones(len(self), np.bool_) if self.valid is None else self.valid

    def matrix(self, width: int) -> Bytes:
        """Return the first `width` bytes of each value (at most `PAD`). If a value is shorter, the bytes after its end
        are arbitrary."""
        offsets = self.start[:, None] + np.arange(width)
        return np.take(self.buffer.bytes, offsets)

    def big_endian(self, width: int, begin: int = 0) -> Int64s:
        """Return the big-endian number in `width` bytes of each value, starting at its byte number `begin`."""
        value = np.zeros(len(self), np.int64)
        for byte in range(begin, begin + width):
            value = value << 8 | self.buffer.bytes[self.start + byte]
        return value

    def binary(self) -> pa.Array:
        """Return the values as an Arrow binary array.

        To avoid a copy per value, an Arrow array is laid over the whole buffer: its odd-numbered slots are the values,
        and the others are the gaps between them. Taking every second slot is then one call.
        """
        count = len(self)
        if not count:
            return pa.array([], pa.binary())
        stop = self.start + self.size
        if count > 1 and not (self.start[1:] >= stop[:-1]).all():
            return self._copy_scattered()
        wide = len(self.buffer.raw) > _OFFSETS_MAX
        offsets = np.empty(2 * count, np.int64 if wide else np.int32)
        offsets[0::2] = self.start
        offsets[1::2] = stop
        slots = pa.Array.from_buffers(
            pa.large_binary() if wide else pa.binary(),
            2 * count - 1,
            [None, pa.py_buffer(offsets), pa.py_buffer(self.buffer.raw)],
        )
        taken = slots.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64), mask=self.mask))
        if wide and taken.nbytes > _OFFSETS_MAX:
            raise _too_many_bytes()
        return taken.cast(pa.binary()) if wide else taken

    def _copy_scattered(self) -> pa.Array:
        """Return the values as an Arrow binary array, copied byte by byte: for values that are not in ascending order
        in the buffer."""
        size = self.size if self.valid is None else np.where(self.valid, self.size, 0)
        data, offsets = gather(self.buffer.bytes, self.start, size)
        return binary_array(data, offsets, self.valid)


def gather(source: Bytes, start: Int64s, size: Int64s) -> tuple[Bytes, Int64s]:
    """Return the bytes of all values, one after another, and their offsets (one more than there are values)."""
    offsets = np.zeros(len(size) + 1, np.int64)
    np.cumsum(size, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    for first, last in pieces(offsets):
        a, b = int(offsets[first]), int(offsets[last])
        if last == first + 1:
            out[a:b] = source[int(start[first]) : int(start[first]) + b - a]
        else:
            shift = start[first:last] - offsets[first:last]
            out[a:b] = source[np.repeat(shift, size[first:last]) + np.arange(a, b)]
    return out, offsets


def pieces(offsets: Int64s) -> Iterator[tuple[int, int]]:
    """Return ranges of values that together have about a MiB; a larger value gets a range for itself.

    Computing the origin of each byte takes many times the memory of the bytes, so it is done for one range at a time.
    """
    first, count = 0, len(offsets) - 1
    while first < count:
        last = max(int(np.searchsorted(offsets, offsets[first] + _GATHERED_AT_ONCE, side="right")) - 1, first + 1)
        yield first, last
        first = last


def new_bytes(size: int) -> Bytes:
    """Return a new buffer for the bytes of one column."""
    if size > _OFFSETS_MAX:
        raise _too_many_bytes()
    return np.empty(size, np.uint8)


def binary_array(data: Bytes, offsets: Int64s, valid: Bools | None) -> pa.Array:
    """Return an Arrow binary array over these bytes; `offsets` has one more entry than there are values."""
    if int(offsets[-1]) > _OFFSETS_MAX:
        raise _too_many_bytes()
    return pa.Array.from_buffers(
        pa.binary(),
        len(offsets) - 1,
        [bitmap(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))],
    )


def bitmap(valid: Bools | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def fixed_text(text: Bytes, valid: Bools | None = None) -> pa.Array:
    """Return an Arrow string array of ASCII values of equal length, one per row of `text`."""
    count, width = text.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), count, [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text))]
    )
