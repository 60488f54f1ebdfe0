"""Encode whole columns in Base64."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
LONG_BYTES = 24
"""Values longer than this are encoded one by one, because the call for each costs less than processing its bytes."""


def base64_text(values: pa.Array) -> pa.Array:
    """Base64 with padding of each value; NULL stays NULL. Values of the same length are encoded together."""
    values = values.cast(pa.large_binary())
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    if not len(sizes) or sizes.max() > LONG_BYTES:
        found = [None if v is None else base64.b64encode(v) for v in values.to_pylist()]
        return pa.array(found, pa.large_binary())
    starts, content = parts(values)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum((sizes + 2) // 3 * 4)])
    out = np.empty(int(ends[-1]), np.uint8)
    for size in np.unique(sizes):
        if not size:
            continue
        rows = np.flatnonzero(sizes == size)
        cells = content[starts[rows, None] + np.arange(size)]
        out[ends[rows, None] + np.arange((size + 2) // 3 * 4)] = _encode(cells)
    return of_parts(ends, out, values)


def _encode(cells: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Encode rows of equally many bytes."""
    count, size = cells.shape
    padded = np.zeros((count, (size + 2) // 3, 3), np.uint32)
    padded.reshape(count, -1)[:, :size] = cells
    words = padded[:, :, 0] << 16 | padded[:, :, 1] << 8 | padded[:, :, 2]
    digits: npt.NDArray[np.uint8] = _ALPHABET[(words[:, :, None] >> np.array([18, 12, 6, 0], np.uint32)) & 63].reshape(
        count, -1
    )
    if size % 3:  # padding
        digits[:, size % 3 - 3 :] = ord("=")
    return digits


def parts(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return where each value of a `large_binary` array begins, and the bytes that these positions refer to."""
    _, offsets, content = values.buffers()
    starts = np.frombuffer(offsets or b"", np.int64)[values.offset : values.offset + len(values)]
    return starts, np.frombuffer(content or b"", np.uint8)


def of_parts(ends: npt.NDArray[np.int64], content: npt.NDArray[np.uint8], like: pa.Array | None = None) -> pa.Array:
    """Return a `large_binary` array of consecutive values; NULL where `like` is."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(ends, np.int64)), pa.py_buffer(np.ascontiguousarray(content))]
    whole = pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, buffers, 0)
    if like is None or not like.null_count:
        return whole
    return pc.if_else(like.is_valid(), whole, pa.scalar(None, pa.large_binary()))
