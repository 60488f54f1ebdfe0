"""Decodes arrays of any type, as lists.

An array of more than one dimension, or one that does not begin at 1, is a value that a list cannot hold.
"""

from __future__ import annotations

import struct
from functools import partial

import numpy as np
import pyarrow as pa

from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import Bools, Buffer, Bytes, Cells, gather, protocol_error, with_padding
from cdcflow.sources.postgres.types.values import (
    Decode,
    PostgresType,
    Unholdable,
    ValueDecoder,
    Where,
    apply_policy,
    unreadable,
)

NOT_LISTS = frozenset({22, 30})  # int2vector, oidvector: they begin at 0 and print without braces

_LENGTH = struct.Struct(">i")
_WALKED_ALONE = 32  # arrays; with fewer, a step of numpy for each element costs more than the elements one by one


def list_type(element: PostgresType, delimiter: str) -> PostgresType:
    """Return the type of arrays of this type. `delimiter`: the character between their elements in text
    (`pg_type.typdelim`)."""
    arrow = pa.list_(pa.field("element", element.arrow))
    in_text = ValueDecoder(partial(array_text, element.text.decode, arrow, delimiter))
    if element.binary is None:
        return PostgresType(arrow, in_text, lossy=True)
    in_binary = ValueDecoder(partial(array, element.binary.decode, arrow), "binary.array", element.binary)
    return PostgresType(arrow, in_text, in_binary, lossy=True)


def array_text(element: Decode, arrow: pa.DataType, delimiter: str, cells: Cells, where: Where) -> pa.Array:
    """Decode one-dimensional arrays, printed as {a,"b c",NULL}, as lists.

    Backslashes occur only inside quotes, where one escapes the character after it. So a character is escaped when an
    odd number of backslashes comes right before it, a quote that is not escaped begins or ends a quoted element, and
    braces and delimiters count where the number of such quotes before them is even.
    """
    raw, offsets = gather(cells.buffer.bytes, cells.start, np.where(cells.present, cells.size, 0))
    escaped = _is_escaped(raw)
    quote = (raw == ord('"')) & ~escaped
    # Only whether the count is odd matters, so it may overflow its 8 bits.
    bare = (np.cumsum(quote, dtype=np.uint8) & 1 == 0) & ~quote
    braces = np.bincount(_rows(offsets, bare & (raw == ord("{"))), minlength=len(cells))
    shaped = (cells.byte(0) == ord("[")) | (braces > 1)
    present = cells.present & ~shaped
    ends = np.maximum(offsets[1:] - 1, 0)
    if not ((cells.byte(0) == ord("{")) & (_bytes_at(raw, ends) == ord("}")) & (cells.size > 1) | ~present).all():
        raise unreadable(where, "an array")
    full = present & (cells.size > 2)
    splits = np.flatnonzero(bare & (raw == ord(delimiter)))
    of = np.searchsorted(offsets, splits, side="right") - 1
    splits, of = splits[full[of]], of[full[of]]
    count = np.bincount(of, minlength=len(cells)) + full
    lists = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(count, out=lists[1:])
    begin = np.sort(np.concatenate([offsets[:-1][full] + 1, splits + 1]))
    end = np.sort(np.concatenate([ends[full], splits]))
    quoted = _bytes_at(raw, begin) == ord('"')
    # Quotes, and backslashes that are not escaped themselves, are not part of the value.
    stays = ~(quote | ((raw == ord("\\")) & ~escaped))
    kept = np.zeros(len(raw) + 1, np.int32)
    np.cumsum(stays, out=kept[1:])
    values = raw[stays]
    first, size = kept[begin].astype(np.int64), (kept[end] - kept[begin]).astype(np.int64)
    null = ~quoted & (size == 4)
    if null.any():
        word = np.zeros((len(first), 4), np.uint8)
        word[null] = values[first[null][:, None] + np.arange(4)]
        null &= (word == np.frombuffer(b"NULL", np.uint8)).all(axis=1)
    valid = ~null if null.any() else None
    items = element(Cells(with_padding([values.tobytes()]), first, size, valid), where)
    lists_array = pa.ListArray.from_arrays(
        pa.array(lists.astype(np.int32)),
        items,
        type=arrow,
        mask=None if present.all() else pa.array(~present),
    )
    found = [Unholdable(shaped, "an array of several dimensions or with a lower bound other than 1", None)]
    return apply_policy(lists_array, found, where)


def array(element: Decode, arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """Decode one-dimensional arrays in the binary format as lists.

    The format: dimensions, whether there are NULLs, the type, then each dimension's length and lower bound, then the
    elements, each with its length (-1: NULL).
    """
    buffer, present = cells.buffer, cells.present
    dimensions = np.where(present, buffer.int32(cells.start), 0)
    if not ((dimensions >= 0) & (dimensions <= 6) & (cells.size >= 12 + 8 * dimensions) | ~present).all():
        raise protocol_error(f"a value of {where} has a wrong length")
    full = present & (dimensions > 0)
    lower = np.where(full, buffer.int32(np.where(full, cells.start + 16, 0)), 1)
    shaped = present & ((dimensions > 1) | (lower != 1))
    held_here = full & ~shaped
    count = np.where(held_here, buffer.int32(np.where(held_here, cells.start + 12, 0)), 0)
    if ((count < 0) | (4 * count > np.maximum(cells.size - 20, 0))).any():
        raise protocol_error(f"a value of {where} has a wrong length")
    start, size = _elements(buffer, cells, count, where)
    if not (cells.size == 12)[present & (dimensions == 0)].all():
        raise protocol_error(f"a value of {where} has a wrong length")
    null = size < 0
    items = element(Cells(buffer, start, np.where(null, 0, size), ~null if null.any() else None), where)
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(count, out=offsets[1:])
    valid = present & ~shaped
    lists = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), items, type=arrow, mask=None if valid.all() else pa.array(~valid)
    )
    found = [Unholdable(shaped, "an array of several dimensions or with a lower bound other than 1", None)]
    return apply_policy(lists, found, where)


def _elements(buffer: Buffer, cells: Cells, count: Int64s, where: Where) -> tuple[Int64s, Int64s]:
    """Return start and size of the elements of all arrays, one array after another; a size of -1 is NULL.

    The first elements of all arrays are found at once, then the second ones, and so on. If only few arrays have more,
    those are walked through one by one.
    """
    begin = np.cumsum(count) - count
    start, size = np.zeros(int(count.sum()), np.int64), np.zeros(int(count.sum()), np.int64)
    at, end = cells.start + 20, cells.start + cells.size
    wrong = protocol_error(f"a value of {where} has a wrong length")
    rows, number = np.flatnonzero(count > 0), 0
    while len(rows) > _WALKED_ALONE:
        length = buffer.int32(at[rows])
        element = begin[rows] + number
        start[element], size[element] = at[rows] + 4, length
        at[rows] += 4 + np.maximum(length, 0)
        if (length < -1).any() or (at[rows] > end[rows]).any():
            raise wrong
        number += 1
        # The remaining bytes of each array must hold at least the lengths of its remaining elements.
        if (at[rows] + 4 * (count[rows] - number) > end[rows]).any():
            raise wrong
        rows = rows[count[rows] > number]
    for row in rows.tolist():
        next_at, stop, first = int(at[row]), int(end[row]), int(begin[row])
        for nth in range(number, int(count[row])):
            if next_at + 4 > stop:
                raise wrong
            (found,) = _LENGTH.unpack_from(buffer.raw, next_at)
            if found < -1 or next_at + 4 + max(found, 0) > stop:
                raise wrong
            start[first + nth], size[first + nth] = next_at + 4, found
            next_at += 4 + max(found, 0)
        at[row] = next_at
    if (at != end)[count > 0].any():
        raise wrong
    return start, size


def _rows(offsets: Int64s, found: Bools) -> Int64s:
    """Return which value each of these bytes belongs to."""
    return np.searchsorted(offsets, np.flatnonzero(found), side="right") - 1


def _is_escaped(raw: Bytes) -> Bools:
    """Return which characters have an odd number of backslashes right before them."""
    escaped = np.zeros(len(raw) + 1, np.bool_)
    slash = np.flatnonzero(raw == ord("\\"))
    number = np.arange(len(slash))
    begins = np.diff(slash, prepend=-2) > 1
    in_run = number - np.maximum.accumulate(np.where(begins, number, 0))  # 0 for the first of a run
    # In a run of backslashes every second one is escaped by the one before it, and the last one of an odd run escapes
    # the character that follows.
    escaped[slash[in_run % 2 == 1]] = True
    last = np.append(begins[1:], True)[: len(slash)]
    escaped[slash[last & (in_run % 2 == 0)] + 1] = True
    return escaped[:-1]


def _bytes_at(raw: Bytes, offsets: Int64s) -> Bytes:
    """Return the bytes at these offsets. An offset at the very end (of an empty last value) gives 0."""
    if not len(raw):
        return np.zeros(len(offsets), np.uint8)
    return np.where(offsets < len(raw), raw[np.minimum(offsets, len(raw) - 1)], 0).astype(np.uint8)
