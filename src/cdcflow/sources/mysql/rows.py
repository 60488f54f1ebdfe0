"""Decodes row images of the binary log to changes in Arrow columns, one batch of events at a time.

- An update that keeps its key is one `u`; one that changes it is a `d` of the old key and a `c` (hard case M43).
- A column that the after image lacks was not changed: its value is the before image's if that has it, otherwise it is
  unchanged, which is not NULL (M08; `binlog_row_image` MINIMAL and NOBLOB).
- An insert without all columns leaves the rest to the table's defaults, which the log does not contain; an update may
  contain only what it changed in a JSON document, not the document. Such columns are unchanged, too, and their rows are
  `incomplete`: they must be read by key.

`changes` is the reference decoder. The compiled one (`decoders.py`) handles the usual cases and returns the same.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Int64s
from cdcflow.model.table import Identity
from cdcflow.sources.engine.buffers import PAD, Bools, Buffer, Cells, with_padding
from cdcflow.sources.engine.row_images import (
    Codes,
    change_batch,
    changed_keys,
    old_rows,
    same_values,
    split_key_changes,
)
from cdcflow.sources.mysql.errors import READ_ANEW
from cdcflow.sources.mysql.images import Extents, cells, parts_of_documents, present, walk_images
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types.columns import TypeCode

__all__ = ["DecodedRows", "Extents", "RowKind", "changes"]

_C, _U, _D = (ord(c) for c in "cud")


class RowKind(enum.Enum):
    """The kind of change that a ROWS event makes."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Changes of one table shape in order; `counts`: the number of changes from each extent. `incomplete`: which
    changes list a column as unchanged although its value changed or was never sent; None if no change does."""

    rows: pa.RecordBatch
    counts: Int64s
    incomplete: Bools | None = None


def changes(
    described: DescribedTable,
    data: bytes,
    extents: Extents,
    kind: RowKind,
    present_before: bytes,
    present_after: bytes,
    partial_json: bool = False,
) -> DecodedRows:
    """Decode the rows of ROWS events of one table shape, one kind and one pair of column bitmaps.

    `data` may extend beyond the last extent; if at least `buffers.PAD` bytes follow the last extent, nothing is copied.
    An insert has only an after image, a delete only a before image; the other bitmap is ignored.

    Raises:
        SourceUnavailable: the bytes cannot be rows of this table.
        ConfigurationError: its column's Arrow type cannot hold a value, or a row lacks its key; the message names the
            columns.
    """
    check(described, kind, present_before, present_after)
    buffer = _buffer(data, extents)
    columns = len(described.codecs)
    sent = [present(bitmap, columns) for bitmap in _bitmaps(kind, present_before, present_after)]
    forms = [[(c.width, c.prefix) for c, here in zip(described.codecs, image, strict=True) if here] for image in sent]
    documents = [i for i, c in enumerate(described.columns) if c.type_code == TypeCode.JSON] if partial_json else None
    starts, counts = walk_images(buffer, extents, forms, None if documents is None else len(documents))
    images = [
        _spread(cells(buffer, at, form), image)
        for at, form, image in zip(starts[: len(sent)], forms, sent, strict=True)
    ]
    if kind is RowKind.UPDATE:
        parts = None
        if documents is not None:
            found = parts_of_documents(buffer, starts[-1], len(documents))
            parts = dict(zip(documents, found, strict=True))
        return _updates(described, images[0], images[1], counts, parts)
    op = np.full(len(starts[0]), _C if kind is RowKind.INSERT else _D, np.uint8)
    rows = _batch(described, images[0], op, _omitted_columns(images[0], len(op)), None)
    lacks_some = kind is RowKind.INSERT and None in images[0]
    return DecodedRows(rows, counts, np.ones(len(op), np.bool_) if lacks_some else None)


def check(described: DescribedTable, kind: RowKind, present_before: bytes, present_after: bytes) -> None:
    """Refuse events whose rows cannot be identified.

    Raises:
        ConfigurationError: as `changes` does.
    """
    table = described.table
    bitmap = present_after if kind is RowKind.INSERT else present_before
    # If an inserted row of a table without a key lacks a column, the whole table is read again.
    needed = table.key if kind is RowKind.INSERT else table.key_columns
    lacking = [
        column.name
        for column, here in zip(table.columns, present(bitmap, len(table.columns)), strict=True)
        if not here and column.name in needed
    ]
    if lacking:
        what = "inserted rows" if kind is RowKind.INSERT else "old rows"
        raise ConfigurationError(
            f"table {table.id}: {what} in the binary log come without {', '.join(lacking)}; some session writes with a "
            "binlog_row_image other than FULL",
            remedy="run SET GLOBAL binlog_row_image = 'FULL' (in the server's settings, too), end the sessions that "
            f"are older than that, then {READ_ANEW}",
            runbook="binlog-not-complete",
        )


def _bitmaps(kind: RowKind, before: bytes, after: bytes) -> Sequence[bytes]:
    if kind is RowKind.UPDATE:
        return before, after
    return (after,) if kind is RowKind.INSERT else (before,)


def _buffer(data: bytes, extents: Extents) -> Buffer:
    reached = int(extents.end.max()) if len(extents.end) else 0
    return Buffer(data) if reached + PAD <= len(data) else with_padding([data])


Image = list[Cells | None]
"""A row image's cells by column; None if the column is not sent."""


def _spread(found: list[Cells], sent: Sequence[bool]) -> Image:
    rest = iter(found)
    return [next(rest) if here else None for here in sent]


def _updates(
    described: DescribedTable, before: Image, after: Image, counts: Int64s, parts: dict[int, Bools] | None
) -> DecodedRows:
    """Return updates as changes. `parts`: by column, in which rows the after image has only a part of a document."""
    rows = int(counts.sum())
    new = [b if a is None else a for b, a in zip(before, after, strict=True)]
    new_omitted, incomplete = _omitted_columns(new, rows), None
    for number, partial in (parts or {}).items():
        sent = after[number]
        if sent is None or not partial.any():
            continue
        new[number] = sent.without(partial)
        new_omitted[number] |= partial
        incomplete = partial if incomplete is None else incomplete | partial
    changed = _key_changed(described, before, new, rows)
    whole = described.table.identity is Identity.FULL
    if not changed.any() and not whole:
        op = np.full(rows, _U, np.uint8)
        return DecodedRows(_batch(described, new, op, new_omitted, None), counts, incomplete)

    # A change takes its values from a before image (numbers below `rows`) or from an after image (the others).
    after_image = rows + np.arange(rows)
    split = split_key_changes(changed, np.full(rows, whole), after_image, np.full(rows, _U, np.uint8), _D, _C)
    both = [_join_cells(b, a, split.value, rows) for b, a in zip(before, new, strict=True)]
    omitted = np.concatenate([_omitted_columns(before, rows), new_omitted], axis=1)[:, split.value]
    grown = np.bincount(np.repeat(np.arange(len(counts)), counts)[changed], minlength=len(counts))
    if incomplete is not None:
        incomplete = np.concatenate([np.zeros(rows, np.bool_), incomplete])[split.value]
    batch = _batch(described, both, split.op, omitted, (before, split.before))
    return DecodedRows(batch, counts + grown, incomplete)


def _join_cells(before: Cells | None, after: Cells | None, value: Int64s, rows: int) -> Cells | None:
    """Return the cells of one column for these changes. `value`: for each change, the number of its image, where the
    after images follow the before images."""
    parts = (before, after)
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    none = np.zeros(rows, np.int64)
    starts = np.concatenate([none if part is None else part.start for part in parts])[value]
    sizes = np.concatenate([none if part is None else part.size for part in parts])[value]
    valid = np.concatenate([none.astype(np.bool_) if part is None else part.present for part in parts])[value]
    return Cells(known.buffer, starts, sizes, None if valid.all() else valid)


def _omitted_columns(image: Image, rows: int) -> Bools:
    """Return, for each column of the table (a row of the array), whether it was not sent, repeated for each of `rows`
    changes."""
    return np.repeat(np.array([[part is None] for part in image]), rows, axis=1)


def _key_changed(described: DescribedTable, before: Image, new: Image, rows: int) -> Bools:
    def differs(column: int) -> Bools | None:
        a, b = before[column], new[column]
        return None if a is None or b is None or a is b else ~same_values(a, b)

    return changed_keys(described.table, rows, differs)


def _batch(
    described: DescribedTable, image: Image, op: Codes, omitted: Bools, before: tuple[Image, Int64s] | None
) -> pa.RecordBatch:
    arrays = [
        pa.nulls(len(op), codec.arrow) if part is None else codec.image(part, codec.where)
        for part, codec in zip(image, described.codecs, strict=True)
    ]
    return change_batch(described.table, arrays, op, omitted, None if before is None else _before(described, *before))


def _before(described: DescribedTable, before: Image, old: Int64s) -> pa.Array:
    """Return the old rows of changes. `old`: for each change, the number of its before image, or -1 for NULL."""

    def column(number: int, at: Int64s, there: Bools) -> pa.Array:
        part, codec = before[number], described.codecs[number]
        if part is None:
            return pa.nulls(len(old), codec.arrow)
        return codec.image(Cells(part.buffer, part.start[at], part.size[at], part.present[at] & there), codec.where)

    return old_rows(described.table, old, column)
