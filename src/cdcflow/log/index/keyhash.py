"""A 64-bit hash for each key, by which an index identifies it: the same for equal keys, computed in columns.

Two keys may have the same hash: a reader that finds one by its hash compares the keys. A key's hash does not depend on
the width of an integer column, so that a key is found in files from before the column was widened. Keys of a type that
has no hash (a list) all share one value: an index of them excludes nothing, and saves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_WORD = 8


def _mix(value: Hashes) -> Hashes:
    """Return a value whose every bit depends on each bit of `value` (the finalizer of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def hashes(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """Return the hashes of some keys, given as the columns of the key in its order."""
    found: Hashes = np.zeros(len(columns[0]) if columns else 0, np.uint64)
    for column in columns:
        found = _mix(found * np.uint64(31) + _of_column(_flat(column)))
    return found


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(flat, pa.ChunkedArray):  # older versions of Arrow return a chunked array if there are no chunks
        flat = pa.array([], column.type)
    return flat.dictionary_decode() if pa.types.is_dictionary(flat.type) else flat


def _of_column(column: pa.Array) -> Hashes:
    of = column.type
    if pa.types.is_decimal(of):
        column = column.cast(pa.string())
        of = column.type
    if pa.types.is_string(of) or pa.types.is_binary(of) or pa.types.is_large_string(of) or pa.types.is_large_binary(of):
        found = _of_bytes(column.cast(pa.large_binary()))
    elif pa.types.is_fixed_size_binary(of):
        found = _of_bytes(column.cast(pa.binary()).cast(pa.large_binary()))
    else:
        found = _of_numbers(column)
    if column.null_count:
        found = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, found)
    return found


def _of_numbers(column: pa.Array) -> Hashes:
    of: Any = column.type
    if pa.types.is_boolean(of):
        values = column.cast(pa.uint8())
    elif pa.types.is_integer(of):
        values = column
    elif pa.types.is_date32(of) or pa.types.is_time32(of):
        values = column.view(pa.int32())
    elif pa.types.is_timestamp(of) or pa.types.is_time64(of) or pa.types.is_duration(of) or pa.types.is_date64(of):
        values = column.view(pa.int64())
    elif pa.types.is_floating(of):
        numbers = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        numbers = np.where(np.isnan(numbers), np.nan, numbers + 0.0)  # all NaN alike, -0.0 as 0.0
        return _mix(np.ascontiguousarray(numbers).view(np.uint64))
    else:
        return np.zeros(len(column), np.uint64)
    numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return _mix(numbers.astype(np.int64).view(np.uint64) if numbers.dtype.kind == "i" else numbers.astype(np.uint64))


def _of_bytes(column: pa.Array) -> Hashes:
    """Hash each text eight bytes at a time, the last ones padded with zeros, and its length at the end."""
    found = np.zeros(len(column), np.uint64)
    _, ends, content = column.buffers()
    if ends is None or not len(column):
        return found
    bounds = np.frombuffer(ends, np.int64)[column.offset : column.offset + len(column) + 1]
    raw = b"" if content is None else memoryview(content)[int(bounds[0]) : int(bounds[-1])]
    padded = b"".join((raw, bytes(_WORD)))
    words = np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, strides=(1,))  # the eight bytes after each position
    starts, lengths = bounds[:-1] - bounds[0], np.diff(bounds)
    left = np.flatnonzero(lengths > 0)
    for at in range(0, int(lengths.max()), _WORD):
        left = left[lengths[left] > at]
        there = np.minimum(lengths[left] - at, _WORD).astype(np.uint64)
        unused = (np.uint64(_WORD) - there) * np.uint64(8)
        word = (words[starts[left] + at] << unused) >> unused
        found[left] = _mix(found[left] * np.uint64(31) + word)
    return _mix(found + lengths.astype(np.uint64))
