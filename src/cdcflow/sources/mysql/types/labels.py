"""ENUM and SET: a number in a row image, its label or labels in the log and in a SELECT.

Both the table map and the type's text in the catalog contain the labels. With `binlog_row_metadata=FULL` they agree.

For row images there is no compiled kernel; in result sets the forms `enum` and `set` have the kernel UTF8
(`compiled/values.pxi`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from cdcflow.model.change import Int64s, Uint64s
from cdcflow.sources.engine.buffers import Cells
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.types import row_texts
from cdcflow.sources.mysql.types.charsets import utf8
from cdcflow.sources.mysql.types.columns import CatalogColumn, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.family import Codec, TypeFamily, Where, unreadable


def enum_label(width: int, labels: Sequence[str], cells: Cells, where: Where) -> pa.Array:
    """Return the label of an ENUM's number. 0 is the empty string, for a value that was not a label."""
    number = _little_endian(width, cells).astype(np.int64)
    if (number[cells.present] > len(labels)).any():
        raise unreadable(where, f"one of its {len(labels)} labels")
    return _labels(["", *labels], number, cells)


def set_labels(width: int, labels: Sequence[str], cells: Cells, where: Where) -> pa.Array:
    """Return the labels of a SET's bits separated by commas, as the server prints them. No bit at all is the empty
    string."""
    value = _little_endian(width, cells)
    there = value[cells.present]
    if len(labels) < 64 and (there >> np.uint64(len(labels))).any():
        raise unreadable(where, f"some of its {len(labels)} labels")
    distinct, number = np.unique(np.where(cells.present, value, 0), return_inverse=True)
    texts = [",".join(label for i, label in enumerate(labels) if bits >> i & 1) for bits in distinct.tolist()]
    return _labels(texts, number, cells)


def _labels(texts: Sequence[str], number: Int64s, cells: Cells) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(number, mask=cells.mask))


def _little_endian(width: int, cells: Cells) -> Uint64s:
    return cells.buffer.values("<u8", cells.start) & np.uint64((1 << 8 * width) - 1)


# ── the family ──────────────────────────────────────────────────────────────────────────────────────────────────

_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED: Mapping[str, str] = {"\\n": "\n", "\\r": "\r", "\\0": "\0", "\\\\": "\\", "''": "'", "\\'": "'"}


def _from_catalog(column: CatalogColumn) -> ServerColumn:
    labels = _parse_labels(column.full_type)
    if column.type == "enum":
        return column.stored_as(TypeCode.ENUM, 1 if len(labels) < 256 else 2, labels=labels)
    octets = (len(labels) + 7) // 8
    return column.stored_as(TypeCode.SET, octets if octets <= 4 else 8, labels=labels)


def _parse_labels(full_type: str) -> tuple[str, ...]:
    """Return the labels in a type's text, such as `enum('a','b''c')`. A quote is doubled; a backslash and a line break
    are escaped."""
    inner = full_type[full_type.index("(") + 1 :]
    return tuple(
        re.sub(r"''|\\.", lambda e: _ESCAPED.get(e[0], e[0][1:]), found[1], flags=re.DOTALL)
        for found in _LABEL.finditer(inner)
    )


def _type_text(column: ServerColumn) -> str:
    labels = ",".join("'" + label.replace("'", "''") + "'" for label in column.labels)
    return f"{'enum' if column.type_code == TypeCode.ENUM else 'set'}({labels})"


def _codec(column: ServerColumn, where: Where) -> Codec:
    decode, form = (enum_label, "enum") if column.type_code == TypeCode.ENUM else (set_labels, "set")
    image = partial(decode, column.metadata, column.labels)
    return Codec(where, pa.string(), column.metadata, 0, image, utf8, form, column.metadata)


def _comparable(column: ServerColumn) -> str:
    """Return the column in a form that compares by number: ENUM and SET are ordered by it, but compare with a text as
    text (W19)."""
    return f"({quote_name(column.name)} + 0)"


def _number(column: ServerColumn, text: str) -> str:
    if column.type_code == TypeCode.ENUM:
        return str(column.labels.index(text) + 1 if text in column.labels else 0)
    chosen = set(text.split(",")) if text else set()
    return str(sum(1 << i for i, label in enumerate(column.labels) if label in chosen))


FAMILY = TypeFamily(
    codes={TypeCode.ENUM: 2, TypeCode.SET: 2},
    names=frozenset(("enum", "set")),
    from_catalog=_from_catalog,
    type_text=_type_text,
    codec=_codec,
    row_text=row_texts.text,
    comparable=_comparable,
    cell_literal=lambda column, cell: _number(column, cell.decode()),
    text_literal=_number,
)
