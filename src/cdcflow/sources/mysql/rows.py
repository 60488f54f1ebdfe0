"""Row images of the binary log as changes in Arrow columns, an event batch at a time.

- An update whose key stays is one `u`; one whose key changes is a `d` of the old key and a `c` (hard case M43).
- A column that the after image does not have was not changed: its value is the before image's where that has it, else
  it is unchanged, which is not NULL (M08; `binlog_row_image` MINIMAL and NOBLOB).
- An insert without all columns leaves the rest to the table's defaults, which the log does not say: refused by name.

`changes` is the plain twin and the reference. The compiled one (`twins.py`) takes what is usual and gives the same.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Int64s
from cdcflow.model.table import BEFORE, UNCHANGED, Identity
from cdcflow.sources.buffers import PAD, Bools, Buffer, Cells, padded
from cdcflow.sources.engine.changes import ops, same_values, split_key_changes, unchanged_names
from cdcflow.sources.mysql.images import Extents, cells, present, walked
from cdcflow.sources.mysql.losses import READ_ANEW
from cdcflow.sources.mysql.shapes import DescribedTable

__all__ = ["DecodedRows", "Extents", "RowKind", "changes"]

_C, _U, _D = (ord(c) for c in "cud")


class RowKind(enum.Enum):
    """What a ROWS event does."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Changes of one table shape in order; `counts` says how many of them come from each extent."""

    rows: pa.RecordBatch
    counts: Int64s


def changes(
    described: DescribedTable,
    data: bytes,
    extents: Extents,
    kind: RowKind,
    present_before: bytes,
    present_after: bytes,
    partial_json: bool = False,
) -> DecodedRows:
    """The rows of ROWS events of one table shape, one kind and one pair of column bitmaps.

    `data` may go on behind the last extent; where `buffers.PAD` bytes follow it, nothing is copied. An insert has only
    an after image, a delete only a before image; the other bitmap is not looked at.

    Raises:
        SourceUnavailable: the bytes cannot be rows of this table.
        ConfigurationError: a value has no place in its column's type, or a row comes without its key; by name.
    """
    check(described, kind, present_before, present_after, partial_json)
    buffer = _buffer(data, extents)
    columns = len(described.codecs)
    sent = [present(bitmap, columns) for bitmap in _bitmaps(kind, present_before, present_after)]
    forms = [[(c.width, c.prefix) for c, here in zip(described.codecs, image, strict=True) if here] for image in sent]
    places, counts = walked(buffer, extents, forms)
    images = [
        _spread(cells(buffer, *part), image) for part, image in zip(zip(places, forms, strict=True), sent, strict=True)
    ]
    if kind is RowKind.UPDATE:
        return _updates(described, images[0], images[1], counts)
    op = np.full(len(places[0]), _C if kind is RowKind.INSERT else _D, np.uint8)
    return DecodedRows(_batch(described, images[0], op, _omitted(images[0], len(op)), None), counts)


def check(
    described: DescribedTable, kind: RowKind, present_before: bytes, present_after: bytes, partial_json: bool
) -> None:
    """Refuse events that say less than a change must.

    Raises:
        ConfigurationError: as `changes` does.
    """
    table = described.table
    if partial_json:
        raise ConfigurationError(
            f"table {table.id}: an update in the binary log holds only the parts of a JSON document that it changed",
            remedy="run SET GLOBAL binlog_row_value_options = '' (in the server's settings, too), end the sessions "
            f"that are older than that, then {READ_ANEW}",
        )
    bitmap = present_after if kind is RowKind.INSERT else present_before
    lacking = [
        column.name
        for column, here in zip(table.columns, present(bitmap, len(table.columns)), strict=True)
        if not here and (kind is RowKind.INSERT or column.name in table.key_columns)
    ]
    if lacking:
        what = "inserted rows" if kind is RowKind.INSERT else "old rows"
        raise ConfigurationError(
            f"table {table.id}: {what} in the binary log come without {', '.join(lacking)}; some session writes with a "
            "binlog_row_image other than FULL",
            remedy="run SET GLOBAL binlog_row_image = 'FULL' (in the server's settings, too), end the sessions that "
            f"are older than that, then {READ_ANEW}",
        )


def _bitmaps(kind: RowKind, before: bytes, after: bytes) -> Sequence[bytes]:
    if kind is RowKind.UPDATE:
        return before, after
    return (after,) if kind is RowKind.INSERT else (before,)


def _buffer(data: bytes, extents: Extents) -> Buffer:
    reached = int(extents.end.max()) if len(extents.end) else 0
    return Buffer(data) if reached + PAD <= len(data) else padded([data])


Image = list[Cells | None]
"""A row image's cells by column; None where the column is not sent."""


def _spread(found: list[Cells], sent: Sequence[bool]) -> Image:
    rest = iter(found)
    return [next(rest) if here else None for here in sent]


def _updates(described: DescribedTable, before: Image, after: Image, counts: Int64s) -> DecodedRows:
    rows = int(counts.sum())
    new = [b if a is None else a for b, a in zip(before, after, strict=True)]
    changed = _key_changed(described, before, new, rows)
    whole = described.table.identity is Identity.FULL
    if not changed.any() and not whole:
        op = np.full(rows, _U, np.uint8)
        return DecodedRows(_batch(described, new, op, _omitted(new, rows), None), counts)

    # A change's values are those of the before images, or (from `rows` on) of the after images.
    after_image = rows + np.arange(rows)
    split = split_key_changes(changed, np.full(rows, whole), after_image, np.full(rows, _U, np.uint8), _D, _C)
    both = [_joined(b, a, split.value, rows) for b, a in zip(before, new, strict=True)]
    omitted = np.concatenate([_omitted(before, rows), _omitted(new, rows)], axis=1)[:, split.value]
    grown = np.bincount(np.repeat(np.arange(len(counts)), counts)[changed], minlength=len(counts))
    return DecodedRows(_batch(described, both, split.op, omitted, (before, split.before)), counts + grown)


def _joined(before: Cells | None, after: Cells | None, value: Int64s, rows: int) -> Cells | None:
    """The cells that these changes take: number `value` of the before images and then the after images."""
    parts = (before, after)
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    none = np.zeros(rows, np.int64)
    starts = np.concatenate([none if part is None else part.start for part in parts])[value]
    sizes = np.concatenate([none if part is None else part.size for part in parts])[value]
    valid = np.concatenate([none.astype(np.bool_) if part is None else part.present for part in parts])[value]
    return Cells(known.buffer, starts, sizes, None if valid.all() else valid)


def _omitted(image: Image, rows: int) -> Bools:
    """Which columns (one a row of the array) were not sent, for each of these changes."""
    return np.repeat(np.array([[part is None] for part in image]), rows, axis=1)


def _key_changed(described: DescribedTable, before: Image, new: Image, rows: int) -> Bools:
    """Whether the key's bytes differ. A table without a key has no rows that stay the same row: all of them."""
    table = described.table
    if not table.key:
        return np.ones(rows, np.bool_)
    changed = np.zeros(rows, np.bool_)
    for number, column in enumerate(table.columns):
        a, b = before[number], new[number]
        if column.name not in table.key or a is None or b is None or a is b:
            continue
        changed |= ~same_values(a, b)
    return changed


def _batch(
    described: DescribedTable,
    image: Image,
    op: np.ndarray[tuple[int], np.dtype[np.uint8]],
    omitted: Bools,
    before: tuple[Image, Int64s] | None,
) -> pa.RecordBatch:
    schema = described.table.change_schema
    arrays = [
        pa.nulls(len(op), codec.arrow) if part is None else codec.image(part, codec.where)
        for part, codec in zip(image, described.codecs, strict=True)
    ]
    unchanged = schema.field(UNCHANGED).type
    names = unchanged_names(described.table, omitted, unchanged) if omitted.any() else pa.nulls(len(op), unchanged)
    olds = pa.nulls(len(op), schema.field(BEFORE).type) if before is None else _before(described, *before)
    return pa.RecordBatch.from_arrays([*arrays, ops(op), names, olds], schema=schema)


def _before(described: DescribedTable, before: Image, old: Int64s) -> pa.Array:
    """The old rows: number `old` of the before images, NULL where that is -1."""
    there = old >= 0
    at = np.maximum(old, 0)
    arrow = described.table.before_type
    children = []
    for part, codec, column in zip(before, described.codecs, described.table.columns, strict=True):
        if arrow.get_field_index(column.name) < 0:
            continue
        if part is None:
            children.append(pa.nulls(len(old), codec.arrow))
            continue
        valid = part.present[at] & there
        children.append(codec.image(Cells(part.buffer, part.start[at], part.size[at], valid), codec.where))
    return pa.StructArray.from_arrays(children, fields=list(arrow), mask=pa.array(~there))
