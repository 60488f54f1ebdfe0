"""Finds, in row images, where each row begins and where its values are.

A row image does not contain its length. It begins with a bit for each column that is sent, set if the value is NULL,
and the values follow one after another, so that finding the next row requires knowing the columns:

    nulls │ int 4 bytes │ length 1 byte, text │ datetime 5 bytes │ nulls │ …

An update that may hold parts of JSON documents (PARTIAL_UPDATE_ROWS) has a head before each after image: one byte of
options and, if its lowest bit is set, a bit for each JSON column of the table, sent or not. If a column's bit is set,
its value is not a document but the changes in it.

So the walk from row to row is a loop over rows, generated for the columns that are sent: a straight-line function,
written as source text once per shape. It records where each row begins, and nothing else. The positions of the values
are then computed by arithmetic on these offsets, one column at a time, with numpy.

A length that does not lead to the end of its event raises `SourceUnavailable`. Nothing is read beyond the buffer: every
step is forward, and the last one must end exactly where the event does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import Bools, Buffer, Cells, protocol_error
from cdcflow.sources.mysql.errors import READ_ANEW

Form = tuple[int, int]
"""A column as the walk sees it: (bytes of a value, 0), or (0, bytes of the value's length)."""

Walk = Callable[[bytes, int, int, list[Callable[[int], None]]], int]
_UNKNOWN = -2
_SHORT = ("data[at]", "(data[at] | data[at + 1] << 8)")


@dataclass(frozen=True, slots=True)
class Extents:
    """Where the rows of ROWS events are: bytes `start` (inclusive) to `end` (exclusive) of a buffer, per event."""

    start: Int64s
    end: Int64s


def present(bitmap: bytes, columns: int) -> tuple[bool, ...]:
    """Return which columns are sent, according to a bitmap of an event."""
    bits = int.from_bytes(bitmap, "little")
    if len(bitmap) * 8 < columns:
        raise protocol_error("a row event whose bitmap has fewer bits than its table has columns")
    return tuple(bool(bits >> number & 1) for number in range(columns))


def walk_images(
    buffer: Buffer, extents: Extents, images: Sequence[Sequence[Form]], documents: int | None = None
) -> tuple[list[Int64s], Int64s]:
    """Return where each image begins (one array for each image that a row has), and the number of rows of each extent.

    `images` are the columns that are sent: one list, and for updates two (before and after). `documents`: the number of
    JSON columns of the table if after images have a head, otherwise None. With heads, one more array at the end has the
    starts of the heads.

    Raises:
        SourceUnavailable: the rows do not end where their event does.
        ConfigurationError: an option in a head that cdcflow does not know.
    """
    walk = _walk(tuple(tuple(forms) for forms in images), documents)
    starts: list[list[int]] = [[] for _ in range(len(images) + (documents is not None))]
    appends = [found.append for found in starts]
    counts = []
    for start, end in zip(extents.start.tolist(), extents.end.tolist(), strict=True):
        before = len(starts[0])
        if not 0 <= start <= end <= buffer.size:
            raise InvariantViolated("an event's rows are outside the buffer", runbook="stream-not-understood")
        try:
            reached = walk(buffer.raw, start, end, appends)
        except IndexError:
            reached = -1
        if reached == _UNKNOWN:
            raise ConfigurationError(
                "an update in the binary log has options of its values (binlog_row_value_options) that cdcflow does "
                "not know",
                remedy="run SET GLOBAL binlog_row_value_options = '' (in the server's settings, too), then "
                f"{READ_ANEW}",
                runbook="binlog-not-complete",
            )
        if reached != end:
            raise protocol_error("a row event does not end where its last row does")
        counts.append(len(starts[0]) - before)
    return [np.array(found, np.int64) for found in starts], np.array(counts, np.int64)


def parts_of_documents(buffer: Buffer, heads: Int64s, documents: int) -> list[Bools]:
    """Return, for each JSON column of the table, which rows have only a part of the document. `heads` is from
    `walk_images`."""
    partial = buffer.bytes[heads] == 1
    bits = (buffer.bytes[heads + 1 + number // 8] >> np.uint8(number % 8) & np.uint8(1) for number in range(documents))
    return [partial & bit.view(np.bool_) for bit in bits]


def cells(buffer: Buffer, at: Int64s, forms: Sequence[Form]) -> list[Cells]:
    """Return the cells of each column of the images that begin at `at`."""
    found = []
    nulls = _nulls(buffer, at, len(forms))
    at = at + (len(forms) + 7) // 8
    for number, (width, prefix) in enumerate(forms):
        valid = None if nulls is None or not nulls[number].any() else ~nulls[number]
        size = np.full(len(at), width, np.int64) if width else _lengths(buffer, at, prefix)
        start = at + prefix
        at = start + size
        if valid is not None:
            size = np.where(valid, size, 0)
            at = np.where(valid, at, start - prefix)
        found.append(Cells(buffer, start, size, valid))
    return found


def _lengths(buffer: Buffer, at: Int64s, prefix: int) -> Int64s:
    if prefix == 1:
        return buffer.bytes[at].astype(np.int64)
    if prefix == 2:
        return buffer.values("<u2", at).astype(np.int64)
    return np.asarray(buffer.values("<u4", at).astype(np.int64) & ((1 << 8 * prefix) - 1))


def _nulls(buffer: Buffer, at: Int64s, columns: int) -> list[Bools] | None:
    """Return, for each column, in which images it is NULL; None if no value is NULL."""
    found: list[Bools] = []
    some = False
    for number in range(columns):
        if number % 8 == 0:
            byte = buffer.bytes[at + number // 8] & np.uint8(0xFF >> max(0, 8 - columns + number))
            empty = not byte.any()
            some = some or not empty
        found.append(
            np.zeros(len(at), np.bool_) if empty else (byte >> np.uint8(number % 8) & np.uint8(1)).view(np.bool_)
        )
    return found if some else None


@lru_cache(maxsize=1024)
def _walk(images: tuple[tuple[Form, ...], ...], documents: int | None) -> Walk:
    """Return the function that walks from row to row over such images."""
    lines = ["def walk(data, at, end, appends):"]
    lines += [f"    append{number} = appends[{number}]" for number in range(len(images) + (documents is not None))]
    lines.append("    while at < end:")
    for number, forms in enumerate(images):
        if number and documents is not None:
            lines.append(f"        append{len(images)}(at)")
            lines.append(f"        if data[at] > 1: return {_UNKNOWN}")
            lines.append(f"        at += {1 + (documents + 7) // 8} if data[at] else 1")
        lines += [f"        {line}" for line in _image(number, forms)]
    lines.append("    return at")
    room: dict[str, Any] = {"number": int.from_bytes}
    exec("\n".join(lines), room)  # noqa: S102  built from numbers alone
    walk: Walk = room["walk"]
    return walk


def _image(number: int, forms: tuple[Form, ...]) -> list[str]:
    size = (len(forms) + 7) // 8
    mask = (1 << len(forms)) - 1
    nulls = _SHORT[size - 1] if 0 < size <= len(_SHORT) else f'number(data[at : at + {size}], "little")'
    lines = [f"append{number}(at)", f"nulls = {nulls} & {mask}", f"at += {size}", "if not nulls:"]
    lines += [f"    {line}" for line in _straight(forms)]
    lines.append("else:")
    lines += [f"    if not nulls & {1 << nth}: {_step(form)}" for nth, form in enumerate(forms)]
    return lines if forms else [f"append{number}(at)"]


def _straight(forms: tuple[Form, ...]) -> list[str]:
    """Return one line of source text for each run of fixed-width columns, and one for each other column."""
    lines: list[str] = []
    fixed = 0
    for width, prefix in forms:
        if width:
            fixed += width
            continue
        if fixed:
            lines.append(f"at += {fixed}")
        fixed = 0
        lines.append(_step((width, prefix)))
    return [*lines, f"at += {fixed}"]


def _step(form: Form) -> str:
    width, prefix = form
    if width:
        return f"at += {width}"
    if prefix <= len(_SHORT):
        return f"at += {prefix} + {_SHORT[prefix - 1]}"
    return f'at += {prefix} + number(data[at : at + {prefix}], "little")'
