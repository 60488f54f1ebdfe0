"""Encode numbers with varying length, as Avro and Protobuf do, whole columns at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.publish.base64_text import of_parts
from cdcflow.publish.message_columns import concat_columns

_BYTES_MAX = 10
_SHIFTS = np.arange(_BYTES_MAX, dtype=np.uint64) * np.uint64(7)


def varints(numbers: npt.NDArray[np.uint64], like: pa.Array | None = None) -> pa.Array:
    """Return numbers with seven bits per byte, least significant first; the top bit marks that more bytes follow. NULL
    where `like` is NULL."""
    width = int(numbers.max()).bit_length() // 7 + 1 if len(numbers) else 1
    shifts = _SHIFTS[: min(width, _BYTES_MAX)]
    groups = (numbers[:, None] >> shifts).astype(np.uint64)
    sizes = np.maximum((groups != 0).sum(axis=1), 1)
    kept = np.arange(len(shifts)) < sizes[:, None]
    more = np.arange(len(shifts)) < sizes[:, None] - 1
    cells = ((groups & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return of_parts(ends, cells[kept], like)


def zigzag(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return small unsigned numbers for small numbers of either sign."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def varint(number: int) -> bytes:
    found: bytes = varints(np.array([number], np.uint64))[0].as_py()
    return found


def integers(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return a column of integers, 0 where it is NULL."""
    found: npt.NDArray[np.int64] = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(found)


def fixed_width(values: pa.Array, kind: str) -> pa.Array:
    """Return numbers in as many bytes as their type has, least significant first."""
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype(kind)
    ends = np.arange(len(numbers) + 1, dtype=np.int64) * numbers.itemsize
    return of_parts(ends, numbers.view(np.uint8), values)


def lengths(cells: pa.Array) -> npt.NDArray[np.int64]:
    return integers(pc.binary_length(cells))


def behind_length(cells: pa.Array, *, zigzagged: bool) -> pa.Array:
    """Return each cell, preceded by its length in bytes."""
    sizes = lengths(cells)
    return concat_columns(varints(zigzag(sizes) if zigzagged else sizes.view(np.uint64), cells), cells)
