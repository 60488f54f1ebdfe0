"""Encode numbers with varying length, as Avro and Protobuf do, whole columns at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.publish.base64_text import of_parts
from cdcflow.publish.message_columns import RENDERED, concat_columns, constant

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
    return concat_columns(varints(_unsigned_numbers(sizes, zigzagged=zigzagged), cells), cells)


def scalars(values: pa.Array, type_: str, *, zigzagged: bool) -> pa.Array:
    """Return a column of plain values (`type_`: Connect's) in binary. `zigzagged`: whole numbers and lengths are."""
    match type_:
        case "boolean":
            return pc.if_else(values, constant(b"\x01"), constant(b"\0"))
        case "float":
            return fixed_width(values, "<f4")
        case "double":
            return fixed_width(values, "<f8")
        case "string" | "bytes":
            return behind_length(values.cast(RENDERED), zigzagged=zigzagged)
        case _:
            return varints(_unsigned_numbers(integers(values), zigzagged=zigzagged), values)


def _unsigned_numbers(numbers: npt.NDArray[np.int64], *, zigzagged: bool) -> npt.NDArray[np.uint64]:
    return zigzag(numbers) if zigzagged else numbers.view(np.uint64)
