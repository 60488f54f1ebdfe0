"""Build a column of messages from columns of values, in the same way for every format.

A rendered column is a `large_binary` array: each cell the bytes of one value, or NULL. Leaves are rendered a column at
a time and joined into records by Arrow, so no row becomes a Python object on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.publish.connect import Schema

RENDERED = pa.large_binary()
NONE = pa.scalar(None, RENDERED)


class FormatWriter(Protocol):
    """The encoding of values in one format."""

    def scalar(self, values: pa.Array, schema: Schema) -> pa.Array:
        """Return plain values as rendered cells; NULL stays NULL."""
        ...

    def record(self, parts: Sequence[pa.Array | pa.Scalar], schema: Schema) -> pa.Array:
        """Return structs, combined from their rendered fields (as many and in the order of `schema.fields`). Never
        NULL."""
        ...

    def sequence(
        self, items: pa.Array, lengths: np.ndarray[tuple[int], np.dtype[np.int64]], schema: Schema
    ) -> pa.Array:
        """Return arrays, combined from their rendered elements: array i has `lengths[i]` of them. Never NULL."""
        ...


def render(values: pa.Array, schema: Schema, writer: FormatWriter) -> pa.Array:
    """Return a column of any type as rendered cells."""
    match schema.type:
        case "struct":
            parts = [render(values.field(i), inner, writer) for i, (_, inner) in enumerate(schema.fields)]
            whole = writer.record(parts, schema)
        case "array":
            assert schema.items is not None  # noqa: S101  of an array, always
            lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
            whole = writer.sequence(render(values.flatten(), schema.items, writer), lengths, schema)
        case _:
            return writer.scalar(values, schema)
    return whole if not values.null_count else pc.if_else(values.is_valid(), whole, NONE)


def constant(text: bytes) -> pa.Scalar:
    return pa.scalar(text, RENDERED)


def concat_columns(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Concatenate the parts of each row. At least one part is a column."""
    return pc.binary_join_element_wise(*parts, constant(b""))


def repeat_cells(cells: pa.Array, index: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """Return the cell at each of these indexes."""
    return pc.take(cells, pa.array(index))


def join_groups(items: pa.Array, lengths: np.ndarray[tuple[int], np.dtype[np.int64]], between: bytes) -> pa.Array:
    """Return consecutive rendered items (none NULL), joined into one cell per group."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return pc.binary_join(pa.LargeListArray.from_arrays(pa.array(ends), items), constant(between))
